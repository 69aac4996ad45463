"""Reading what a test run left: signed records, JUnit XML, whatever was done to them."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.records import SEVERITY, Records, read_junit, read_records, worse

NONCE = "ab" * 32
WORKER = Path(harness.__file__).parent / "worker" / "channel.py"

TEST: dict[str, Any] = {
    "id": "tests/t.py::test_a",
    "number": 0,
    "setup": "returned",
    "run": "returned",
    "body": "returned",
    "raised": "",
    "errors": [],
    "failed": [],
    "same_code": True,
    "code_file": "tests/t.py",
    "phases": [{"when": when, "outcome": "passed", "xfail": False, "seconds": 0.1} for when in ("setup", "call")],
}


def signed(payload: bytes) -> bytes:
    """The first line of a record file."""
    return payload + b"\t" + hmac.new(bytes.fromhex(NONCE), payload, hashlib.sha256).hexdigest().encode() + b"\n"


def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("channel", WORKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A complete record file, written by the worker in a process of its own."""
    path = tmp_path_factory.mktemp("records") / "records"
    script = f"""
import importlib.util, json, os
spec = importlib.util.spec_from_file_location("w", {str(WORKER)!r})
w = importlib.util.module_from_spec(spec); spec.loader.exec_module(w)
emit = w.open_channel({str(path)!r}, bytes.fromhex({NONCE!r}))
test = json.loads({json.dumps(TEST)!r})
emit("open", {{"pid": 1}})
emit("start", {{"pytest": "9", "python": "3", "rootdir": "/", "ini": "", "args": []}})
emit("collected", {{"ids": [test["id"], "tests/t.py::caf\\u00e9"], "plugins": [["a", "/b"]]}})
emit("begin", {{"id": test["id"], "number": 0}})
if os.fork() == 0:
    emit("finish", {{"exit": 0, "tests": 0, "foreign": []}})
    os._exit(0)
os.wait()
emit("test", test)
emit("finish", {{"exit": 0, "tests": 1, "foreign": []}})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    return path.read_bytes()


def test_a_whole_file_is_read_and_a_forked_child_is_silent(whole: bytes) -> None:
    records = read_records(whole, NONCE)
    assert records.broken is None and not records.cut
    assert records.opened and records.started and records.finished and records.exit_status == 0
    assert records.collected == ("tests/t.py::test_a", "tests/t.py::café")
    assert records.statuses == {"tests/t.py::test_a": "PASSED"}
    assert records.plugins == (("a", "/b"),)
    assert records.running is None


def test_cut_at_any_byte_is_never_a_finished_run(whole: bytes) -> None:
    for length in range(len(whole) - 1):
        records = read_records(whole[:length], NONCE)
        assert not records.finished
        assert records.broken is None
        assert records.cut == (length > 0 and whole[length - 1 : length] != b"\n")


def test_a_cut_in_a_test_says_which_test_it_was(whole: bytes) -> None:
    assert read_records(b"".join(whole.splitlines(True)[:4]), NONCE).running == "tests/t.py::test_a"


@given(data=st.data())
def test_any_changed_byte_shows(whole: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[position]))
    records = read_records(whole[:position] + bytes([value]) + whole[position + 1 :], NONCE)
    assert records.broken is not None or records.cut


def test_lines_dropped_doubled_or_swapped_show(whole: bytes) -> None:
    lines = whole.splitlines(True)
    for number in range(1, len(lines)):
        assert read_records(b"".join(lines[:number] + lines[number + 1 :]), NONCE).broken or number == len(lines) - 1
        assert read_records(b"".join([*lines[:number], lines[number - 1], *lines[number:]]), NONCE).broken


def test_another_runs_records_are_not_these(whole: bytes) -> None:
    assert "signature" in str(read_records(whole, "cd" * 32).broken)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    records = read_records(data, NONCE)
    assert not records.finished
    assert read_junit(data).statuses == {}


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "test"}',
        '{"kind": "finish"}',
        '{"seq": 1}',
        "[]",
        "{",
        "[" * 100_000,
        '{"kind": "begin", "id": {}}',
        '{"kind": "start", "pytest": 9, "ini": ""}',
        '{"kind": "collected", "ids": [[1]], "plugins": []}',
        json.dumps({**TEST, "kind": "test", "failed": [5]}),
        json.dumps({**TEST, "kind": "test", "phases": [{**TEST["phases"][0], "message": 7}]}),
    ],
)
def test_signed_nonsense_is_broken(line: str) -> None:
    assert read_records(signed(line.encode()), NONCE).broken is not None


def test_the_worker_refuses_a_file_that_is_already_there(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"planted\n")
    with pytest.raises(FileExistsError):
        worker().open_channel(str(path), b"key")
    assert path.read_bytes() == b"planted\n"


def record(**changes: Any) -> Records:
    records = read_records(signed(json.dumps({"seq": 0, "kind": "test", **TEST, **changes}).encode()), NONCE)
    assert records.broken is None
    return records


def phases(*outcomes: tuple[str, str, bool]) -> list[dict[str, Any]]:
    return [{"when": when, "outcome": outcome, "xfail": xfail, "seconds": 0.0} for when, outcome, xfail in outcomes]


OK = ("setup", "passed", False)
END = ("teardown", "passed", False)


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ([OK, ("call", "passed", False), END], "PASSED"),
        ([OK, ("call", "failed", False), END], "FAILED"),
        ([OK, ("call", "passed", False), ("teardown", "failed", False)], "ERROR"),
        ([OK, ("call", "failed", False), ("teardown", "failed", False)], "ERROR"),
        ([("setup", "failed", False), END], "ERROR"),
        ([("setup", "skipped", False), END], "SKIPPED"),
        ([("setup", "skipped", True), END], "XFAIL"),
        ([OK, ("call", "skipped", False), END], "SKIPPED"),
        ([OK, ("call", "skipped", True), END], "XFAIL"),
        ([OK, ("call", "passed", True), END], "XPASS"),
        ([OK, ("call", "passed", False), ("teardown", "skipped", False)], "SKIPPED"),
        ([OK, END], "ERROR"),
        ([OK, ("call", "rerun", False), END], "ERROR"),
        ([], "ERROR"),
    ],
)
def test_status_of_a_test_by_its_phases(seen: list[tuple[str, str, bool]], status: str) -> None:
    assert record(phases=phases(*seen)).tests[0].status == status


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"body": "none"}, None),
        ({"run": ""}, "never run"),
        ({"run": "raised"}, "raised an exception"),
        ({"body": "not entered"}, "never called"),
        ({"body": "entered"}, "never returned"),
        ({"body": "raised", "raised": "AssertionError"}, "raised AssertionError"),
        ({"setup": "raised"}, "set-up"),
        ({"errors": [["teardown", "KeyError"]]}, "KeyError was raised at teardown"),
        ({"same_code": False}, "replaced after collection"),
    ],
)
def test_a_pass_that_cannot_be_believed(changes: dict[str, Any], words: str | None) -> None:
    reason = record(**changes).tests[0].contradiction
    assert reason is None if words is None else words in str(reason)


def test_a_failure_needs_no_second_witness() -> None:
    test = record(run="raised", body="raised", phases=phases(OK, ("call", "failed", False), END)).tests[0]
    assert test.contradiction is None


@given(st.sampled_from(SEVERITY), st.sampled_from(SEVERITY))
def test_a_second_result_never_betters_the_first(one: Any, two: Any) -> None:
    assert worse(one, two) == worse(two, one) == worse(worse(one, two), one)
    assert worse(None, two) == two
    assert (worse(one, two) == "PASSED") == (one == two == "PASSED")


CASE = '<testcase classname="t" name="a"><properties><property name="rtb" value="3" /></properties>{}</testcase>'


@pytest.mark.parametrize(
    ("inside", "status"),
    [
        ("", "PASSED"),
        ("<failure>x</failure>", "FAILED"),
        ("<error>x</error>", "ERROR"),
        ("<failure /><error />", "ERROR"),
        ("<skipped />", "SKIPPED"),
        ('<skipped type="pytest.xfail" />', "XFAIL"),
        ("<system-out>x</system-out>", "PASSED"),
    ],
)
def test_junit_by_number_and_name(inside: str, status: str) -> None:
    junit = read_junit(f"<testsuites><testsuite>{CASE.format(inside)}</testsuite></testsuites>".encode())
    assert (junit.numbered, junit.statuses, junit.fault) == ({3: status}, {"t::a": status}, None)


def test_junit_that_is_not_one() -> None:
    assert read_junit(None).fault == "the JUnit report is not there"
    assert "not complete" in str(read_junit(b"").fault)
    bomb = b'<!DOCTYPE x [<!ENTITY a "aa">]><testsuite>&a;</testsuite>'
    assert "entities" in str(read_junit(bomb).fault)


def test_junit_with_bytes_that_are_no_text() -> None:
    inside = "<failure>@</failure>"
    data = f"<testsuite>{CASE.format(inside)}</testsuite>".encode().replace(b"@", b"\xff\xfe\x00\x12")
    assert read_junit(data).statuses == {"t::a": "FAILED"}
