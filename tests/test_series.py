"""Several attempts and the steps of one, evaluated for real: pass@k and score against step, through the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtb.errors import InvalidFile
from rtb.prediction import Prediction
from rtb.steps import read_step_file, steps_of
from rtb.suite import load_suite
from tests import pocketsuite
from tests.pocketsuite import patch, right, write_predictions
from tests.scripted_model import ScriptedModel
from tests.toysuite import solutions
from tests.variables import variables

ONE, TWO, THREE = (f"rtb__pocket-{number}" for number in (1, 2, 3))
WRONG = patch(2, "def f2(x):\n    return 3 * x")


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the command line finds the pocket suite."""
    root = tmp_path_factory.mktemp("series")
    pocketsuite.make(root, tasks=3)
    settings = {
        "RTB_TASKS": str(root / "tasks"), "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
        "RTB_CACHE": str(root / "cache"),
    }  # fmt: skip
    with variables(settings):
        yield root


def rtb(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "rtb.cli", *arguments], cwd=folder, capture_output=True, text=True, timeout=600,
        check=False, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


EVALUATE = ("evaluate", "--suite", "pocket", "--sandbox", "local", "--plain", "--json", "--run-id", "r")


def test_one_command_evaluates_all_attempts_and_prints_pass_at_k(pocket: Path, tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: WRONG, 3: right(3)})
    write_predictions(
        tmp_path / "p.attempt-2.jsonl", {1: right(1), 2: WRONG, 3: patch(3, "def f3(x):\n    return 0")}
    )
    write_predictions(tmp_path / "p.attempt-3.jsonl", {1: right(1), 2: right(2), 3: ""})
    done = rtb(tmp_path, *EVALUATE, "--predictions", "p.jsonl", "--attempts", "3")
    found = json.loads(done.stdout)
    # n = 3; c = 3, 1, 1: pass@1 (1 + 1/3 + 1/3) / 3, pass@2 (1 + 2/3 + 2/3) / 3, pass@3 all
    assert found["values"] == {"1": pytest.approx(5 / 9), "2": pytest.approx(7 / 9), "3": 1.0}
    assert {task["instance_id"]: (task["n"], task["solved"]) for task in found["tasks"]} == {
        ONE: (3, 3), TWO: (3, 1), THREE: (3, 1)
    }  # fmt: skip
    by_category = {task["category"]: found["by_category"][task["category"]]["1"] for task in found["tasks"]}
    assert sorted(by_category.values()) == [pytest.approx(1 / 3), pytest.approx(1 / 3), 1.0]
    assert "pass@3 %" in done.stderr and "77.8" in done.stderr
    written = (tmp_path / "runs/r/report.md").read_text()
    assert f"| {TWO} | {found['tasks'][1]['category']} | 3 | 1 | unresolved, unresolved, resolved |" in written
    # Files of any other scaffold, named one by one, are the same thing; and what is finished is kept.
    names = [f"--predictions={name}" for name in ("p.jsonl", "p.attempt-2.jsonl", "p.attempt-3.jsonl")]
    again = rtb(tmp_path, *EVALUATE, *names)
    assert json.loads(again.stdout) == found and again.stderr.count("(kept from before)") == 9
    for verdict in (tmp_path / "runs/r").rglob("verdict.json"):
        verdict.unlink()
    assert json.loads(rtb(tmp_path, "report", "r", "--json").stdout) == found
    assert "another --run-id" in rtb(tmp_path, *EVALUATE, "--predictions", "p.jsonl", code=1).stderr
    assert "named twice" in rtb(tmp_path, *EVALUATE, *names[:1], *names[:1], code=1).stderr
    assert "one attempt" in rtb(tmp_path, *EVALUATE, "--predictions=gold", *names[:1], code=1).stderr


def test_an_attempt_that_a_fault_ended_is_no_failed_model(pocket: Path, tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "p.jsonl", {1: right(1), 2: WRONG})
    fault = {"finished": False, "exit_status": "ModelUnavailable", "exit_reason": "HTTP 503 after 8 tries"}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1] |= fault
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    checked = rtb(tmp_path, "predictions", "check", "p.jsonl", "--suite", "pocket")
    assert f"{TWO}: not graded" in checked.stderr and "1 usable" in checked.stderr
    done = rtb(tmp_path, *EVALUATE, "--predictions", "p.jsonl", "-i", ONE, "-i", TWO, code=4)
    assert (
        json.loads(done.stdout)["outcomes"] | {"resolved": 1, "not_submitted": 1, "unresolved": 0}
        == json.loads(done.stdout)["outcomes"]
    )
    assert json.loads(done.stdout)["metrics"]["utp"] == 100.0
    assert "attempts that a fault of a machine" in done.stderr
    said = (tmp_path / "runs/r/report.md").read_text()
    assert "ended by a fault, not by the model (ModelUnavailable: HTTP 503 after 8 tries)" in said
    rtb(tmp_path, "report", "r", code=4)  # from the stored files alone: the same
    assert (tmp_path / "runs/r/report.md").read_text() == said
    write_predictions(tmp_path / "p.attempt-2.jsonl", {1: right(1), 2: right(2)})
    several = ("--run-id", "k", "--predictions", "p.jsonl", "--attempts", "2", "-i", ONE, "-i", TWO)
    found = json.loads(rtb(tmp_path, *EVALUATE[:-2], *several, code=4).stdout)
    assert found["values"] == {"1": 1.0, "2": None}
    assert [(task["n"], task["solved"]) for task in found["tasks"]] == [(2, 2), (1, 1)]


@pytest.mark.parametrize("sandbox", [pytest.param("docker", marks=pytest.mark.docker), "local"])
def test_score_against_step_from_one_solve_run(pocket: Path, tmp_path: Path, sandbox: str) -> None:
    loaded = load_suite("pocket")
    with ScriptedModel(solutions(loaded)).serve() as server:
        solve = ("solve", "--base-url", server.url, "--suite", "pocket", "--sandbox", sandbox, "--plain")
        rtb(tmp_path, *solve, "--model", "wanderer", "--out", "p.jsonl", "--workers", "2")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["instance_id"] for line in lines] == [ONE, TWO, THREE]
    # One task whose tree never changed, one whose last change came after its last step.
    lines[1] |= {"model_patch": "", "steps_file": "nothing.jsonl"}
    (tmp_path / "nothing.jsonl").write_text("")
    lines[2]["model_patch"] = right(3)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = (*EVALUATE, "--predictions", "p.jsonl", "--steps", "--sandbox", sandbox)
    done = rtb(tmp_path, *command)
    found = json.loads(done.stdout)
    tasks = {task["instance_id"]: task for task in found["by_task"]}
    assert [(step["step"], step["outcome"], step["passed"]) for step in tasks[ONE]["steps"]] == [
        (1, "unresolved", 1), (2, "resolved", 3), (3, "unresolved", 0), (4, "resolved", 3)
    ]  # fmt: skip
    assert (tasks[ONE]["resolved_at"], tasks[ONE]["resolved_at_end"]) == (2, True)
    assert tasks[ONE]["steps"][1]["run"] == tasks[ONE]["steps"][3]["run"]  # equal trees: one evaluation
    assert (tasks[TWO]["steps"], tasks[TWO]["resolved_at"]) == ([], None)
    assert [step["step"] for step in tasks[THREE]["steps"]] == [1, 2, 3, 4, lines[2]["steps"]]
    curve = [(point["step"], point["resolved"], point["ever"]) for point in found["curve"]]
    assert curve == [(0, 0, 0), (1, 0, 0), (2, 2, 2), (3, 0, 2), (4, 2, 2), (6, 2, 2)]
    assert found["curve"][2]["unit"] == pytest.approx(2 / 3) and not found["incomplete"]
    evaluated = sorted(path.parent.name for path in (tmp_path / "runs/r").rglob("verdict.json"))
    assert evaluated == [ONE] * 3 + [THREE] * 4
    assert (
        f"| {ONE} | 2 | resolved | 1: unresolved 1/3; 2: resolved 3/3; 3: unresolved 0/3; 4: resolved 3/3 |"
        in (tmp_path / "runs/r/report.md").read_text()
    )
    assert json.loads(rtb(tmp_path, "report", "r", "--json").stdout) == found
    again = rtb(tmp_path, *command)
    assert json.loads(again.stdout) == found and again.stderr.count("(kept from before)") == 7


def test_steps_of_a_prediction(tmp_path: Path) -> None:
    def line(step: Any, text: str, name: str = "a") -> str:
        return json.dumps({"instance_id": name, "model_name_or_path": "m", "model_patch": text, "step": step}) + "\n"

    file = tmp_path / "steps.jsonl"
    file.write_text(line(2, "x") + line(5, "y") + line(6, "z")[:20])  # the last line was cut by a kill
    assert [(step.number, step.prediction.model_patch) for step in read_step_file(file)] == [(2, "x"), (5, "y")]
    whole = {"instance_id": "a", "model_name_or_path": "m"}
    same = Prediction(**whole, model_patch="y", extra={"steps_file": "steps.jsonl", "steps": 9})
    assert [step.number for step in steps_of(same, tmp_path)] == [2, 5]
    other = Prediction(**whole, model_patch="z", extra={"steps_file": "steps.jsonl"})
    assert [step.number for step in steps_of(other, tmp_path)] == [2, 5, 6]
    assert [step.number for step in steps_of(Prediction(**whole, model_patch="z"), tmp_path)] == [1]
    assert steps_of(Prediction(**whole, model_patch=""), tmp_path) == ()
    for text, said in (
        (line(2, "x") + line(2, "y"), "2: step 2 is no whole number above"),
        (line(2, "x")[:9] + "\n" + line(3, "y"), "1: not valid JSON"),
        ('{"step": 1}\n', "1: no prediction line"),
        (line(1, "x", "b"), "it is of b, not of a"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidFile, match=said):
            steps_of(same, tmp_path)
    file.unlink()
    with pytest.raises(InvalidFile, match=r"steps\.jsonl: cannot be read"):
        steps_of(same, tmp_path)
