"""The demo suite through the command line, as scripts/demo runs it: controls and the example predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rtb.run import Run

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = [pytest.param("docker", marks=pytest.mark.docker), "local"]


def rtb(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the repository."""
    env = {name: value for name, value in os.environ.items() if name not in ("RTB_TASKS", "RTB_DOCKERFILES")}
    command = [sys.executable, "-m", "rtb.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, cwd=ROOT, env=env)


def evaluate(predictions: str, sandbox: str, out: Path) -> dict[str, Any]:
    """The JSON answer of an evaluation of the demo suite."""
    done = rtb(
        "evaluate", "--predictions", predictions, "--suite", "demo", "--sandbox", sandbox, "--out", str(out),
        "--run-id", "demo", "--plain", "--json", "--stages", "unit",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize(
    ("control", "outcome"), [("gold", "resolved"), ("base", "unresolved"), ("sabotage", "unresolved")]
)
def test_a_control_has_its_known_answer_on_every_task(
    control: str, outcome: str, sandbox: str, tmp_path: Path
) -> None:
    if sandbox == "local" and control != "gold":
        pytest.skip("one control shows the local sandbox; the others run in Docker, or in scripts/demo")
    answer = evaluate(control, sandbox, tmp_path)
    assert answer["tasks"] >= 8
    assert answer["outcomes"][outcome] == answer["tasks"], answer["outcomes"]
    assert set(answer["by_category"]) == {"optimization", "modification", "new_kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", KINDS)
def test_the_example_predictions_end_as_their_names_say(sandbox: str, tmp_path: Path) -> None:
    answer = evaluate("tasks/demo/example_predictions.jsonl", sandbox, tmp_path)
    counts = {name: count for name, count in answer["outcomes"].items() if count}
    caught = counts.pop("tampered", 0)
    assert counts.pop("unresolved", 0) + caught == 2  # the wrong one and the cheat
    assert counts == {
        "resolved": 1,
        "apply_failed": 1,
        "empty_patch": 1,
        "not_submitted": answer["tasks"] - 5,
    }
    run = Run(tmp_path / "demo")
    text = run.report_markdown.read_text()
    assert f"sandbox {sandbox}" in text
    again = rtb("report", str(run.path), "--json")
    assert json.loads(again.stdout) == answer
