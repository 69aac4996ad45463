"""Every input from a public bug report is run by a test of this suite, or is marked with what will bring it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.verdict import decide
from rtb.docker_sandbox import open_docker_sandbox
from rtb.errors import ExpectedError, MachineError
from rtb.result import OUTCOMES
from rtb.sandbox import Change, Entry, Limits, Sandbox
from tests.cases import ROOT, case_folder, cases_root
from tests.test_verdict import record, unit

# Stages whose cases one file runs as a whole, from a listing.
WHOLE = {"apply": "tests/test_apply_cases.py"}
# All others by number: the test file that runs it, and words that stand in the test.
BY_NUMBER: dict[int, tuple[str, str]] = {
    **dict.fromkeys((52, 53, 55, 56, 58, 59, 60, 61, 63, 66, 67), ("tests/test_unit_cases.py", "LOG_CASES")),
    **dict.fromkeys((69, 70, 75, 76), ("tests/test_unit_cases.py", "LOG_CASES")),
    65: ("tests/test_unit_cases.py", "def test_65_"),
    71: ("tests/test_unit_cases.py", "def test_71_"),
    72: ("tests/test_apply_cases.py", "72-conftest-only-patch"),
    73: ("tests/test_apply_cases.py", "73-reset-of-test-files"),
    77: ("tests/test_unit_cases.py", "def test_77_"),
    79: ("tests/test_pull_request.py", "79-closing-keywords"),
    81: ("tests/test_pull_request.py", "81-rate-limit-sequence"),
    82: ("tests/test_checkout.py", "82-split-source-and-tests"),
    84: ("tests/test_unit_cases.py", "def test_84_"),
    86: ("tests/test_leaks.py", "86-future-commits-in-image"),
    87: ("tests/test_cases.py", "def test_87_"),
    89: ("tests/test_cases.py", "def test_89_"),
    90: ("tests/test_environment.py", "90-activate-under-set-u"),
    92: ("tests/test_image.py", "92-pull-answers"),
    93: ("tests/test_image.py", "93-disk-full-while-building"),
    94: ("tests/test_gsm8k.py", "94-gsm8k-extraction"),
    95: ("tests/test_kernel_check.py", "95-empty-equals-empty"),
    96: ("tests/test_kernel_check.py", "96-dishonest-kernels"),
    98: ("tests/test_client.py", "98-serving-records"),
    100: ("tests/test_statistics.py", "100-first-calls-and-outlier"),
    101: ("tests/test_statistics.py", "101-one-zero-in-the-geomean"),
    102: ("tests/test_cases.py", "def test_102_"),
    103: ("tests/test_predict_cases.py", "103-nothing-to-evaluate"),
    105: ("tests/test_scaffold_solve.py", "def test_case_105_"),
    106: ("tests/test_submission.py", "106-submission-check"),
    43: ("tests/test_predict_cases.py", "43-predictions-bad-lines"),
    44: ("tests/test_predict_cases.py", "44-predictions-dict-of-dicts"),
    46: ("tests/test_predict_cases.py", "46-predictions-unknown-and-double"),
    47: ("tests/test_capture.py", "47-capture-everything"),
    49: ("tests/test_scaffold_workbench.py", "49-agent-crash-before-submit"),
    51: ("tests/test_capture.py", "51-dubious-ownership"),
}


def test_every_case_is_run_by_a_test() -> None:
    root = cases_root()
    if root is None:
        pytest.skip("the cases are not here: set RTB_CASES to their folder")
    unaccounted = []
    for place in sorted(root.glob("*/case.json")):
        number = int(place.parent.name.partition("-")[0])
        stage = json.loads(place.read_text())["stage"]
        file, words = BY_NUMBER.get(number, (WHOLE.get(stage, ""), ""))
        if not file or not (ROOT / file).is_file() or words not in (ROOT / file).read_text():
            unaccounted.append(f"{place.parent.name} (stage {stage}): {file or 'no test'} {words}")
    assert unaccounted == []


@pytest.fixture
def container(sandbox_image: str) -> Iterator[Sandbox]:
    with open_docker_sandbox(sandbox_image, env={}, limits=Limits(), run="cases") as opened:
        yield opened


@pytest.mark.docker
def test_87_what_is_laid_into_a_container_is_there_and_ours(container: Sandbox, tmp_path: Path) -> None:
    assert len(json.loads((case_folder("87-put-archive-answers") / "scenario.json").read_text())) == 3
    container.write(container.tree, Change(write={"new/folder/f.txt": Entry(b"1")}))
    found = container.execute(
        ["sh", "-c", "echo 2 >> new/folder/f.txt && cat new/folder/f.txt"],
        output=tmp_path / "log",
        timeout_seconds=30,
    )
    assert (found.exit_code, (tmp_path / "log").read_bytes()) == (0, b"12\n")
    container.kill()
    with pytest.raises((MachineError, ExpectedError)):
        container.write(container.tree, Change(write={"late": Entry(b"1")}))


@pytest.mark.docker
def test_89_output_may_be_empty_and_an_exit_code_never_is(container: Sandbox, tmp_path: Path) -> None:
    scenario = json.loads((case_folder("89-exec-demux-none") / "scenario.json").read_text())
    log = tmp_path / "log"
    for step in scenario[:2]:
        done = container.execute(["sh", "-c", step["exec"]], output=log, timeout_seconds=30)
        assert done.exit_code == step["exit_code"]
    assert log.read_bytes() == b"e\n"
    done = container.execute(["sh", "-c", scenario[2]["exec"]], output=log, timeout_seconds=scenario[2]["limit_s"])
    assert (done.exit_code, done.timed_out) == (None, True)
    seen = container.execute(
        ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 9'"], output=log, timeout_seconds=30
    )
    assert (seen.exit_code, log.read_bytes()) == (1, b"0\n")


def test_102_every_task_has_one_outcome_and_all_are_counted() -> None:
    folder = case_folder("102-counts-and-denominator")
    want = json.loads((folder / "case.json").read_text())["expected"]
    tasks, submitted, results = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("tasks", "submitted", "results")
    )
    ended = {
        "apply_failed": ("apply_failed", ()),
        "empty_patch": ("empty_patch", ()),
        "timeout": ("applied", (unit("failed", 0),)),
        "infra_error": ("applied", (unit("error", 0),)),
    }
    found = dict.fromkeys(OUTCOMES, 0)
    for name in tasks:
        if name not in submitted:
            outcome = "not_submitted"
        elif name not in results:
            outcome = "error"  # lost: harness.verdict.grade_task says so of a folder without times.json
        else:
            known = results[name].get("status")
            passed = "passed" if results[name].get("resolved") else "failed"
            status, stages = ended[known] if known else ("applied", (unit(passed),))
            outcome, reason = decide(record(status), stages)
            assert reason
        found[outcome] += 1  # type: ignore[index]
    assert sum(found.values()) == want["total"]
    assert found["resolved"] == want["resolved"]
    assert found["unresolved"] == want["unresolved"] + want["timeout"]
    assert found["error"] == want["infra_error"] + len(want["incomplete"])
    assert found["not_submitted"] == len(want["not_submitted"])
    assert found["apply_failed"] == want["apply_failed"] and found["empty_patch"] == want["empty_patch"]
