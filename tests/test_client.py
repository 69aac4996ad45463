"""The client against a server whose schedule is known, and against everything a server can do wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.client import encode, measure, perform
from harness.request import PATHS, Plan, Question, RequestRecord, completion_body, read_records
from harness.stream import BadResponse, body_parts, events, parse_head, to_record
from harness.timing import by_guidellm, by_vllm_bench, fault_of, summarise, summarise_foreign, timing
from rtb.errors import StoredRunBroken
from tests.cases import cases_root

MOCK = Path(__file__).with_name("mock_server.py")
CASES = cases_root() or Path("shared/cases")


@contextmanager
def mock(folder: Path, *arguments: str) -> Iterator[str]:
    """A running mock server; yields its address."""
    address = f"unix:{folder}/{len(list(folder.iterdir()))}.sock"
    argv = [sys.executable, str(MOCK), "--listen", address, *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"ready"
            yield address
        finally:
            process.kill()


def plan(address: str, count: int = 3, tokens: int = 8, concurrency: int = 1, **more: object) -> Plan:
    questions = tuple(
        Question(index=index, body=completion_body(f"prompt {index}", tokens, model="m"), requested=tokens)
        for index in range(count)
    )
    return Plan.model_validate(
        {"address": address, "questions": questions, "concurrency": concurrency, "timeout_seconds": 10, **more}
    )


def one(folder: Path, fault: str, gap_ms: int = 2, **more: object) -> RequestRecord:
    with mock(folder, "--ttft-ms", "5", "--gap-ms", str(gap_ms), "--fault", fault) as address:
        return perform(plan(address, count=1, **more))[0]


def test_times_are_those_of_the_servers_schedule(tmp_path: Path) -> None:
    with mock(tmp_path, "--ttft-ms", "60", "--gap-ms", "10") as address:
        records = measure(plan(address, count=6, concurrency=2), tmp_path / "requests.jsonl")
    found = summarise(records)
    assert found.invalid == {}
    assert found.continuous
    assert found.ttft_median is not None and found.tpot_median is not None
    # No token can come before its schedule; how long after depends on the machine (docs/measurement.md has that).
    assert found.ttft_median >= 0.060
    for record in records:
        assert all(at >= 60e6 + number * 10e6 for number, (at, _) in enumerate(record.tokens))
        assert record.end_ns is not None and record.tokens[-1][0] <= record.end_ns
    assert list(read_records(tmp_path / "requests.jsonl")) == records
    assert [path.name for path in tmp_path.glob("*.json")] == []


def test_records_are_complete_and_in_order(tmp_path: Path) -> None:
    with mock(tmp_path, "--ttft-ms", "5", "--gap-ms", "1") as address:
        records = measure(plan(address, count=9, concurrency=3), tmp_path / "r.jsonl")
    assert [record.index for record in records] == list(range(9))
    assert len({record.prompt_sha256 for record in records}) == 9
    for record in records:
        assert (record.status, record.finish, record.completion_tokens) == (200, "length", 8)
        assert [count for _, count in record.tokens] == list(range(1, 9))  # empty texts are tokens too
        assert record.text is None


def test_requests_in_flight_overlap_and_keep_to_the_limit(tmp_path: Path) -> None:
    with mock(tmp_path, "--ttft-ms", "30", "--gap-ms", "5") as address:
        records = perform(plan(address, count=8, concurrency=4))
    spans = sorted((record.sent_ns, record.sent_ns + (record.end_ns or 0)) for record in records)
    most = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert most == 4


def test_a_fixed_rate_starts_requests_by_the_clock_and_not_by_the_answers(tmp_path: Path) -> None:
    with mock(tmp_path, "--ttft-ms", "200", "--gap-ms", "1") as address:
        records = perform(plan(address, count=4, concurrency=4, rate=50.0))
    starts = sorted(record.sent_ns for record in records)
    for number, start in enumerate(starts):
        assert start >= number * 20e6
    assert starts[-1] < min(record.sent_ns + (record.end_ns or 0) for record in records)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error_event", "the server sent an error"),
        ("short", "4 tokens, 8 were asked for"),
        ("no_usage", "no usage in the answer"),
        ("close", "closed the connection before the response ended"),
        ("status_500", "status 500"),
        ("no_json", "an event is no JSON"),
        ("stop", "finish reason 'stop', not 'length'"),
    ],
)
def test_an_unsound_answer_is_invalid_with_its_reason(tmp_path: Path, fault: str, words: str) -> None:
    record = one(tmp_path, fault)
    assert words in (fault_of(record) or "")
    assert timing(record) is None
    assert summarise([record]).invalid_share == 1.0
    assert summarise([record]).ttft_median is None


def test_a_server_that_hangs_is_a_timeout(tmp_path: Path) -> None:
    assert "no whole answer within 0.5 s" in (fault_of(one(tmp_path, "hang", timeout_seconds=0.5)) or "")


@pytest.mark.parametrize(("fault", "words"), [("flood", "larger than 64 MiB"), ("endless_head", "no head")])
def test_a_server_that_never_stops_sending_does_not_fill_this_machine(tmp_path: Path, fault: str, words: str) -> None:
    record = one(tmp_path, fault)
    assert record.error is not None and words in record.error


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    records = perform(plan(f"unix:{tmp_path}/none.sock", count=2))
    assert all("cannot send" in (fault_of(record) or "") for record in records)


def test_a_role_chunk_is_no_token(tmp_path: Path) -> None:
    with mock(tmp_path, "--ttft-ms", "80", "--gap-ms", "2", "--fault", "role_chunk") as address:
        body = completion_body("p", 8, model="m", endpoint="chat")
        chat = Plan(
            address=address,
            path=PATHS["chat"],
            questions=(Question(index=0, body=body, requested=8),),
            keep_text=True,
        )
        record = perform(chat)[0]
    assert fault_of(record) is None
    assert record.first_byte_ns is not None
    assert record.first_byte_ns < 80e6 <= record.tokens[0][0]
    assert record.text == "t t t t t t t "


def test_several_tokens_a_chunk_are_counted_by_usage(tmp_path: Path) -> None:
    record = one(tmp_path, "bundle", gap_ms=40)
    assert [count for _, count in record.tokens] == [4, 8]
    found = timing(record)
    assert found is not None and found.tpot is not None
    spread = (record.tokens[1][0] - record.tokens[0][0]) / 1e9
    assert found.tpot == pytest.approx(spread / 4)
    other = by_vllm_bench(record)[1]
    assert other == pytest.approx(spread / 7)  # their definition divides by all tokens but one


def test_tokens_that_are_counted_before_they_are_there_win_nothing(tmp_path: Path) -> None:
    """The second chunk claims them all; the text of the others is still to come."""
    record = one(tmp_path, "early_count", gap_ms=40)
    found = timing(record)
    assert found is not None and found.tpot is not None
    assert record.tokens[1][1] == record.completion_tokens
    assert record.tokens[-1][0] > record.tokens[1][0]
    assert found.tpot == pytest.approx((record.tokens[-1][0] - record.tokens[0][0]) / 7e9)


def test_all_tokens_in_one_chunk_have_no_tpot(tmp_path: Path) -> None:
    found = timing(one(tmp_path, "one_chunk"))
    assert found is not None
    assert found.tpot is None


def test_without_counts_in_the_chunks_text_chunks_stand_in(tmp_path: Path) -> None:
    record = one(tmp_path, "final_usage")
    assert not record.continuous
    assert fault_of(record) is None
    assert record.completion_tokens == 8
    assert not summarise([record]).continuous


def test_bytes_that_come_one_by_one_are_the_same_answer(tmp_path: Path) -> None:
    record = one(tmp_path, "split_bytes", tokens=3)
    assert fault_of(record) is None
    assert [count for _, count in record.tokens] == [1, 2, 3]


def test_an_event_has_the_stamp_of_its_last_byte() -> None:
    event = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\n'
    chunk = b"%x\r\n%s\r\n" % (len(event), event)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    last = chunk.replace(b": 1}", b": 2}").replace(b'"a"}', b'"a", "finish_reason": "length"}')
    last = b"%x\r\n" % (len(last.split(b"\r\n")[1])) + last.split(b"\r\n", 1)[1]
    reads = [(10, head + chunk[:20]), (20, chunk[20:] + last[:5]), (30, last[5:]), (40, b"0\r\n\r\n")]
    record = to_record(Question(index=0, body={"prompt": "p"}, requested=2), 0, reads, None, keep_text=True)
    assert record.error is None
    assert record.tokens == ((20, 1), (30, 2))
    assert (record.first_byte_ns, record.end_ns, record.text) == (10, 40, "aa")


def test_heads_and_bodies_that_are_broken_are_named() -> None:
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Le") is None
    with pytest.raises(BadResponse, match="not an HTTP"):
        parse_head(b"SSH-2.0-OpenSSH\r\n\r\n")
    head = parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert head is not None
    with pytest.raises(BadResponse, match="middle of its body"):
        list(body_parts(b" " * head.size + b"5\r\nab", head))
    with pytest.raises(BadResponse, match="length is"):
        list(body_parts(b" " * head.size + b"zz\r\nab", head))


def test_events_survive_any_cut() -> None:
    data = 'data: {"a": "é"}\r\n\r\n: comment\n\ndata: [DONE]\n\n'.encode()
    for cut in range(len(data)):
        parts = iter([(cut, data[:cut]), (len(data), data[cut:])])
        assert [value for _, value in events(parts)] == ['{"a": "é"}'.encode(), b"[DONE]"]


def test_a_request_is_valid_http() -> None:
    raw = encode("/v1/completions", {"prompt": "é", "max_tokens": 1})
    head, _, body = raw.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"prompt": "é", "max_tokens": 1}


def test_a_broken_stored_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("{}\n")
    with pytest.raises(StoredRunBroken, match=r"r\.jsonl:1"):
        list(read_records(tmp_path / "r.jsonl"))


def test_our_numbers_beside_those_of_other_clients(tmp_path: Path) -> None:
    """One token a chunk: TTFT and TPOT agree with `vllm bench serve`; GuideLLM's time per token includes TTFT."""
    with mock(tmp_path, "--ttft-ms", "40", "--gap-ms", "20") as address:
        records = perform(plan(address, count=4))
    # A busy machine can hand us two tokens in one read; then the definitions differ, as docs/measurement.md says.
    apart = [
        record
        for record in records
        if [count for _, count in record.tokens] == list(range(1, 9)) and len({at for at, _ in record.tokens}) == 8
    ]
    assert apart
    for record in apart:
        ours = timing(record)
        assert ours is not None and ours.tpot is not None
        ttft, tpot = by_vllm_bench(record)
        assert (ttft, tpot) == (ours.ttft, pytest.approx(ours.tpot))
        first, between, per_token = by_guidellm(record)
        assert (first, between) == (ttft, tpot)
        assert per_token == pytest.approx((ours.ttft + 7 * ours.tpot) / 8)
        assert per_token > ours.tpot


def test_case_98_serving_records() -> None:
    folder = CASES / "98-serving-records"
    if not folder.is_dir():
        pytest.skip("the shared cases are not beside the repository")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    records = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines() if line]
    run = json.loads((folder / "run.json").read_text())
    found = summarise_foreign(records, run["duration_s"], run["submitted"])
    assert (found.submitted, found.completed, found.failed) == (7, 4, 1)
    assert found.invalid == expected["invalid"]
    assert found.mean_ttft_ms == pytest.approx(expected["mean_ttft_ms"])
    assert found.mean_tpot_ms == pytest.approx(expected["mean_tpot_ms"], abs=1e-3)
    assert (found.tpot_samples, found.output_tokens) == (3, 29)
    assert found.output_throughput == pytest.approx(expected["output_throughput_tok_s"], abs=1e-5)
    assert found.request_throughput == pytest.approx(expected["request_throughput_req_s"], abs=1e-6)
    assert found.degraded
