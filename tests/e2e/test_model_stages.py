"""The demo framework really serving: what the accuracy and latency stages see of a gold and of a sabotaged kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import controls
from harness.decisions import Schedule
from harness.opened_sides import opener, place_of, sides
from harness.stages.latency import run_latency
from harness.stages.latency_grade import grade_latency
from harness.stages.sides import Sides
from rtb import environment
from rtb.base_tree import base_repository
from rtb.run import Run
from rtb.suite import load_suite
from tests.e2e.test_demo import KINDS, ROOT, rtb

TASK = "rtb__tinyserve-12"  # its norm is launched in every layer of every step
QUICK = Schedule((2,), 0.1)


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
@pytest.mark.parametrize("sandbox", KINDS)
def test_a_sabotaged_kernel_costs_answers_and_gold_none(sandbox: str, tmp_path: Path) -> None:
    gold, wrong = (accuracy(control, sandbox, tmp_path) for control in ("gold", "sabotage"))
    assert gold["status"] == "passed", gold["reason"]
    assert gold["coverage"]["state"] == "covered"
    assert gold["accuracy"]["filters"]["strict-match"]["gold_right"] >= 22  # of 24: nine of ten and more
    assert gold["accuracy"]["filters"]["strict-match"]["model_right"] >= 22
    assert wrong["status"] == "failed", wrong["reason"]
    assert wrong["accuracy"]["filters"]["strict-match"]["model_right"] <= 6
    assert wrong["accuracy"]["paper"] is False


@pytest.mark.slow
def test_a_busy_loop_in_the_kernel_costs_time(tmp_path: Path) -> None:
    (entry,) = load_suite("demo", ROOT / "tasks").select([TASK])
    with environment.session() as session:
        place = place_of(entry, "local", session, run="busy", devices=(), device_class="cpu")
        busy = controls.sabotaged(entry, base_repository(entry), "busy_loop", 256)
        with opener(place, busy.patch_bytes, "sabotage")() as sandbox:
            both = sides(place, sandbox)
            result = run_latency(entry.task, Sides(both.model, both.gold), tmp_path / "raw", schedule=QUICK)
    assert result.latency is not None and result.coverage is not None
    assert result.status == "failed", result.reason
    assert all(item.estimate < 0.8 for item in result.latency.ratios.values()), result.reason
    assert result.coverage.state == "covered" and result.coverage.phases["requests"] > 0
    assert grade_latency(entry.task, tmp_path / "raw") == result
