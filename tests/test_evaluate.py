"""The main job through public functions and the command line, in both sandboxes: real git, pytest, containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.evaluate import Finished, Request, evaluate, regrade
from rtb.errors import ExpectedError, InvalidFile
from rtb.result import Verdict
from rtb.run import Run
from tests import pocketsuite
from tests.pocketsuite import patch, right, write_predictions
from tests.variables import variables

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "local"]


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pocket suite with its own tasks, Dockerfiles and cache; environment variables point rtb at them."""
    root = tmp_path_factory.mktemp("pocket")
    pocketsuite.make(root, tasks=3)
    settings = {
        "RTB_TASKS": str(root / "tasks"),
        "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
        "RTB_CACHE": str(root / "cache"),
    }
    with variables(settings):
        yield root


def run(root: Path, out: Path, predictions: str | Path, sandbox: str = "local", **more: Any) -> Finished:
    values: dict[str, Any] = {
        "predictions": str(predictions), "suite": "pocket", "instances": (), "stages": ("unit",), "sandbox": sandbox,
        "workers": 2, "run_id": "r", "profile": "robust", "out": out, "retries": 1, "quiet": True,
    }  # fmt: skip
    return evaluate(Request(**{**values, **more}))


def verdicts(finished: Finished) -> dict[str, Verdict]:
    found = {name: finished.run.read_verdict(name) for name in finished.run.read_record().instance_ids}
    return {name: verdict for name, verdict in found.items() if verdict is not None}


def outcomes(finished: Finished) -> dict[str, int]:
    return {name: count for name, count in finished.report.outcomes.items() if count}


@pytest.mark.parametrize("sandbox", KINDS)
def test_controls_tell_right_from_nothing_and_wrong(pocket: Path, tmp_path: Path, sandbox: str) -> None:
    for control, expected in (("gold", "resolved"), ("base", "unresolved"), ("sabotage", "unresolved")):
        finished = run(pocket, tmp_path, control, sandbox, run_id=control)
        assert outcomes(finished) == {expected: 3}, (control, verdicts(finished))
        assert finished.report.sandbox == sandbox
        assert not finished.report.incomplete


@pytest.mark.parametrize("sandbox", KINDS)
def test_each_kind_of_answer_ends_as_it_should_and_is_graded_again_alike(
    pocket: Path, tmp_path: Path, sandbox: str
) -> None:
    cheat = right(3).replace("x + x", "x") + patch(3, "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\n"
        "def pytest_runtest_makereport(item, call):\n    out = yield\n    out.get_result().outcome = 'passed'\n",
        "conftest.py")  # fmt: skip
    for number, text, expected in (
        (1, right(1), "resolved"),
        (1, patch(1, "def f1(x):\n    return 3 * x"), "unresolved"),
        (1, right(1).replace("-    return x\n", "-    return y\n"), "apply_failed"),
        (1, "  \n", "empty_patch"),
        (3, cheat, "unresolved"),
        (2, patch(2, "import os\n\n\ndef f2(x):\n    os._exit(0)"), "unresolved"),
    ):
        name = f"{number}-{expected}"
        file = write_predictions(tmp_path / f"{name}.jsonl", {number: text})
        finished = run(pocket, tmp_path, file, sandbox, run_id=name, instances=(f"rtb__pocket-{number}",))
        verdict = next(iter(verdicts(finished).values()))
        assert verdict.outcome in (expected, "tampered" if expected == "unresolved" else expected), verdict
        before = {path: path.read_bytes() for path in finished.run.path.rglob("verdict.json")}
        moved = Run(shutil.copytree(finished.run.path, tmp_path / "moved" / name))
        for path in moved.path.rglob("verdict.json"):
            path.unlink()
        again = regrade(moved)  # no sandbox, no suite: only the files
        assert again.outcomes == finished.report.outcomes
        for path, data in before.items():
            assert (moved.path / path.relative_to(finished.run.path)).read_bytes() == data


def test_a_wrong_answer_names_the_tests_that_failed(pocket: Path, tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: patch(1, "def f1(x):\n    return x * (2 if x < 2 else 3)")})
    finished = run(pocket, tmp_path, file, instances=("rtb__pocket-1",))
    unit = verdicts(finished)["rtb__pocket-1"].stage("unit")
    assert unit is not None and unit.unit is not None
    assert set(unit.unit.not_passed) == {"tests/test_m1.py::test_doubles[3]"}
    assert (unit.unit.passed, unit.unit.expected, unit.unit.fail_to_pass) == (2, 3, (1, 2))
    assert "test_doubles[3]" in unit.reason


def test_tasks_without_a_prediction_are_counted_and_bad_lines_do_not_stop_good_ones(
    pocket: Path, tmp_path: Path
) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: None})
    file.write_text(file.read_text() + '{"instance_id": "rtb__pocket-3", "model_pa\n')
    finished = run(pocket, tmp_path, file)
    assert outcomes(finished) == {"resolved": 1, "empty_patch": 1, "not_submitted": 1}
    assert finished.faulty_predictions == 1
    assert finished.report.metrics.success.n == 3
    stored = finished.run.read_record()
    assert [problem.place for problem in stored.problems if not problem.is_warning] == ["3"]


def test_a_finished_task_is_not_run_again_and_a_changed_one_is(pocket: Path, tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: right(2)})
    first = run(pocket, tmp_path, file)
    times = {name: (first.run.task(name).times.stat().st_mtime_ns) for name in verdicts(first)}
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: patch(2, "def f2(x):\n    return 5 * x")})
    second = run(pocket, tmp_path, file)
    assert second.run.task("rtb__pocket-1").times.stat().st_mtime_ns == times["rtb__pocket-1"]
    assert second.run.task("rtb__pocket-2").times.stat().st_mtime_ns != times["rtb__pocket-2"]
    assert outcomes(second) == {"resolved": 1, "unresolved": 1, "not_submitted": 1}
    assert second.run.read_record().created_at == first.run.read_record().created_at


@pytest.mark.parametrize("name", ["record.json", "times.json", "unit/records.jsonl", "unit/exec.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_broken_file_of_an_earlier_run_is_measured_again(
    pocket: Path, tmp_path: Path, name: str, damage: str
) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1)})
    first = run(pocket, tmp_path, file, instances=("rtb__pocket-1",))
    path = first.run.task("rtb__pocket-1").path / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"\x00nonsense")
    second = run(pocket, tmp_path, file, instances=("rtb__pocket-1",))
    assert outcomes(second) == {"resolved": 1}
    assert path.exists()


def cli(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rtb.cli", *arguments]
    env = {**os.environ, "PYTHONPATH": str(pocketsuite.ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env, **more)


def test_json_answer_is_one_document_with_the_agreed_keys(pocket: Path, tmp_path: Path) -> None:
    done = cli(
        "evaluate", "--predictions", "gold", "--suite", "pocket", "--sandbox", "local", "--out", str(tmp_path),
        "--run-id", "j", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["outcomes"]["resolved"] == document["tasks"] == 3
    assert set(document["metrics"]) == {"success", "applied", "ftp", "utp", "nr", "s_ttft", "s_tpot", "cost"}
    assert document["metrics"]["nr"] is None
    again = cli("report", str(tmp_path / "j"), "--json")
    assert json.loads(again.stdout) == document


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["evaluate", "--predictions", "/nowhere.jsonl"], 1, "cannot be read"),
        (["evaluate", "--predictions", "gold", "--suite", "nope"], 1, "no suite 'nope'"),
        (["evaluate", "--predictions", "gold", "--sandbox", "moon"], 1, "docker and local"),
        (["evaluate", "--predictions", "gold", "-i", "x__y-1"], 1, "no task 'x__y-1'"),
        (["evaluate", "--predictions", "gold", "--stages", "unit,nope"], 1, "'nope'"),
        (["evaluate", "--predictions", "gold", "--run-id", "../x"], 1, "--run-id"),
        (["evaluate", "--predictions", "gold", "--profile", "x"], 1, "robust and paper"),
        (["evaluate", "--predictions", "gold", "--workers", "0"], 2, "workers"),
        (["evaluate"], 2, "predictions"),
        (["report", "nope"], 1, "no run 'nope'"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_is_one_clear_error_with_the_right_exit_code(
    pocket: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_unreadable_prediction_makes_exit_code_1_after_the_good_ones_are_done(
    pocket: Path, tmp_path: Path
) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1)})
    file.write_text(file.read_text() + "{\n")
    base = ["evaluate", "--predictions", str(file), "--suite", "pocket", "--sandbox", "local", "--out", str(tmp_path)]
    done = cli(*base, "--run-id", "a")
    assert done.returncode == 1 and "p.jsonl:2: error: not valid JSON" in done.stderr
    assert (tmp_path / "a" / "rtb__pocket-1" / "verdict.json").is_file()
    assert cli(*base, "--run-id", "a", "--skip-invalid").returncode == 0


def start(out: Path, run_id: str, sandbox: str, predictions: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "rtb.cli", "evaluate", "--predictions", predictions, "--suite", "pocket",
        "--sandbox", sandbox, "--out", str(out), "--run-id", run_id, "--workers", "2", "--plain",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(pocketsuite.ROOT)}
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, env=env, start_new_session=True, preexec_fn=heed_interrupts
    )


def heed_interrupts() -> None:
    """A shell's background jobs ignore SIGINT, and so would what they start: the tests' processes must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_is_finished_by_the_same_command(
    pocket: Path, tmp_path: Path, sandbox: str, how: signal.Signals
) -> None:
    slow = "import time\n\n\ndef f2(x):\n    time.sleep(3)\n    return 2 * x"
    file = write_predictions(
        tmp_path / "p.jsonl", {1: right(1), 2: patch(2, slow), 3: patch(3, slow.replace("f2", "f3"))}
    )
    run(pocket, tmp_path / "warm", "gold", sandbox)  # environments are there; the stop falls into the tests
    process = start(tmp_path, "r", sandbox, str(file))
    try:
        wait_for((tmp_path / "r" / "rtb__pocket-2" / "unit").exists)
    finally:
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
    assert b"Traceback" not in said
    kept = list(Run(tmp_path / "r").path.glob("*/verdict.json"))
    assert len(kept) < 3
    finished = run(pocket, tmp_path, file, sandbox)
    assert outcomes(finished) == {"resolved": 3}
    assert not finished.report.incomplete


def test_an_interrupted_run_is_reported_as_incomplete_not_as_failed(pocket: Path, tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: right(2)})
    finished = run(pocket, tmp_path, file)
    finished.run.task("rtb__pocket-2").times.unlink()  # as a kill before the end leaves it
    report = regrade(finished.run)
    assert report.incomplete
    assert report.outcomes["error"] == 1 and report.outcomes["unresolved"] == 0
    assert cli("report", str(finished.run.path)).returncode == 4


def test_a_broken_environment_is_an_error_with_every_try_kept(pocket: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    pocketsuite.make(broken, tasks=2)
    task = broken / "tasks" / "pocket" / "rtb__pocket-1" / "task.json"
    document = json.loads(task.read_text())
    document["environment"]["install"] = ["echo about to fail; exit 7"]
    task.write_text(json.dumps(document))
    os.environ["RTB_TASKS"] = str(broken / "tasks")
    try:
        finished = run(broken, tmp_path, "gold")
    finally:
        os.environ["RTB_TASKS"] = str(pocket / "tasks")
    assert outcomes(finished) == {"resolved": 1, "error": 1}
    assert finished.report.incomplete
    verdict = verdicts(finished)["rtb__pocket-1"]
    assert verdict.attempts and verdict.attempts[0].kind == "BuildFailed"
    assert "about to fail" in verdict.reason and verdict.stages == ()


def test_nothing_usable_is_an_error_before_anything_starts(pocket: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(InvalidFile, match="no predictions"):
        run(pocket, tmp_path, empty)
    with pytest.raises(ExpectedError, match="no prediction of suite"):
        run(pocket, tmp_path, write_predictions(tmp_path / "z.jsonl", {9: right(1)}))
    assert not (tmp_path / "r").exists()


@pytest.mark.docker
def test_a_killed_container_is_tried_again_and_the_broken_try_is_kept(pocket: Path, tmp_path: Path) -> None:
    run(pocket, tmp_path / "warm", "gold", "docker")
    slow = "import time\n\n\ndef f1(x):\n    time.sleep(2)\n    return 2 * x"
    file = write_predictions(tmp_path / "p.jsonl", {1: patch(1, slow)})
    process = start(tmp_path, "killed", "docker", str(file))
    listing = ["docker", "ps", "-q", "--filter", "label=rtb.run=killed"]
    try:
        wait_for((tmp_path / "killed" / "rtb__pocket-1" / "unit").exists)
        found = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        assert len(found) == 1
        subprocess.run(["docker", "kill", *found], check=True, timeout=60, stdout=subprocess.DEVNULL)
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said
    stored = Run(tmp_path / "killed")
    verdict = stored.read_verdict("rtb__pocket-1")
    assert verdict is not None and verdict.outcome == "resolved"
    assert [item.kind for item in verdict.attempts] == ["SandboxGone"]
    assert stored.task("rtb__pocket-1").failed_attempt(1).is_dir()
    listing.insert(2, "-a")
    assert subprocess.run(listing, capture_output=True, check=True, timeout=60).stdout == b""
