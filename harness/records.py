"""What the sandbox left of a test run, read on the host: bytes in, frozen facts out. Pure.

Three files: our plugin's records (a chain of signed lines), pytest's JUnit XML, and the console log (pytest_log).
Nothing here decides a grade; `grading` does.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any
from xml.etree import ElementTree

from pydantic import TypeAdapter, ValidationError

from rtb.foreign_json import read_foreign_json
from rtb.result import TestStatus

# Worst first: a test seen twice has the worst of its statuses.
SEVERITY: tuple[TestStatus, ...] = ("ERROR", "FAILED", "SKIPPED", "XFAIL", "XPASS", "PASSED")


def worse(one: TestStatus | None, two: TestStatus) -> TestStatus:
    """The worse of two statuses of one id."""
    return two if one is None else min(one, two, key=SEVERITY.index)


@dataclass(frozen=True)
class Phase:
    """One phase as pytest's report tells it. `seconds` is its duration."""

    when: str
    outcome: str
    xfail: bool
    seconds: float
    message: str = ""
    text: str = ""


@dataclass(frozen=True)
class TestRecord:
    """One test: its reports, and what our plugin saw of it itself.

    `run` is what `item.runtest` did ("" when it was not called), `body` what the test's own function did: "none" (no
    function to watch), "not entered", "entered" (and never left), "returned", "raised".
    """

    __test__ = False

    id: str
    number: int
    setup: str
    run: str
    body: str
    raised: str
    errors: tuple[tuple[str, str], ...]  # phase and type of each exception that pytest met
    failed: tuple[str, ...]  # messages of the failed reports of the call, subtests among them
    same_code: bool
    code_file: str  # where the function, without its decorators, was written; "" when not known
    phases: tuple[Phase, ...]

    def phase(self, when: str) -> Phase | None:
        """The report of a phase, or None when the phase was not reached."""
        return next((phase for phase in self.phases if phase.when == when), None)

    @cached_property
    def status(self) -> TestStatus:
        """By the reports alone: passed only when the call passed, nothing was expected to fail, and setup and
        teardown were clean."""
        failed = [phase.when for phase in self.phases if phase.outcome == "failed"]
        if failed or self.failed:
            return "FAILED" if not failed or failed == ["call"] else "ERROR"
        skipped = next((phase for phase in self.phases if phase.outcome == "skipped"), None)
        if skipped is not None:
            return "XFAIL" if skipped.xfail else "SKIPPED"
        call = self.phase("call")
        if call is None or call.outcome != "passed":
            return "ERROR"
        return "XPASS" if call.xfail else "PASSED"

    @property
    def message(self) -> str:
        """One line that says why it did not pass."""
        bad = [phase for phase in self.phases if phase.outcome != "passed" or phase.xfail]
        lines = (bad[0].message if bad else "\n".join(self.failed)).strip().splitlines()
        return lines[0] if lines else ""

    @property
    def contradiction(self) -> str | None:
        """Why a pass in the reports cannot be believed, or None."""
        if self.status != "PASSED":
            return None
        if self.run == "":
            return "reported as passed, but the test was never run"
        if self.body == "not entered":
            return "reported as passed, but its function was never called"
        if self.body == "entered":
            return "reported as passed, but its function never returned"
        if self.body == "raised":
            return f"reported as passed, but its function raised {self.raised}"
        if self.run == "raised":
            return "reported as passed, but running it raised an exception"
        if self.setup != "returned":
            return "reported as passed, but its set-up did not end"
        if self.errors:
            when, kind = self.errors[0]
            return f"reported as passed, but {kind} was raised at {when}"
        if not self.same_code:
            return "the code of the test function was replaced after collection"
        return None


@dataclass(frozen=True)
class Records:
    """The record file. `broken` says why the chain cannot be believed; `cut` that the last line is half a line."""

    opened: bool = False
    started: bool = False
    broken: str | None = None
    cut: bool = False
    pytest_version: str = ""
    ini: str = ""
    collected: tuple[str, ...] | None = None
    collect_errors: Mapping[str, str] = field(default_factory=dict)
    collect_skips: Mapping[str, str] = field(default_factory=dict)
    conftest_error: tuple[str, str] | None = None
    internal_error: str | None = None
    tests: tuple[TestRecord, ...] = ()
    running: str | None = None  # began and never ended
    stopped_by: str | None = None  # the exception that ended the session in the middle of `running`
    plugins: tuple[tuple[str, str], ...] = ()
    replaced: tuple[tuple[str, str, str], ...] = ()  # name, file, where seen
    foreign: tuple[str, ...] = ()
    exit_status: int | None = None  # None: the session never finished

    @property
    def finished(self) -> bool:
        """True when pytest ended by itself and said so."""
        return self.exit_status is not None

    @cached_property
    def statuses(self) -> dict[str, TestStatus]:
        """Status by node id, the worst where an id ran twice."""
        found: dict[str, TestStatus] = {}
        for test in self.tests:
            found[test.id] = worse(found.get(test.id), test.status)
        return found

    @property
    def messages(self) -> dict[str, str]:
        """Why each id that did not pass did not."""
        return {test.id: test.message for test in self.tests if test.status != "PASSED"}


def read_records(data: bytes, nonce: str) -> Records:
    """Read and check the record file. Never raises on content: what is wrong is in `broken` and `cut`."""
    lines = data.split(b"\n")
    tail = lines.pop()
    keyed, chain = hmac.new(bytes.fromhex(nonce), digestmod=hashlib.sha256), b""
    payloads: list[bytes] = []
    broken = None
    for number, line in enumerate(lines):
        payload, _, mac = line.rpartition(b"\t")
        expected = keyed.copy()
        expected.update(chain + payload)
        if expected.hexdigest().encode() != mac:
            broken = f"line {number + 1} of the test records does not carry our signature"
            break
        chain = mac
        payloads.append(payload)
    try:
        return _assemble(read_foreign_json(b"[" + b",".join(payloads) + b"]"), broken=broken, cut=bool(tail))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (KeyError, TypeError, ValueError) as error:
        why = repr(error)[:200]
    return Records(opened=True, broken=f"the test records are signed but not of our form ({why})")


def _assemble(lines: list[dict[str, Any]], *, broken: str | None, cut: bool) -> Records:
    facts: dict[str, Any] = {"broken": broken, "cut": cut}
    tests: list[dict[str, Any]] = []
    collect_errors: dict[str, str] = {}
    collect_skips: dict[str, str] = {}
    plugins: set[tuple[str, str]] = set()
    replaced: list[tuple[str, str, str]] = []
    running: str | None = None
    for line in lines:
        kind = line["kind"]
        if kind == "open":
            facts["opened"] = True
        elif kind == "start":
            facts |= {"started": True, "pytest_version": line["pytest"], "ini": line["ini"]}
        elif kind == "collect_error":
            collect_errors[line["id"]] = line["text"]
        elif kind == "collect_skip":
            collect_skips[line["id"]] = line["message"]
        elif kind == "conftest_error":
            facts["conftest_error"] = (line["path"], line["text"])
        elif kind == "internal_error":
            facts["internal_error"] = line["text"]
        elif kind == "collected":
            facts["collected"] = tuple(line["ids"])
            plugins |= {(name, file) for name, file in line["plugins"]}
        elif kind == "plugins":
            plugins |= {(name, file) for name, file in line["plugins"]}
        elif kind == "replaced":
            replaced.append((line["name"], line["file"], line["where"]))
        elif kind == "begin":
            running = line["id"]
        elif kind == "stopped":
            facts["stopped_by"] = line["by"]
        elif kind == "test":
            running = None
            tests.append({"raised": "", **line})
        elif kind == "finish":
            facts |= {"exit_status": line["exit"], "foreign": tuple(line["foreign"])}
            if line["tests"] != len(tests) + ("stopped_by" in facts):
                facts["broken"] = f"{line['tests']} tests were begun but {len(tests)} ended"
    facts |= {
        "tests": tuple(tests), "collect_errors": collect_errors, "collect_skips": collect_skips,
        "plugins": tuple(sorted(plugins)), "replaced": tuple(replaced), "running": running,
    }  # fmt: skip
    return _form().validate_python(facts)


@cache
def _form() -> TypeAdapter[Records]:
    """Checks the type of every fact: code beside our plugin can sign what it likes."""
    return TypeAdapter(Records)


@dataclass(frozen=True)
class JunitReport:
    """pytest's JUnit XML. `fault` says why it cannot be used. `statuses` is keyed `classname::name`; `numbered` by
    the number our plugin gave each test (a property), which is exact where names are not."""

    fault: str | None = None
    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
    numbered: Mapping[int, TestStatus] = field(default_factory=dict)
    repaired: bool = False  # illegal control characters were dropped


MAX_DIGITS = 9  # of a test's number
# XML 1.0 allows tab, newline, carriage return and everything from space on, without surrogates and U+FFFE/F.
_ILLEGAL_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ELEMENT_STATUS: dict[str, TestStatus] = {"error": "ERROR", "failure": "FAILED", "skipped": "SKIPPED"}


def read_junit(data: bytes | None) -> JunitReport:
    """Read a JUnit file. Never raises on content: a cut or foreign file is a `fault`."""
    if data is None:
        return JunitReport(fault="the JUnit report is not there")
    text = data.decode("utf-8", "replace")
    clean = _ILLEGAL_XML.sub("", text)
    if "<!DOCTYPE" in clean or "<!ENTITY" in clean:
        return JunitReport(fault="the JUnit report declares entities, which pytest never does")
    try:
        root = ElementTree.fromstring(clean)
    except ElementTree.ParseError as error:
        return JunitReport(fault=f"the JUnit report is not complete: {error}")
    statuses: dict[str, TestStatus] = {}
    numbered: dict[int, TestStatus] = {}
    for case in root.iter("testcase"):
        status = _junit_status(case)
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        statuses[name] = worse(statuses.get(name), status)
        for entry in case.iter("property"):
            value = entry.get("value", "")
            if entry.get("name") == "rtb" and value.isdecimal() and len(value) <= MAX_DIGITS:
                numbered[int(value)] = worse(numbered.get(int(value)), status)
    return JunitReport(statuses=statuses, numbered=numbered, repaired=clean != text)


def _junit_status(case: ElementTree.Element) -> TestStatus:
    found: TestStatus | None = None
    for child in case:
        if child.tag in _ELEMENT_STATUS:
            status = _ELEMENT_STATUS[child.tag]
            if child.tag == "skipped" and child.get("type") == "pytest.xfail":
                status = "XFAIL"
            found = worse(found, status)
    return found or "PASSED"
