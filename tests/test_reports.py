"""Own minimal inputs for public reports of people doing this job (tests/reports), each with the right answer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.gsm8k import Problem, read_problems, score
from harness.patching import apply_patch
from harness.request import Question, RequestRecord, completion_body
from harness.stages.unit import run_unit
from harness.stream import to_record
from harness.timing import fault_of, timing
from harness.validation import ControlRun, refusals
from rtb.errors import InvalidFile
from rtb.git_objects import borrow_objects
from rtb.local_sandbox import open_local_sandbox
from rtb.prediction import read_predictions
from rtb.result import StageResult
from rtb.sandbox import Limits
from rtb.task import TestIds
from tests import gitrepo
from tests.test_unit_stage import PLUGIN_PATH, a_task

REPORTS = Path(__file__).parent / "reports"


def folder(number: int) -> Path:
    return next(REPORTS.glob(f"{number:02d}-*"))


def expected(number: int) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((folder(number) / "report.json").read_text())
    assert found["source"].startswith("https://github.com/")
    return dict(found["expected"])


def test_every_report_is_run_here() -> None:
    text = Path(__file__).read_text()
    for place in REPORTS.iterdir():
        number = int(place.name[:2])
        assert f"expected({number})" in text, place.name
    assert len(list(REPORTS.iterdir())) >= 15


@pytest.mark.parametrize("want", [pytest.param(expected(1), id="01"), pytest.param(expected(3), id="03")])
def test_odd_bytes_do_not_hide_predictions(want: Mapping[str, Any]) -> None:
    found = read_predictions(folder(3 if "kept" in want else 1) / "predictions.jsonl")
    assert (list(found.ids), len(found.errors)) == (want["ids"], want["errors"])
    assert want.get("kept", "") in found.load("org__a-1").model_patch


def test_utf_16_is_refused_in_words() -> None:
    want = expected(2)
    try:
        found = read_predictions(folder(2) / "predictions.jsonl")
    except InvalidFile as error:
        assert want["error"] in str(error)
    else:
        assert not found.ids and any(want["error"] in problem.message for problem in found.errors)


def streamed(*payloads: str, requested: int, gap_ns: int = 1000) -> RequestRecord:
    """A streamed answer, one read an event."""
    question = Question(index=0, body=completion_body("p", requested, model="m"), requested=requested)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    reads = [(gap_ns, head)]
    reads += [(gap_ns * (n + 2), f"data: {text}\n\n".encode()) for n, text in enumerate(payloads)]
    return to_record(question, 0, reads, None, keep_text=True)


def event(text: str, count: int | None, finish: str | None = None) -> str:
    body: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if count is not None:
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": count}
    return json.dumps(body, ensure_ascii=False)


def test_a_line_separator_ends_no_event(tmp_path: Path) -> None:
    want = expected(4)
    record = streamed(event(want["text"], 1), event("", 2, "length"), "[DONE]", requested=2)
    assert (record.text, fault_of(record)) == (want["text"], want["fault"])
    # The same kind in our own data: a question of a file of problems.
    problems = tmp_path / "p.jsonl"
    problems.write_text(json.dumps({"question": "a\u2028b", "answer": "#### 1"}, ensure_ascii=False) + "\n")
    assert [problem.question for problem in read_problems(problems)] == ["a\u2028b"]


def test_what_is_no_number_is_no_cost() -> None:
    want = expected(5)
    found = read_predictions(folder(5) / "predictions.jsonl")
    costs = [found.load(name).cost_usd for name in found.ids]
    assert "org__a-3" in found.ids
    assert all(cost is None or math.isfinite(cost) for cost in costs) is want["finite"]


def test_a_task_that_zeros_pass_is_refused() -> None:
    runs = [
        ControlRun(control="gold", stage="unit", number=1, status="passed", reason="all passed"),
        ControlRun(control="base", stage="unit", number=1, status="failed", reason="1 failed"),
        ControlRun(control="scale", stage="unit", number=1, status="failed", reason="1 failed"),
        ControlRun(control="drop_rows", stage="unit", number=1, status="passed", reason="all passed"),
    ]
    found = refusals(("unit",), runs, {}, {})
    assert len(found) == 1 and expected(6)["refused"] in found[0]


def answered(text: str, gold: str) -> Any:
    record = streamed(event(text, 1), event("", 2, "stop"), "[DONE]", requested=2)
    return score(record, Problem(question="q", answer=f"worked\n#### {gold}"))


@pytest.mark.parametrize("number", [7, 9])
def test_answers_are_scored_as_the_reference_scores_them(number: int) -> None:
    want = expected(7) if number == 7 else expected(9)
    place = folder(number)
    found = answered((place / "answer.txt").read_text(), (place / "gold.txt").read_text())
    assert (found.strict_right, found.flexible_right) == (want["strict"], want["flexible"])
    if "number" in want:
        assert found.number_right is want["number"]


def test_a_sign_counts() -> None:
    gold = (folder(8) / "gold.txt").read_text()
    for text, right in expected(8)["right"].items():
        found = answered(f"it is\n#### {text}", gold)
        assert (found.strict_right, found.flexible_right, found.number_right) == (right, right, right)


def run(number: int, tmp_path: Path, *nodes: str) -> StageResult:
    base = tmp_path / "base"
    for path in folder(number).glob("*.py"):
        place = base / ("tests" if path.name.startswith("test_") else "") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    ids = TestIds(
        instance_id="org__repo-1",
        fail_to_pass=tuple(f"tests/test_it.py::{n}" for n in nodes),
        gold_runs=1,
        base_runs=1,
    )
    with open_local_sandbox(base, env={}, path=PLUGIN_PATH, limits=Limits(), parent=tmp_path) as sandbox:
        return run_unit(a_task(), ids, sandbox, tmp_path / "raw", trusted={"tests/test_it.py"})


def test_a_failed_subtest_fails_its_test(tmp_path: Path) -> None:
    result = run(10, tmp_path, "TestIt::test_it")
    assert result.unit is not None and (result.status, result.tampered) == ("failed", None)
    assert [status for status, _ in result.unit.not_passed.values()] == [expected(10)["status"]]


def test_subtests_are_no_contradiction(tmp_path: Path) -> None:
    if sys.modules["pytest"].version_tuple < (9,):
        pytest.skip("this pytest has no subtests of its own")
    result = run(11, tmp_path, "test_it")
    assert {"status": result.status, "tampered": result.tampered} == expected(11)


def test_nothing_collected_is_no_success(tmp_path: Path) -> None:
    result = run(12, tmp_path, "test_it")
    assert {"status": result.status, "reason": result.reason} == expected(12)


def test_an_event_is_no_token() -> None:
    want = expected(13)
    events = [event("a b c d", 4), event("e f g h", 8, "length")]
    record = streamed(*events, "[DONE]", requested=8, gap_ns=4_000_000)
    found = timing(record)
    assert found is not None and found.tokens == want["tokens"]
    assert found.tpot == pytest.approx(0.001)  # 4 ms for the 4 tokens after the first event


def test_usage_at_the_end_is_enough() -> None:
    want = expected(14)
    record = streamed(event("a", None), event("b", None), event("c", 3, "length"), "[DONE]", requested=3)
    assert (fault_of(record), record.completion_tokens) == (want["fault"], want["tokens"])
    assert len(record.tokens) == want["tokens"]


def test_the_users_git_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder(15) / "gitconfig"))
    top = gitrepo.init(tmp_path / "r")
    base = gitrepo.commit(top, "base", {"m.py": (folder(15) / "base.py").read_bytes()})
    with borrow_objects(top) as objects:
        result = apply_patch(objects, objects.tree_of(base), (folder(15) / "patch.diff").read_bytes())
    assert {"status": result.status, "method": result.method} == expected(15)


def test_wrong_after_the_first_calls_is_wrong(tmp_path: Path) -> None:
    result = run(16, tmp_path, *(f"test_it[{n}]" for n in range(1, 7)))
    assert result.status == expected(16)["status"]


def test_tokens_that_come_at_once_have_no_time_between_them() -> None:
    events = [event("a", 1), event("b", 2), event("c", 3, "length")]
    question = Question(index=0, body=completion_body("p", 3, model="m"), requested=3)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    body = "".join(f"data: {text}\n\n" for text in [*events, "[DONE]"]).encode()
    record = to_record(question, 0, [(5_000_000, head + body)], None, keep_text=True)
    found = timing(record)
    assert found is not None and found.ttft == pytest.approx(0.005)
    assert found.tpot is None  # not 0: nothing was measured
