"""The witnesses of one unit run side by side, and where two of them disagree. Pure.

Witnesses: our records, the exit code, pytest's JUnit file, the totals line of the console, the plugins that were
loaded, and the test files' bytes before and after. A pass needs all of them to agree.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass

from harness.records import JunitReport, Records, TestRecord
from rtb.task import Frozen

RECORDS_OPEN = b"rtb: records open"
EXIT_RECORDS_FULL = 86
EXIT_RECORDS_LOST = 87
EXIT_NO_PYTEST = 90
EXIT_BAD_PLAN = 91
EXIT_NO_PLUGIN = 92
EXIT_NO_RECORDS = 93


class UnitExec(Frozen):
    """exec.json: how the command was run and how it ended. The sha256 are of the raw files as they were kept.

    `trusted` holds the paths of the tree that come from the trusted side (null: not known); `changed` those test
    files whose bytes were others after the run, `oversized` those raw files that were too large to keep. `exit_code`
    is null when the time limit was reached.
    """

    argv: tuple[str, ...]
    nonce: str
    exit_code: int | None
    timed_out: bool
    oom_killed: bool
    disk_killed: bool = False
    output_bytes: int
    truncated: bool
    seconds: float
    timeout_seconds: float
    trusted: tuple[str, ...] | None = None
    changed: tuple[str, ...] = ()
    oversized: tuple[str, ...] = ()
    records_sha256: str | None = None
    junit_sha256: str | None = None


@dataclass(frozen=True)
class UnitEvidence:
    """All that is known of a run. `totals` are the counts of the console's last totals line."""

    exec: UnitExec
    records: Records
    junit: JunitReport
    console: bytes
    totals: dict[str, int] | None

    @property
    def said_open(self) -> bool:
        """The console (which the sandbox cannot rewrite) says that our record file was open."""
        return RECORDS_OPEN in self.console[:65536]

    @property
    def signal_name(self) -> str | None:
        """The signal that ended the command, from either form of exit code."""
        code = self.exec.exit_code
        number = -code if code is not None and code < 0 else (code or 0) - 128
        return signal.Signals(number).name if number in set(signal.Signals) else None


def tampering(evidence: UnitEvidence, expected: Collection[str] | None) -> str | None:
    """Why the evidence cannot be believed, or None. `expected` limits the per-test checks; None checks all."""
    return (
        _file_damage(evidence)
        or _ending(evidence)
        or _strangers(evidence)
        or _tests(evidence, expected)
        or _junit(evidence)
        or _totals(evidence)
    )


def _file_damage(evidence: UnitEvidence) -> str | None:
    records = evidence.records
    if evidence.exec.changed:
        return f"a test file was changed while the tests ran: {evidence.exec.changed[0]}"
    if evidence.exec.oversized:
        return f"the file of the {evidence.exec.oversized[0]} was blown up: pytest and our plugin never write so much"
    if records.broken:
        return records.broken
    if evidence.said_open and not records.opened:
        return "the test records were removed or emptied while the tests ran"
    if records.cut and records.finished:
        return "something was added to the test records after their end"
    if evidence.exec.exit_code == EXIT_RECORDS_LOST and records.opened and not records.finished:
        return f"the descriptor of the test records was closed or replaced in {records.running or 'the session'}"
    return None


def _ending(evidence: UnitEvidence) -> str | None:
    records, code = evidence.records, evidence.exec.exit_code
    if not records.opened:
        return None
    if not records.finished:
        if code == 0:
            where = f"in {records.running}" if records.running else "outside any test"
            return f"the process ended with exit code 0 {where} before pytest had finished"
        return None
    if code != records.exit_status:
        return f"pytest finished with exit code {records.exit_status} but the process ended with {code}"
    if code == 0:
        bad = next((test for test, status in records.statuses.items() if status in ("FAILED", "ERROR")), None)
        bad = bad or next(iter(records.collect_errors), None)
        if bad is not None:
            return f"the exit code says that all is well but {bad} failed"
    return None


def _strangers(evidence: UnitEvidence) -> str | None:
    records, trusted = evidence.records, evidence.exec.trusted
    for name, file, where in records.replaced:
        known = file in trusted if trusted is not None else file.endswith("conftest.py")
        if not known:
            return f"{name} was replaced by code of {file} (seen after {where})"
    if records.foreign:
        return f"a report was logged for {records.foreign[0]} outside its own run"
    if trusted is None:
        return None
    for name, file in records.plugins:
        if _in_tree(file) and file not in trusted:
            named = "" if file in name else f" ({name})"
            return f"pytest loaded {file} as a plugin{named}, which is not from the trusted side"
    if _in_tree(records.ini) and records.ini not in trusted:
        return f"pytest was configured by {records.ini}, which is not from the trusted side"
    return None


def _in_tree(file: str) -> bool:
    # The worker makes paths below the tree relative; all others are absolute.
    return bool(file) and not file.startswith("/")


def _tests(evidence: UnitEvidence, expected: Collection[str] | None) -> str | None:
    for test in evidence.records.tests:
        if expected is None or test.id in expected:
            reason = test.contradiction or _foreign_code(test, evidence.exec.trusted)
            if reason is not None:
                return f"{test.id}: {reason}"
    return None


def _foreign_code(test: TestRecord, trusted: Collection[str] | None) -> str | None:
    file = test.code_file
    if trusted is None or not _in_tree(file) or file.startswith("<") or file in trusted:
        return None
    return f"its function is code of {file}, which is not from the trusted side"


def _junit(evidence: UnitEvidence) -> str | None:
    records, junit = evidence.records, evidence.junit
    if not records.finished or not records.tests or records.stopped_by is not None:
        return None
    if junit.fault:
        return f"pytest finished, but {junit.fault}"
    for test in records.tests:
        other = junit.numbered.get(test.number)
        if test.status == "XPASS":
            continue  # JUnit has no word for it
        if (test.status == "PASSED") != (other == "PASSED"):
            return f"{test.id}: {test.status} in our records, {other or 'absent'} in the JUnit report"
    return None


def _totals(evidence: UnitEvidence) -> str | None:
    records = evidence.records
    if not records.finished or evidence.totals is None or not records.tests or records.stopped_by is not None:
        return None
    passed = sum(
        1
        for test in records.tests
        for phase in test.phases
        if phase.when == "call" and phase.outcome == "passed" and not phase.xfail
    )
    said = evidence.totals.get("passed", 0)
    if said != passed:
        return f"the console says {said} passed, our records say {passed}"
    return None
