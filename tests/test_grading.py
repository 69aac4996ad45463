"""Who is to blame, and do the witnesses agree: the pure half of the unit stage, on made evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.evidence import UnitEvidence, UnitExec, tampering
from harness.grading import count, grade, grade_log, shortfall
from harness.pytest_log import read_log
from harness.records import JunitReport, Phase, Records, TestRecord
from rtb.task import TestIds

A, B, C = (f"tests/t.py::test_{name}" for name in "abc")
IDS = TestIds(instance_id="o__r-1", fail_to_pass=(A,), pass_to_pass=(B,), gold_runs=3, base_runs=3)


def a_test(node: str, number: int, outcome: str = "passed", **changes: Any) -> TestRecord:
    phases = tuple(
        Phase(when, outcome if when == "call" else "passed", False, 0.1, "assert 0" if when == "call" else "")
        for when in ("setup", "call", "teardown")
    )
    bad = outcome == "failed"
    record = TestRecord(
        id=node,
        number=number,
        setup="returned",
        run="raised" if bad else "returned",
        body="raised" if bad else "returned",
        raised="AssertionError" if bad else "",
        errors=(("call", "AssertionError"),) if bad else (),
        failed=("assert 0",) if bad else (),
        same_code=True,
        code_file="tests/t.py",
        phases=phases,
    )
    return replace(record, **changes)


RECORDS = Records(
    opened=True, started=True, collected=(A, B), tests=(a_test(A, 0), a_test(B, 1)), exit_status=0, ini="pytest.ini"
)
EXEC = UnitExec(
    argv=("python",),
    nonce="00",
    exit_code=0,
    timed_out=False,
    oom_killed=False,
    output_bytes=1,
    truncated=False,
    seconds=1.0,
    timeout_seconds=60.0,
    trusted=("pytest.ini", "tests/t.py"),
)
JUNIT = JunitReport(numbered={0: "PASSED", 1: "PASSED"})
OPEN = b"rtb: records open\n"


def evidence(
    records: Records = RECORDS,
    *,
    junit: JunitReport = JUNIT,
    totals: dict[str, int] | None = None,
    console: bytes = OPEN,
    **ending: Any,
) -> UnitEvidence:
    counts = {"passed": 2} if totals is None else totals
    return UnitEvidence(EXEC.model_copy(update=ending), records, junit, console, counts or None)


def failing() -> UnitEvidence:
    records = replace(RECORDS, tests=(a_test(A, 0, "failed"), a_test(B, 1)), exit_status=1)
    junit = JunitReport(numbered={0: "FAILED", 1: "PASSED"})
    return evidence(records, exit_code=1, totals={"passed": 1, "failed": 1}, junit=junit)


def test_agreement_is_a_pass() -> None:
    result = grade(IDS, evidence())
    assert (result.status, result.cause, result.tampered, result.flags) == ("passed", "passed", None, ())
    assert (result.facts.fail_to_pass, result.facts.pass_to_pass, result.facts.utp) == ((1, 1), (1, 1), 1.0)


def test_a_failure_is_a_failure_and_no_alarm() -> None:
    result = grade(IDS, failing())
    assert (result.status, result.cause, result.tampered) == ("failed", "tests", None)
    assert result.facts.not_passed == {A: ("FAILED", "assert 0")}
    assert result.reason == f"1 of 2 expected tests did not pass, first {A} (FAILED: assert 0)"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (evidence(exit_code=1), "exit code 0 but the process ended with 1"),
        (evidence(replace(RECORDS, exit_status=1)), "exit code 1 but the process ended with 0"),
        (evidence(replace(RECORDS, exit_status=None)), "before pytest had finished"),
        (evidence(replace(RECORDS, broken="a line is wrong")), "a line is wrong"),
        (evidence(replace(RECORDS, cut=True)), "added to the test records after their end"),
        (evidence(Records()), "removed or emptied"),
        (evidence(replace(RECORDS, exit_status=None), exit_code=87), "closed or replaced"),
        (evidence(totals={"passed": 1, "failed": 1}), "the console says 1 passed, our records say 2"),
        (evidence(junit=JunitReport(fault="the JUnit report is not there")), "JUnit report is not there"),
        (evidence(junit=JunitReport(numbered={0: "FAILED", 1: "PASSED"})), "FAILED in the JUnit report"),
        (evidence(junit=JunitReport(numbered={1: "PASSED"})), "absent in the JUnit report"),
        (evidence(replace(RECORDS, foreign=(C,))), "outside its own run"),
        (evidence(replace(RECORDS, ini="tox.ini")), "tox.ini"),
        (evidence(replace(RECORDS, plugins=(("p", "x/conftest.py"),))), "x/conftest.py"),
        (evidence(replace(RECORDS, replaced=(("math.isclose", "lib.py", "end"),))), "math.isclose was replaced"),
        (evidence(changed=("tests/t.py",)), "tests/t.py"),
        (evidence(replace(RECORDS, tests=(a_test(A, 0, code_file="lib.py"), a_test(B, 1)))), "is code of lib.py"),
        (evidence(replace(RECORDS, tests=(a_test(A, 0, body="not entered"), a_test(B, 1)))), "never called"),
    ],
)
def test_two_witnesses_that_disagree(changed: UnitEvidence, words: str) -> None:
    result = grade(IDS, changed)
    assert (result.status, result.cause) == ("failed", "tampered")
    assert result.tampered is not None and words in result.tampered


def test_a_failure_under_exit_code_0_is_tampering() -> None:
    records = failing().records
    lie = evidence(
        replace(records, exit_status=0), totals={"passed": 1}, junit=JunitReport(numbered={0: "FAILED", 1: "PASSED"})
    )
    assert "exit code says that all is well" in str(grade(IDS, lie).tampered)


@pytest.mark.parametrize(
    "fine",
    [
        evidence(replace(RECORDS, plugins=(("p", "/site/pytest_x.py"), ("c", "pytest.ini")))),
        evidence(replace(RECORDS, replaced=(("torch.cuda.synchronize", "pytest.ini", "end"),))),
        evidence(replace(RECORDS, tests=(a_test(A, 0, code_file="/site/x.py"), a_test(B, 1, code_file="<string>")))),
        evidence(totals={}),
        evidence(trusted=None),
        evidence(truncated=True),
        evidence(junit=replace(JUNIT, repaired=True)),
    ],
)
def test_what_is_no_tampering(fine: UnitEvidence) -> None:
    assert tampering(fine, {A, B}) is None
    assert grade(IDS, fine).status == "passed"


def test_flags_tell_and_decide_nothing() -> None:
    odd = evidence(totals={}, truncated=True, trusted=None, junit=replace(JUNIT, repaired=True))
    kinds = [flag.partition(":")[0] for flag in grade(IDS, odd).flags]
    assert kinds == ["console_cut", "console_without_totals", "junit_repaired", "trusted_paths_unknown"]


def test_a_test_that_is_not_expected_raises_no_alarm() -> None:
    odd = replace(RECORDS, tests=(*RECORDS.tests, a_test(C, 2, body="not entered")))
    junit = JunitReport(numbered={0: "PASSED", 1: "PASSED", 2: "PASSED"})
    assert tampering(evidence(odd, junit=junit, totals={"passed": 3}), {A, B}) is None
    assert tampering(evidence(odd, junit=junit, totals={"passed": 3}), None) is not None


UNFINISHED = replace(RECORDS, exit_status=None, running=B, tests=(a_test(A, 0),))


@pytest.mark.parametrize(
    ("changed", "cause", "words"),
    [
        (evidence(UNFINISHED, exit_code=None, timed_out=True), "timeout", f"60 s was reached in {B}; 1 tests"),
        (evidence(UNFINISHED, exit_code=-9, oom_killed=True), "memory", "memory than the sandbox has; killed in"),
        (evidence(UNFINISHED, exit_code=-9, disk_killed=True), "disk", "disk than the sandbox has; killed in"),
        (evidence(UNFINISHED, exit_code=-11), "crash", f"in {B} with SIGSEGV"),
        (evidence(UNFINISHED, exit_code=139), "crash", "SIGSEGV"),
        (evidence(UNFINISHED, exit_code=7), "crash", "exit code 7"),
        (evidence(UNFINISHED, exit_code=86), "disk", "disk was full"),
        (evidence(replace(UNFINISHED, exit_status=0, stopped_by="Exit")), "crash", f"stopped in {B} by Exit"),
        (
            evidence(
                replace(RECORDS, tests=(), exit_status=2, collect_errors={"t.py": "x\nE   Bad: y"}), exit_code=2
            ),
            "collection",
            "collection error in t.py: Bad: y",
        ),
        (
            evidence(Records(opened=True, conftest_error=("c.py", "ImportError: z")), exit_code=4),
            "collection",
            "c.py could not be imported: ImportError: z",
        ),
        (evidence(Records(opened=True), exit_code=-6), "crash", "outside any test with SIGABRT"),
        (evidence(replace(RECORDS, internal_error="INTERNAL\nboom", exit_status=3), exit_code=3), "crash", "boom"),
        (evidence(replace(RECORDS, collected=(), tests=(), exit_status=5), exit_code=5), "collection", "no test was"),
        (
            evidence(
                replace(RECORDS, collected=(), tests=(), exit_status=5, collect_skips={"t.py": "no GPU"}), exit_code=5
            ),
            "collection",
            "t.py was skipped as a whole: no GPU",
        ),
    ],
)
def test_the_patch_is_to_blame(changed: UnitEvidence, cause: str, words: str) -> None:
    result = grade(IDS, changed)
    assert (result.status, result.cause, result.tampered) == ("failed", cause, None)
    assert words in result.reason


def test_where_it_ended_and_what_is_missing() -> None:
    crash = grade(IDS, evidence(UNFINISHED, exit_code=-11))
    assert (crash.ended_in, crash.statuses[B], crash.missing) == (B, "ERROR", ())
    timeout = grade(IDS, evidence(UNFINISHED, exit_code=None, timed_out=True))
    assert (timeout.ended_in, timeout.missing, timeout.facts.timed_out) == (B, (B,), True)
    assert timeout.facts.passed == 1


@pytest.mark.parametrize(
    ("code", "console", "words"),
    [
        (90, b"rtb: pytest cannot be imported in this environment: No module named 'pytest'", "pytest is missing"),
        (1, b"/x/python: No module named pytest", "pytest is missing"),
        (91, b"rtb: the plan on standard input cannot be read: x", "plan on standard input"),
        (92, b"rtb: the environment's pytest plugin 'x' cannot be loaded: y", "plugin of the environment"),
        (93, b"rtb: the record file cannot be opened: y", "record file cannot be opened"),
        (127, b"sh: python: not found", "Python did not start (exit code 127): sh: python: not found"),
        (None, b"", "had not started within 60 s"),
    ],
)
def test_the_machine_is_to_blame(code: int | None, console: bytes, words: str) -> None:
    result = grade(IDS, evidence(Records(), console=console, exit_code=code, timed_out=code is None))
    assert (result.status, result.cause, result.tampered) == ("error", "machine", None)
    assert words in result.reason


def test_a_command_that_pytest_refuses_is_the_tasks() -> None:
    said = OPEN + b"ERROR: usage: x\npytest: error: unrecognized arguments: --odd\n  rootdir: /x\n"
    result = grade(IDS, evidence(Records(opened=True), console=said, exit_code=4))
    assert (result.status, result.cause) == ("error", "machine") and "--odd" in result.reason
    said = OPEN + b"ERROR: not found: /x/t.py::test_nope\n"
    records = Records(opened=True, started=True, collected=(), exit_status=4)
    result = grade(IDS, evidence(records, console=said, exit_code=4))
    assert (result.status, result.cause) == ("error", "machine") and "test_nope" in result.reason


def test_skipped_and_expected_failures_are_said_in_words() -> None:
    for status, words in (("SKIPPED", "was skipped"), ("XFAIL", "expected to fail"), ("XPASS", "XPASS")):
        facts = count(IDS, {A: status, B: "PASSED"}, {}, exit_code=0, timed_out=False)  # type: ignore[dict-item]
        assert facts.passed == 1 and words in shortfall(facts)


def test_a_log_alone_is_graded_by_its_totals() -> None:
    start = "= test session starts =\n"
    log = read_log(f"{start}= short test summary info =\nPASSED {A}\nPASSED {B}\n== 2 passed in 1s ==")
    assert grade_log(IDS, log, 0).status == "passed"
    cut = read_log(f"{start}{A} PASSED [ 50%]\n{B} ", (A, B))
    assert (grade_log(IDS, cut, -9).cause, grade_log(IDS, cut, 124).cause) == ("crash", "timeout")
    assert grade_log(IDS, read_log("nothing at all"), 1).cause == "machine"
