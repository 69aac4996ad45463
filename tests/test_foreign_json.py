"""JSON that a patch, a server or a model wrote never ends a run: it is read, or refused with one error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.coverage import decide_coverage, parse_trace
from harness.pytest_log import read_log, read_totals
from harness.records import read_junit
from harness.request import Question, RequestRecord, completion_body
from harness.stream import to_record
from rtb.errors import InvalidFile
from rtb.foreign_json import read_foreign_json
from rtb.prediction import Prediction, read_predictions
from rtb.result import AuditFinding
from rtb.task import Target, canonical_json

DEEP, LONG = b"[" * 200_000, b"9" * 5000
TARGET = Target(path="a.py", name="k", kind="triton_kernel", change="modified")


@pytest.mark.parametrize("data", [DEEP, LONG, b"{", b"", b"[" * 5000 + b'"\\ud800"' + b"]" * 5000])
def test_what_cannot_be_read_is_one_error(data: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        read_foreign_json(data)


def test_half_characters_and_bad_bytes_can_be_written_again() -> None:
    assert read_foreign_json(b'{"\\ud800": ["\\udc00", "\\ud83d\\ude00"]}') == {"?": ["?", "\U0001f600"]}
    assert read_foreign_json(b'"\xff\xed\xa0\x80"').encode()


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_anything_is_read_or_refused(data: bytes | str) -> None:
    try:
        value = read_foreign_json(data)
    except json.JSONDecodeError:
        return
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "text",
    [
        DEEP.decode(),
        '[["launch", "start", "\\ud800", "a.py", 1]]',
        f'[["launch", "start", "k", "a.py", {LONG[:4000].decode()}]]\n' * 20,
    ],
)
def test_a_poisoned_trace_of_launches_can_be_decided_and_written(text: str) -> None:
    facts = decide_coverage([TARGET], parse_trace(text))
    assert facts.state == "uncovered"
    assert canonical_json(facts)


def test_numbers_that_no_computer_reads_are_no_counts() -> None:
    assert read_totals(b"== " + LONG + b" passed in 0.1s ==\n") is None
    assert read_log(b"SKIPPED [" + LONG + b"] a.py:1: x\n").skips_without_ids == 0
    number = b'<property name="rtb" value="' + LONG + b'"/>'
    report = read_junit(
        b'<a><testcase classname="c" name="n"><properties>' + number + b"</properties></testcase></a>"
    )
    assert (report.fault, report.numbered) == (None, {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"a": ' * 200_000, "nested too deep"),
        ('{"instance_id": "a", "model_patch": "x", "cost": ' + LONG.decode() + "}", "too many digits"),
        ('{"instance_id": "a", "model_patch": "\\ud800"}', "half a character (U+D800)"),
    ],
)
def test_a_hostile_line_of_predictions_is_named_and_stops_no_other(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        line + '\n{"instance_id": "b\\ud800", "model_name_or_path": "\\ud800", "model_patch": "\\udcff"}\n'
    )
    found = read_predictions(file)
    assert [words in problem.message for problem in found.errors] == [True]
    assert (found.ids, found.model_names) == (("b?",), ("?",))
    assert found.load("b?").patch_bytes == b"\xff"


def test_a_document_of_predictions_that_is_nested_without_end_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("[" * 200_000)
    with pytest.raises(InvalidFile, match="nested too deep"):
        read_predictions(file)


def test_a_cost_beyond_all_numbers_is_no_cost() -> None:
    assert prediction(cost=10**400).cost_usd is None
    assert prediction(cost=float("nan")).cost_usd is None
    assert prediction(cost=2).cost_usd == 2.0


def prediction(cost: float) -> Prediction:
    return Prediction(instance_id="a", model_name_or_path="m", model_patch="", extra={"cost": cost})


def answered(head: bytes, *events: bytes) -> RequestRecord:
    question = Question(index=0, body=completion_body("p", 2, model="m"), requested=2)
    reads = [(1, head), *((2 + n, b"data: " + event + b"\n\n") for n, event in enumerate(events))]
    return to_record(question, 0, reads, None, keep_text=True)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "event",
    [
        DEEP,
        b'{"choices": [5], "usage": []}',
        b'{"choices": {"a": 1}}',
        b'{"choices": [{"text": 5}]}',
        b'{"choices": [{"text": "a", "finish_reason": {}}]}',
        b'{"choices": [{"delta": [1]}]}',
        b'{"choices": [{"message": {"content": {}}}]}',
        b'{"choices": [{"text": "\\ud800"}]}',
        b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": -5, "prompt_tokens": "x"}}',
        b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": ' + LONG[:4000] + b"}}",
    ],
)
def test_a_hostile_event_is_a_fault_of_its_request(event: bytes) -> None:
    record = answered(STREAM, event)
    assert record.error is not None
    assert canonical_json(record)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 " + LONG + b" OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: " + LONG + b"\r\n\r\n"]
)
def test_a_head_with_endless_numbers_is_a_fault_of_its_request(head: bytes) -> None:
    assert answered(head).error is not None


def test_a_name_of_odd_bytes_is_stored_as_text_that_can_be_read() -> None:
    found = AuditFinding(kind="outside_targets", path="pkg/\udcff.py", text="\ud800")
    stored = AuditFinding.model_validate_json(canonical_json(found))
    assert (stored.path, stored.text) == ("pkg/\\udcff.py", "\\ud800")
