"""From stage results to outcomes, metrics and reports: pure, and every number with its denominator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.metrics import metrics, row_of, wilson
from harness.report import as_json, build_report, numbers_of, task_row, to_markdown
from harness.verdict import decide, verdict_of
from rtb.result import OUTCOMES, Outcome, PatchFactsApplied, ResumeKey, StageResult, UnitFacts, Verdict
from rtb.run import Machine, RunRecord, TaskRecord
from rtb.task import Category, Task, TestIds
from tests.test_task import task_document

KEY = ResumeKey(
    patch_sha256="0",
    task_digest="1",
    environment_digest="2",
    harness_version="3",
    device_class="cpu",
    stages=("unit",),
    profile="robust",
)
MACHINE = Machine(system="Linux", processor="p", cores=2, memory_bytes=1024**3)


def record(status: str = "applied", number: int = 7, category: Category = "modification", **more: Any) -> TaskRecord:
    task = Task.model_validate(
        task_document(instance_id=f"org__repo-{number}", pull_number=number, category=category)
    )
    ids = TestIds(instance_id=task.instance_id, fail_to_pass=("t.py::a", "t.py::b"), gold_runs=3, base_runs=3)
    facts = PatchFactsApplied.model_validate(
        {"status": status, "method": "strict", "reason": "why it did not apply", "sha256": "0"}
    )
    values = {"task": task, "tests": ids, "model_name_or_path": "m", "patch": facts, "key": KEY, "stages": ("unit",)}
    return TaskRecord.model_validate({**values, **more})


def unit(status: str, passed: int = 2, tampered: str | None = None) -> StageResult:
    facts = UnitFacts(expected=2, passed=passed, fail_to_pass=(passed, 2), pass_to_pass=(0, 0))
    return StageResult.model_validate(
        {"stage": "unit", "status": status, "reason": f"{passed} of 2", "unit": facts, "tampered": tampered}
    )


@pytest.mark.parametrize(
    ("patch", "stages", "outcome", "words"),
    [
        ("empty_patch", (), "empty_patch", "why"),
        ("apply_failed", (), "apply_failed", "why it did not apply"),
        ("unsafe_rejected", (), "apply_failed", "why"),
        ("applied", (unit("passed"),), "resolved", "2 of 2"),
        ("applied", (unit("failed", 1),), "unresolved", "1 of 2"),
        ("applied", (unit("error", 0),), "error", "0 of 2"),
        ("applied", (unit("inconclusive"),), "inconclusive", "2 of 2"),
        ("applied", (unit("passed", 2, "records were cut"),), "tampered", "records were cut"),
        ("applied", (unit("error", 0, "records were cut"),), "tampered", "records were cut"),
        ("applied", (), "error", "unit"),
    ],
)
def test_each_course_of_events_has_one_outcome(
    patch: str, stages: Sequence[StageResult], outcome: Outcome, words: str
) -> None:
    found, reason = decide(record(patch), stages)
    assert found == outcome
    assert words in reason


def run_record(categories: dict[str, Category], **more: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": "r", "created_at": "2025-01-01T00:00:00+00:00", "rtb_version": "0", "suite": "demo",
        "suite_digest": "0" * 64, "categories": categories, "whole_suite": True, "stages": ("unit",),
        "profile": "robust", "sandbox": "local", "predictions": "p.jsonl", "predictions_sha256": "0" * 64,
        "model_names": ("m",), "machine": MACHINE, "versions": {"rtb": "0"}, "workers": 1,
    }  # fmt: skip
    return RunRecord.model_validate({**values, **more})


def verdicts() -> list[Verdict]:
    """One of each kind: solved, half right, cheating, not applied, empty, broken machine, not submitted."""
    made = [
        verdict_of(record(number=1, category="optimization", cost_usd=0.5), [unit("passed")]),
        verdict_of(record(number=2, category="optimization"), [unit("failed", 1)]),
        verdict_of(record(number=3), [unit("passed", 2, "forged")]),
        verdict_of(record("apply_failed", number=4), []),
        verdict_of(record("empty_patch", number=5, category="new_kernel"), []),
    ]
    for number, outcome in ((6, "error"), (8, "not_submitted")):
        made.append(
            Verdict.model_validate(
                {"instance_id": f"org__repo-{number}", "model_name_or_path": "m", "category": "new_kernel",
                 "outcome": outcome, "reason": "r"}
            )
        )  # fmt: skip
    return made


def test_outcomes_add_up_and_every_denominator_is_the_suite() -> None:
    all_verdicts = verdicts()
    rec = run_record({verdict.instance_id: verdict.category for verdict in all_verdicts})
    report = build_report(rec, all_verdicts)
    assert sum(report.outcomes.values()) == report.tasks == 7
    assert set(report.outcomes) == set(OUTCOMES)
    assert report.incomplete
    document = as_json(report)
    assert document["metrics"]["success"] == pytest.approx(100 / 7)
    assert document["metrics"]["applied"] == pytest.approx(100 * 3 / 7)
    assert document["metrics"]["ftp"] == pytest.approx(100 / 7)
    # 1, 0.5, and 0 for the cheat, the misfit, the empty and the absent; the broken machine has none.
    assert document["metrics"]["utp"] == pytest.approx(100 * 1.5 / 6)
    assert report.metrics.utp.n == 6
    assert document["metrics"]["cost"] == 0.5
    assert document["metrics"]["nr"] is document["metrics"]["s_ttft"] is document["metrics"]["s_tpot"] is None
    assert document["by_category"]["optimization"]["success"] == 50.0
    assert set(document) == {"run_id", "suite", "tasks", "outcomes", "metrics", "by_category", "incomplete"}


def test_markdown_shows_every_task_with_its_reason_and_what_is_not_measured() -> None:
    all_verdicts = verdicts()
    rec = run_record({verdict.instance_id: verdict.category for verdict in all_verdicts})
    text = to_markdown(build_report(rec, all_verdicts), rec, all_verdicts, numbers_of(rec, all_verdicts))
    for verdict in all_verdicts:
        assert f"| {verdict.instance_id} | {verdict.category} | {verdict.outcome} |" in text
    assert "Incomplete" in text and "Not measured: accuracy, latency" in text and "sandbox local" in text


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (("unit",), "Not measured: accuracy, latency. Success counts the unit tests only."),
        (("accuracy",), "Not measured: unit, latency. Success counts accuracy only."),
        (("accuracy", "latency"), "Not measured: unit. Success counts accuracy and latency only."),
        (("unit", "accuracy", "latency"), None),
    ],
)
def test_a_report_says_what_success_counts(stages: tuple[str, ...], words: str | None) -> None:
    rec = run_record({}, stages=stages)
    assert [note for note in build_report(rec, []).notes if "measured" in note] == ([words] if words else [])


def test_a_cell_cannot_break_the_markdown_table() -> None:
    odd = verdict_of(record(), [unit("failed", 1).model_copy(update={"reason": "a | b\nc"})])
    rec = run_record({odd.instance_id: odd.category})
    text = to_markdown(build_report(rec, [odd]), rec, [odd], numbers_of(rec, [odd]))
    line = next(line for line in text.splitlines() if "org__repo-7" in line)
    assert r"a \| b c" in line


def test_nothing_measured_is_null_never_zero() -> None:
    found = metrics([])
    assert [getattr(found, name).value for name in type(found).model_fields] == [None] * 8


def test_a_stage_cannot_stand_twice_in_a_verdict() -> None:
    with pytest.raises(ValidationError, match="twice"):
        verdict_of(record(), [unit("passed"), unit("passed")])


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_stays_in_bounds(pair: tuple[int, int]) -> None:
    successes, n = pair
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert high - low > 0


def test_wilson_agrees_with_the_textbook_value() -> None:
    # 10 of 50: Newcombe (1998), method 3 without continuity correction, gives 0.1124 to 0.3304.
    low, high = wilson(10, 50)
    assert (round(low, 4), round(high, 4)) == (0.1124, 0.3304)


def test_an_error_has_no_share_of_tests() -> None:
    row = row_of(verdict_of(record(), []))
    assert row.outcome == "error" and row.utp is None


def test_what_was_set_aside_of_a_patch_is_shown_beside_the_reason() -> None:
    facts = {"status": "applied", "method": "strict", "reason": "", "sha256": "0"}
    flags = ("test_infrastructure_touched: conftest.py",)
    rec = record(patch=PatchFactsApplied.model_validate({**facts, "flags": flags}))
    assert task_row(verdict_of(rec, [unit("failed", 1)]))[-1].endswith(f"[set aside: {flags[0]}]")
    assert "set aside" not in task_row(verdict_of(record(), [unit("failed", 1)]))[-1]
