"""What a sabotage twin's runs show: every test that notices gold made wrong must notice a prediction made wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.evidence import UnitEvidence, UnitExec
from harness.records import JunitReport, Phase, Records, TestRecord
from harness.twin import decide_twin, not_reached, with_noticed
from rtb.run import TwinPlan
from rtb.task import TestIds

A, B, C = (f"tests/t.py::test_{name}" for name in "abc")
PLAN = TwinPlan(sabotaged=("lib.py::double",))
EXEC = UnitExec(
    argv=("python",), nonce="00", exit_code=1, timed_out=False, oom_killed=False, output_bytes=1, truncated=False,
    seconds=1.0, timeout_seconds=60.0,
)  # fmt: skip


def ids_noticed_by(*names: str) -> TestIds:
    return TestIds(
        instance_id="org__repo-1", fail_to_pass=(A, B, C), gold_runs=3, base_runs=3,
        twin="noticed", twin_noticed_by=names,
    )  # fmt: skip


def a_round(died_in: str | None = None, **outcomes: str) -> UnitEvidence:
    """One run of the twin: `a="failed"`, in order; `died_in` began and never ended."""
    done = [
        TestRecord(
            id=f"tests/t.py::test_{name}", number=number, setup="", run="", body="none", raised="", errors=(),
            failed=(), same_code=True, code_file="tests/t.py",
            phases=tuple(
                Phase(when, outcome if when == "call" else "passed", False, 0.1)
                for when in ("setup", "call", "teardown")
            ),
        )
        for number, (name, outcome) in enumerate(outcomes.items())
    ]  # fmt: skip
    records = Records(opened=True, started=True, collected=(A, B, C), tests=tuple(done))
    records = replace(records, running=died_in) if died_in else replace(records, exit_status=1)
    return UnitEvidence(EXEC, records, JunitReport(), b"rtb: records open\n", None)


def test_a_pass_in_spite_of_a_wrong_target_is_named() -> None:
    facts = decide_twin(PLAN, ids_noticed_by(A, B), [a_round(a="failed", b="passed")])
    assert facts is not None and facts.state == "unnoticed"
    assert f"1 of 2 tests that must notice it pass all the same, first {B}" in facts.reason


def test_all_tests_that_notice_gold_must_notice() -> None:
    facts = decide_twin(PLAN, ids_noticed_by(A, B), [a_round(a="failed", b="failed", c="passed")])
    assert facts is not None and facts.state == "noticed", facts


@pytest.mark.parametrize(("later", "state"), [((a_round(b="failed"),), "noticed"), ((), "unnoticed")])
def test_tests_behind_one_in_which_the_process_died_are_run_again(
    later: tuple[UnitEvidence, ...], state: str
) -> None:
    first = a_round(died_in=A)
    assert not_reached((A, B), first) == {B}
    facts = decide_twin(PLAN, ids_noticed_by(A, B), [first, *later])
    assert facts is not None and facts.state == state
    assert state == "noticed" or f"ended before {B} (1 of 2 were not run)" in facts.reason


def test_a_skipped_test_has_noticed_nothing() -> None:
    facts = decide_twin(PLAN, ids_noticed_by(A), [a_round(a="skipped")])
    assert facts is not None and facts.state == "unnoticed"


def test_without_a_list_one_failure_is_enough() -> None:
    tests = ids_noticed_by().model_copy(update={"twin": None})
    facts = decide_twin(PLAN, tests, [a_round(a="passed", b="failed")])
    assert facts is not None and (facts.state, B in facts.reason) == ("noticed", True)


def test_golds_own_twin_makes_the_list() -> None:
    tests = with_noticed(ids_noticed_by(C), [a_round(a="passed", b="failed", died_in=C)])
    assert (tests.twin, tests.twin_noticed_by) == ("noticed", (B, C))
    assert with_noticed(tests, [a_round(a="passed", b="passed", c="passed")]).twin == "unnoticed"
