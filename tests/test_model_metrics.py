"""NR, S_TTFT and S_TPOT from verdicts: on which tasks they stand, and that a gap is never a number."""

from __future__ import annotations

import pytest

from harness.metrics import metrics, row_of
from harness.profiles import PROFILES, row_under
from harness.report import task_row
from rtb.result import (
    CoverageFacts,
    LatencyFacts,
    PatchFactsApplied,
    RatioFacts,
    StageResult,
    Status,
    UnitFacts,
    Verdict,
)


def ratio(value: float) -> RatioFacts:
    return RatioFacts(
        pairs=4, estimate=value, low=value, high=value, deviation=0.0, threshold=0.98, decision="passed",
        gold_seconds=1.0, model_seconds=1.0 / value,
    )  # fmt: skip


def verdict(
    passed: int = 10, accuracy: Status | None = "passed", ttft: float | None = 1.0, outcome: str = "resolved"
) -> Verdict:
    facts = UnitFacts(expected=10, passed=passed, fail_to_pass=(passed, 10), pass_to_pass=(0, 0))
    stages = [StageResult(stage="unit", status="passed", reason="", unit=facts)]
    if accuracy is not None:
        stages.append(StageResult(stage="accuracy", status=accuracy, reason=""))
    if ttft is not None:
        latency = LatencyFacts(
            ratios={"s_ttft": ratio(ttft), "s_tpot": ratio(2.0)}, requests=1, looks=(4,), robust="passed"
        )
        stages.append(StageResult(stage="latency", status="passed", reason="", latency=latency))
    return Verdict.model_validate(
        {
            "instance_id": "a__b-1", "model_name_or_path": "m", "category": "optimization", "outcome": outcome,
            "reason": "", "stages": stages,
        }
    )  # fmt: skip


def test_they_stand_on_tasks_that_passed_all_unit_tests_and_have_a_result() -> None:
    found = metrics(
        row_of(item)
        for item in (
            verdict(ttft=0.9),
            verdict(accuracy="failed", ttft=1.3),
            verdict(passed=9, accuracy="passed", ttft=50.0),
            verdict(accuracy=None, ttft=None),
            verdict(accuracy="error", ttft=None),
            verdict(ttft=70.0, outcome="tampered"),
        )
    )
    assert (found.nr.value, found.nr.n) == (50.0, 2)
    assert (found.s_ttft.value, found.s_ttft.n) == (pytest.approx(1.1), 2)
    assert (found.s_tpot.value, found.s_tpot.n) == (pytest.approx(2.0), 2)


def test_nothing_measured_is_null_and_not_zero() -> None:
    found = metrics([row_of(verdict(accuracy=None, ttft=None))])
    assert (found.nr.value, found.s_ttft.value, found.s_tpot.value) == (None, None, None)


def without_unit(ttft: float, **more: object) -> Verdict:
    whole = verdict(ttft=ttft)
    patch = PatchFactsApplied(status="applied", method="strict", reason="", sha256="0" * 64)
    return whole.model_copy(update={"stages": whole.stages[1:], "patch": patch, **more})


def test_a_run_without_the_unit_stage_says_nothing_about_tests_and_all_about_what_it_measured() -> None:
    empty = {"stages": (), "patch": None, "outcome": "empty_patch"}
    rows = [without_unit(0.9), without_unit(1.1), without_unit(5.0, outcome="tampered"), without_unit(1.0, **empty)]
    found = metrics(row_of(item, unit=False) for item in rows)
    assert (found.ftp.value, found.ftp.n, found.utp.value, found.utp.n) == (None, 0, None, 0)
    assert (found.success.value, found.nr.value, found.nr.n) == (50.0, 100.0, 2)
    assert (found.s_ttft.value, found.s_ttft.n) == (pytest.approx(1.0), 2)
    for profile in PROFILES:
        assert row_under(rows[1], profile, unit=False).s_tpot == (None if profile == "paper" else 2.0)
        assert row_under(rows[2], profile, unit=False).s_tpot is None


def test_a_stage_that_never_launched_the_target_says_so_in_the_task_s_line() -> None:
    plain = verdict()
    trace = CoverageFacts(state="uncovered", reason="uncovered: the stage never launched pkg/k.py::kernel")
    stages = (plain.stages[0], plain.stages[1].model_copy(update={"coverage": trace}), *plain.stages[2:])
    assert "uncovered" not in task_row(plain)[-1]
    line = task_row(plain.model_copy(update={"stages": stages}))[-1]
    assert line.endswith("[accuracy uncovered: the stage never launched pkg/k.py::kernel]")
