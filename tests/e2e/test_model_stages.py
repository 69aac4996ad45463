"""The demo framework really serving: what the accuracy stage sees of a gold and of a sabotaged kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtb.run import Run
from tests.e2e.test_demo import rtb

TASK = "rtb__tinyserve-12"  # its norm is launched in every layer of every step


def accuracy(control: str, sandbox: str, out: Path) -> dict[str, Any]:
    """The accuracy stage of a control, as verdict.json has it; the stored run grades to the same."""
    done = rtb(
        "evaluate", "--predictions", control, "--suite", "demo", "-i", TASK, "--sandbox", sandbox, "--stages",
        "accuracy", "--out", str(out), "--run-id", control, "--plain", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    run = Run(out / control)
    before = (run.path / TASK / "verdict.json").read_bytes()
    assert json.loads(rtb("report", str(run.path), "--json").stdout) == json.loads(done.stdout)
    assert (run.path / TASK / "verdict.json").read_bytes() == before
    (stage,) = json.loads(before)["stages"]
    assert isinstance(stage, dict)
    return stage


@pytest.mark.slow
def test_gold_keeps_its_answers(tmp_path: Path) -> None:
    gold = accuracy("gold", "local", tmp_path)
    assert gold["status"] == "passed", gold["reason"]
    assert gold["coverage"]["state"] == "covered"
    assert gold["accuracy"]["paper"] is True and gold["accuracy"]["filters"]["strict-match"]["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [pytest.param("docker", marks=pytest.mark.docker), "local"])
def test_a_sabotaged_kernel_costs_answers(sandbox: str, tmp_path: Path) -> None:
    wrong = accuracy("sabotage", sandbox, tmp_path)
    assert wrong["status"] == "failed", wrong["reason"]
    strict = wrong["accuracy"]["filters"]["strict-match"]
    assert strict["gold_right"] >= 15  # of 16: nine of ten and more
    assert strict["model_right"] <= 4
    assert wrong["accuracy"]["paper"] is False and wrong["coverage"]["state"] == "covered"
