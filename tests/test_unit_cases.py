"""Inputs from public bug reports, stage unit (and hydrate's test ids), through the public functions."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.grading import UnitGrade, grade_log
from harness.ids import read_published, stable_ids, test_ids
from harness.pytest_log import PytestLog, decode, read_log
from harness.records import read_junit
from harness.stages.unit import read_evidence, run_unit
from rtb.errors import ExpectedError, InvalidFile
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits
from rtb.task import (
    Environment,
    Patches,
    PatchFacts,
    Provenance,
    Target,
    Task,
    TestIds,
    UnitStage,
    unsound_node_id,
)

CASES = Path(os.environ.get("RTB_CASES") or Path(__file__).parents[2] / "shared" / "cases")
LOG_CASES = (52, 53, 55, 56, 58, 59, 60, 61, 63, 66, 67, 69, 70, 75, 76)

pytestmark = pytest.mark.skipif(
    not CASES.is_dir(), reason=f"no folder of cases at {CASES}: set RTB_CASES to check them"
)


def folder(number: int) -> Path:
    return next(CASES.glob(f"{number}-*"))


def expected(number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder(number) / "case.json").read_text())["expected"]
    return found


def read(number: int) -> tuple[PytestLog, dict[str, Any]]:
    task = json.loads((folder(number) / "task.json").read_text())
    known = [node for node in task["FAIL_TO_PASS"] + task["PASS_TO_PASS"] if unsound_node_id(node) is None]
    return read_log((folder(number) / "pytest.log").read_bytes(), known), task


def graded(number: int) -> UnitGrade:
    log, task = read(number)
    tests = TestIds(
        instance_id="org__a-1",
        fail_to_pass=tuple(task["FAIL_TO_PASS"]),
        pass_to_pass=tuple(task["PASS_TO_PASS"]),
        gold_runs=1,
        base_runs=1,
    )
    return grade_log(tests, log, task["pytest_exit_code"])


@pytest.mark.parametrize("number", LOG_CASES)
def test_log_statuses_are_those_of_the_case(number: int) -> None:
    statuses = read(number)[0].statuses if number == 59 else graded(number).statuses
    assert statuses == expected(number)["status"]


@pytest.mark.parametrize("number", [n for n in LOG_CASES if n != 59])
def test_log_verdict_is_that_of_the_case(number: int) -> None:
    want, result = expected(number), graded(number)
    if "resolved" in want:
        assert (result.status == "passed") is want["resolved"]
        assert result.status != "error"
    if "missing" in want:
        assert set(result.missing) == set(want["missing"])
        assert set(want["missing"]) <= set(result.facts.not_passed)


def test_55_the_same_id_counts_once() -> None:
    assert len(graded(55).statuses) == expected(55)["tests_total"]


def test_58_skips_without_ids_are_said() -> None:
    assert "missing (3 skips without ids)" in graded(58).reason


def test_59_a_progress_token_is_no_test_id() -> None:
    with pytest.raises(ValueError, match=r"\[100%\]"):
        graded(59)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (60, "no line per test"),
        (67, "run by file"),
        (69, "log truncated (no summary header; 1 of 2)"),
        (76, "pytest is missing in the image"),
    ],
)
def test_what_is_not_the_models_fault_is_an_error(number: int, words: str) -> None:
    result = graded(number)
    assert (result.status, result.cause) == ("error", "machine")
    assert words in result.reason


def test_63_a_crash_is_an_error_of_its_test() -> None:
    result = graded(63)
    assert (result.cause, result.ended_in) == ("crash", expected(63)["crashed_in"])


def test_66_a_collection_error_is_of_a_file() -> None:
    result = graded(66)
    assert (result.cause, result.reason) == ("collection", expected(66)["reason"])
    assert list(read(66)[0].file_errors) == expected(66)["file_errors"]


def test_75_a_timeout_is_a_class_of_its_own() -> None:
    result = graded(75)
    assert (result.cause, result.ended_in) == (expected(75)["verdict"], expected(75)["timed_out_in"])


def test_65_broken_junit() -> None:
    control = read_junit((folder(65) / "control.xml").read_bytes())
    assert (control.fault, control.repaired, control.statuses) == (None, True, {"t::a": "FAILED"})
    cut = read_junit((folder(65) / "cut.xml").read_bytes())
    assert cut.fault is not None and "not complete" in cut.fault
    assert cut.statuses == {}


def test_77_characters_split_over_frames() -> None:
    frames = json.loads((folder(77) / "frames.json").read_text())["frames_base64"]
    assert decode(b"".join(base64.b64decode(frame) for frame in frames)) == expected(77)["text"]


def test_71_ids_that_change_every_run() -> None:
    before, gold1, gold2 = (
        read_log((folder(71) / f"{name}.log").read_bytes()).statuses for name in ("before", "gold1", "gold2")
    )
    want, stable = expected(71), stable_ids([gold1, gold2], [before])
    assert list(stable.fail_to_pass) == want["FAIL_TO_PASS"]
    assert list(stable.pass_to_pass) == want["PASS_TO_PASS"]
    assert sorted(stable.quarantined) == want["unstable"]
    with pytest.raises(ExpectedError, match="no stable FAIL_TO_PASS id"):
        test_ids("org__a-1", [gold1, gold2], [before])


def test_84_shapes_of_the_id_lists() -> None:
    usable, warned, rejected = [], [], {}
    for line in (folder(84) / "tasks.jsonl").read_text().splitlines():
        record = json.loads(line)
        try:
            found = read_published(record)
        except InvalidFile as error:
            rejected[record["instance_id"]] = str(error)
            continue
        assert found.fail_to_pass == ("tests/t.py::test_a",)
        if found.warnings:
            warned.append(f"{found.instance_id} (python repr)")
            assert "python repr" in found.warnings[0]
        else:
            usable.append(found.instance_id)
    want = expected(84)
    assert (usable, warned) == (want["usable"], want["usable_with_warning"])
    assert set(rejected) == set(want["rejected"])
    for name, reason in want["rejected"].items():
        assert reason in rejected[name]


@pytest.fixture
def case_72(tmp_path: Path) -> Path:
    """The base tree with the model's conftest laid over it by git."""
    tree = tmp_path / "base"
    shutil.copytree(folder(72) / "base", tree)
    tree.chmod(0o755)
    patch = str(folder(72) / "patch.diff")
    subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={tree}", patch], check=True, timeout=30, cwd="/")
    return tree


@pytest.mark.parametrize("trusted", [{"lib.py", "tests/test_lib.py"}, None])
def test_72_a_conftest_that_keeps_bodies_from_running(
    case_72: Path, tmp_path: Path, trusted: set[str] | None
) -> None:
    commit = "0" * 40
    task = Task(
        instance_id="org__a-72",
        repo="org/a",
        pull_number=72,
        base_commit=commit,
        merge_commit=commit,
        title="t",
        category="modification",
        targets=(Target(path="lib.py", name="double", kind="host", change="modified"),),
        patches=Patches(gold=PatchFacts(sha256=None, paths=()), test=PatchFacts(sha256=None, paths=())),
        environment=Environment(dockerfile="none"),
        unit=UnitStage(command="python -m pytest tests", files=("tests/test_lib.py",), timeout_seconds=60),
        provenance=Provenance(source="case 72"),
    )
    tests = TestIds(
        instance_id="org__a-72", fail_to_pass=("tests/test_lib.py::test_double",), gold_runs=1, base_runs=1
    )
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    with open_local_sandbox(case_72, env={}, path=path, limits=Limits(), parent=tmp_path) as sandbox:
        result = run_unit(task, tests, sandbox, tmp_path / "raw", trusted=trusted)
    # pytest itself says that all is well: exit code 0, one passed. Only the test's body was never entered.
    assert read_evidence(tmp_path / "raw").totals == {"passed": 1}
    assert result.status == "failed"
    assert result.tampered is not None
    assert ("conftest.py" if trusted else "never called") in result.tampered
