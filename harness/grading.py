"""Unit grade: which expected ids passed, and whose fault it is when they did not. Pure.

A fault of the machine or of the task gives `error`; a fault of the patch gives `failed`; evidence that contradicts
itself gives `failed` with `tampered`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.evidence import (
    EXIT_BAD_PLAN,
    EXIT_NO_PLUGIN,
    EXIT_NO_PYTEST,
    EXIT_NO_RECORDS,
    EXIT_RECORDS_FULL,
    UnitEvidence,
    tampering,
)
from harness.pytest_log import PytestLog, decode, plain, read_log
from rtb.result import TestStatus, UnitFacts
from rtb.task import TestIds

Cause = Literal["passed", "tests", "collection", "timeout", "crash", "memory", "disk", "tampered", "machine"]
_USAGE_ERROR = 4


@dataclass(frozen=True)
class UnitGrade:
    """The grade of one run. `ended_in` is the test in which the process died or the time limit was reached."""

    status: Literal["passed", "failed", "error"]
    cause: Cause
    reason: str
    facts: UnitFacts
    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    ended_in: str | None = None
    tampered: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Why a run did not end as it should, and whose fault that is."""

    cause: Cause
    reason: str
    ended_in: str | None = None


def grade(tests: TestIds, evidence: UnitEvidence) -> UnitGrade:
    """Grade a run by its evidence."""
    statuses: dict[str, TestStatus] = dict(evidence.records.statuses)
    messages = evidence.records.messages
    fault = machine_fault(evidence)
    tampered = None if fault else tampering(evidence, frozenset(tests.expected))
    if tampered is not None:
        fault = Fault("tampered", tampered)
    fault = fault or patch_fault(evidence)
    if fault is not None and fault.cause in ("crash", "memory", "disk") and fault.ended_in:
        statuses[fault.ended_in], messages[fault.ended_in] = "ERROR", fault.reason
    return _grade(tests, statuses, messages, fault, evidence.exec.exit_code, _flags(evidence))


def _grade(
    tests: TestIds,
    statuses: Mapping[str, TestStatus],
    messages: Mapping[str, str],
    fault: Fault | None,
    exit_code: int | None,
    flags: tuple[str, ...] = (),
) -> UnitGrade:
    facts = count(tests, statuses, messages, exit_code=exit_code, timed_out=bool(fault and fault.cause == "timeout"))
    missing = tuple(node for node in tests.expected if node not in statuses)
    if fault is None and facts.passed == facts.expected:
        reason = f"all {facts.expected} expected tests passed"
        return UnitGrade("passed", "passed", reason, facts, statuses, flags=flags)
    if fault is None:
        fault = Fault("tests", shortfall(facts))
    return UnitGrade(
        status="error" if fault.cause == "machine" else "failed",
        cause=fault.cause,
        reason=fault.reason,
        facts=facts,
        statuses=statuses,
        missing=missing,
        ended_in=fault.ended_in,
        tampered=fault.reason if fault.cause == "tampered" else None,
        flags=flags,
    )


def count(
    tests: TestIds,
    statuses: Mapping[str, TestStatus],
    messages: Mapping[str, str],
    *,
    exit_code: int | None,
    timed_out: bool,
) -> UnitFacts:
    """The numbers of a run by expected id. Absent, skipped, xfailed, xpassed and errored are not passed."""
    expected, known = tests.expected, frozenset(tests.expected)
    passed = {node for node in expected if statuses.get(node) == "PASSED"}
    not_passed: dict[str, tuple[TestStatus, str]] = {
        node: (statuses.get(node, "MISSING"), messages.get(node, "")) for node in expected if node not in passed
    }
    extra = Counter(status for node, status in statuses.items() if node not in known)
    return UnitFacts(
        expected=len(expected),
        passed=len(passed),
        fail_to_pass=(len(passed.intersection(tests.fail_to_pass)), len(tests.fail_to_pass)),
        pass_to_pass=(len(passed.intersection(tests.pass_to_pass)), len(tests.pass_to_pass)),
        not_passed=not_passed,
        extra=dict(sorted(extra.items())),
        exit_code=exit_code,
        timed_out=timed_out,
    )


def shortfall(facts: UnitFacts) -> str:
    """One sentence on the expected tests that did not pass; the first is named."""
    if not facts.not_passed:
        return f"all {facts.expected} expected tests passed"
    node, (status, message) = next(iter(facts.not_passed.items()))
    said = f": {message[:160]}" if message else ""
    verb = {"MISSING": "was not run", "SKIPPED": "was skipped", "XFAIL": "is marked as expected to fail"}.get(
        status, status
    )
    missed = len(facts.not_passed)
    return f"{missed} of {facts.expected} expected tests did not pass, first {node} ({verb}{said})"


def machine_fault(evidence: UnitEvidence) -> Fault | None:
    """A fault of the machine, the environment or the task's own command: nothing of the patch had run, or pytest
    did not understand what we asked of it."""
    records, code = evidence.records, evidence.exec.exit_code
    if not records.opened:
        if evidence.said_open or records.broken:
            return None
        return Fault("machine", _never_started(code, evidence))
    if code != _USAGE_ERROR or records.conftest_error or records.tests:
        return None
    log = read_log(evidence.console)
    if log.not_found:
        return Fault("machine", f"the task's command names a test that is not there: {log.not_found[0]}")
    if records.started and records.exit_status == _USAGE_ERROR and not records.collect_errors:
        return Fault("machine", f"pytest did not accept the task's command: {_last_line(evidence.console)}")
    return None if records.started else Fault("machine", f"pytest did not start: {_last_line(evidence.console)}")


def _never_started(code: int | None, evidence: UnitEvidence) -> str:
    said = _last_line(evidence.console)
    if code == EXIT_NO_PYTEST or read_log(evidence.console).no_pytest:
        return f"pytest is missing in the environment: {said}"
    if code == EXIT_NO_PLUGIN:
        return f"a pytest plugin of the environment is missing: {said}"
    if code in (EXIT_BAD_PLAN, EXIT_NO_RECORDS):
        return said
    if code is None:
        return f"Python had not started within {evidence.exec.timeout_seconds:g} s"
    return f"Python did not start (exit code {code}): {said}"


def _last_line(console: bytes) -> str:
    lines = [line.strip() for line in plain(decode(console[-8192:])).splitlines() if line.strip()]
    # pytest's own words, where there are any, say more than what follows them.
    said = [line for line in lines if re.match(r"ERROR: (?!usage)|rtb: (?!records)|.*: error: ", line)]
    return (said or lines or ["it printed nothing"])[-1][:300]


def patch_fault(evidence: UnitEvidence) -> Fault | None:
    """How a run that started ended early, or None when pytest ended by itself and collected what it was given."""
    records, code, where = evidence.records, evidence.exec.exit_code, evidence.records.running
    place = f"in {where}" if where else "outside any test"
    if evidence.exec.timed_out:
        limit = f"the time limit of {evidence.exec.timeout_seconds:g} s was reached {place}"
        return Fault("timeout", f"{limit}; {len(records.tests)} tests had ended", where)
    if evidence.exec.oom_killed:
        return Fault("memory", f"the tests needed more memory than the sandbox has; killed {place}", where)
    if evidence.exec.disk_killed:
        return Fault("disk", f"the tests wrote more to the disk than the sandbox has; killed {place}", where)
    if records.conftest_error is not None:
        path, text = records.conftest_error
        return Fault("collection", f"{path or 'a conftest file'} could not be imported: {_last_words(text)}")
    if not records.finished:
        if code == EXIT_RECORDS_FULL:
            return Fault("disk", f"the sandbox's disk was full {place}: no record could be written", where)
        how = evidence.signal_name or f"exit code {code}"
        return Fault("crash", f"the test process ended {place} with {how}", where)
    if records.stopped_by is not None:
        return Fault("crash", f"pytest was stopped {place} by {records.stopped_by}", where)
    if records.internal_error is not None:
        return Fault("crash", f"pytest stopped with an internal error: {_last_words(records.internal_error)}")
    if records.collect_errors:
        file, text = next(iter(records.collect_errors.items()))
        return Fault("collection", f"collection error in {file}: {_last_words(text)}")
    if not records.collected and records.collect_skips:
        file, text = next(iter(records.collect_skips.items()))
        return Fault("collection", f"{file} was skipped as a whole: {text}")
    return None if records.collected else Fault("collection", "no test was collected")


def _last_words(text: str) -> str:
    lines = [line.removeprefix("E ").strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no reason was given"])[-1][:200]


def _flags(evidence: UnitEvidence) -> tuple[str, ...]:
    """What a reader should know and what decides nothing."""
    flags = []
    if evidence.exec.truncated:
        flags.append("console_cut: the output was longer than its limit")
    if evidence.records.finished and evidence.totals is None:
        flags.append("console_without_totals: pytest's last line is not in the console log")
    if evidence.junit.repaired:
        flags.append("junit_repaired: illegal control characters were dropped")
    if evidence.exec.trusted is None:
        flags.append("trusted_paths_unknown: conftest files and plugins were not checked")
    return tuple(flags)


def grade_log(tests: TestIds, log: PytestLog, exit_code: int | None) -> UnitGrade:
    """Grade by a console log and an exit code alone, for logs that came without records.

    Weaker than `grade` (any test can print any line), so it serves to explain and to read logs of others.
    """
    statuses = dict(log.statuses)
    fault = _log_fault(tests.expected, log, exit_code)
    if fault is not None and fault.cause == "crash" and fault.ended_in:
        statuses[fault.ended_in] = "ERROR"
    result = _grade(tests, statuses, {}, fault, exit_code)
    if result.cause == "tests" and result.missing and log.skips_without_ids:
        reason = f"{len(result.missing)} missing ({log.skips_without_ids} skips without ids): {result.missing[0]}"
        return UnitGrade("failed", "tests", reason, result.facts, statuses, result.missing)
    return result


def _log_fault(expected: Sequence[str], log: PytestLog, code: int | None) -> Fault | None:
    if log.no_pytest:
        return Fault("machine", "pytest is missing in the image")
    if log.not_found:
        reason = f"an id on the command line does not exist ({log.not_found[0]}): not graded, run by file"
        return Fault("machine", reason)
    if code == 124 or code is None:
        return Fault("timeout", f"the time limit was reached in {log.running or 'the session'}", log.running)
    if log.file_errors and not log.statuses:
        return Fault("collection", f"collection error in {log.file_errors[0]}")
    if log.counts is None:
        if not log.has_start and not log.has_summary:
            return Fault("machine", "the log holds no pytest session")
        return Fault("crash", f"the log ends in {log.running or 'the session'} (exit code {code})", log.running)
    seen = sum(node in log.statuses for node in expected)
    if sum(log.counts.values()) and not log.statuses and not log.skips_without_ids:
        return Fault("machine", "the log has totals but no line per test: run pytest with -rA")
    if not log.has_summary and not log.has_start and seen < len(expected):
        return Fault("machine", f"log truncated (no summary header; {seen} of {len(expected)})")
    return None
