"""What was done before a kill is not done again: real processes, killed with SIGKILL in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.decisions import Schedule
from harness.evaluate import Finished, Request, evaluate
from harness.stages.latency import run_latency
from harness.stages.latency_grade import grade_latency
from harness.validate_suite import validate_tasks
from rtb.run import StageTimes, TaskRun
from rtb.storage import write_model
from rtb.suite import LoadedSuite
from rtb.task import STAGES, TestIds
from tests import pocketsuite, servingsuite
from tests.sides import both, opener, serve, task

NAME = servingsuite.NAME
DOUBLES = tuple(f"tests/test_double.py::test_doubles[{x}]" for x in (1, 3))
IDS = TestIds(instance_id=NAME, fail_to_pass=DOUBLES, pass_to_pass=(), gold_runs=1, base_runs=1)


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[LoadedSuite]:
    """The serving suite, found by name, also by processes."""
    with servingsuite.found(tmp_path):
        made = servingsuite.make(tmp_path)
        write_model(made.entries[0].folder.tests_json, IDS)
        yield made


def kill_when(there: Callable[[], bool], *words: str) -> None:
    """Start rtb, kill it when `there` says so."""
    argv = [sys.executable, "-m", "rtb.cli", *words, "--suite", "serving", "--sandbox", "local"]
    env = {**os.environ, "PYTHONPATH": str(pocketsuite.ROOT)}
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        end = time.monotonic() + 120
        while not there():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def run(out: Path, predictions: str) -> Finished:
    return evaluate(
        Request(
            predictions=predictions, suite="serving", instances=(), stages=STAGES, sandbox="local", workers=1,
            run_id="r", profile="robust", out=out, retries=0, quiet=True,
        )
    )  # fmt: skip


@pytest.mark.slow
def test_an_evaluation_goes_on_with_the_stage_and_the_block_pair_it_was_killed_in(
    suite: LoadedSuite, tmp_path: Path
) -> None:
    folder = TaskRun(tmp_path / "r" / NAME)
    latency = folder.stage("latency")
    blocks = latency / "blocks.jsonl"
    kill_when(
        lambda: blocks.is_file() and len(blocks.read_text().splitlines()) >= 4,
        *("evaluate", "--predictions", "gold", "--out", str(tmp_path), "--run-id", "r", "--plain"),
    )
    done = (
        folder.stage("unit") / "exec.json",
        folder.stage("accuracy") / "accuracy.json",
        *(latency / "requests" / f"{pair:03d}-{side}-batch.jsonl" for pair in (0, 1) for side in ("gold", "model")),
    )
    before = [path.read_bytes() for path in done]
    finished = run(tmp_path, "gold")
    assert [path.read_bytes() for path in done] == before
    verdict = finished.run.read_verdict(NAME)
    assert verdict is not None and not finished.report.incomplete
    assert [stage.status for stage in verdict.stages][:2] == ["passed", "passed"]
    assert verdict.stages[2].latency is not None
    assert max(ratio.pairs for ratio in verdict.stages[2].latency.ratios.values()) > 2
    assert set(StageTimes.model_validate_json(folder.times.read_bytes()).stage_seconds) == set(STAGES)
    assert not folder.finished_stages.exists()
    # Another patch under the same id, after a kill at the same place: nothing of gold's may stand.
    write_model(folder.finished_stages, StageTimes(total_seconds=1.0, stage_seconds={"unit": 1.0}))
    folder.times.unlink()
    other = run(tmp_path, "base").run.read_verdict(NAME)
    assert other is not None and other.outcome == "unresolved"
    assert done[0].read_bytes() != before[0]


@pytest.mark.slow
def test_a_killed_validation_keeps_the_control_runs_it_has(suite: LoadedSuite, tmp_path: Path) -> None:
    unit = tmp_path / NAME / "unit"
    said: list[str] = []

    def validate() -> None:
        said.clear()
        validate_tasks(suite.entries, sandbox="local", out=tmp_path, say=said.append, stages=("unit",), runs=2)

    kill_when(
        (unit / "base-1" / "exec.json").is_file,
        *("validate", NAME, "--stages", "unit", "--runs", "2", "--out", str(tmp_path)),
    )
    before = (unit / "gold-1" / "exec.json").read_bytes()
    (unit / "gold-2" / "exec.json").write_text("{")  # as a power cut may leave it
    validate()
    assert said[:3] == [
        f"{NAME}: unit: gold, run 1 (kept from before)",
        f"{NAME}: unit: gold, run 2",
        f"{NAME}: unit: base, run 1 (kept from before)",
    ]
    assert said[-1] == f"{NAME}: sound"
    assert (unit / "gold-1" / "exec.json").read_bytes() == before
    validate()  # a finished one is measured again
    assert not [line for line in said if "kept from before" in line]
    assert (unit / "gold-1" / "exec.json").read_bytes() != before


def test_pairs_stand_only_while_their_requests_are_whole(tmp_path: Path) -> None:
    gold = opener(tmp_path / "gold", "--ttft-ms 20 --gap-ms 2")
    model = opener(tmp_path / "model", "--ttft-ms 20 --gap-ms 2")
    load = {"prompts": 2, "input_len": 20, "output_len": 3, "concurrency": 1}
    measured, raw = task(latency={"serve": serve(), "workload": load}), tmp_path / "raw"
    first = raw / "requests" / "000-gold-batch.jsonl"

    def measure(looks: int) -> None:
        with both(gold, model) as sides:
            result = run_latency(measured, sides, raw, schedule=Schedule((looks,), 0.02))
        assert result == grade_latency(measured, raw) and result.latency is not None
        assert [ratio.pairs for ratio in result.latency.ratios.values()] == [looks, looks]

    measure(2)
    before = first.read_bytes()
    (raw / "latency.json").unlink()  # a kill leaves no record
    measure(3)
    assert first.read_bytes() == before
    (raw / "latency.json").unlink()
    (raw / "requests" / "001-model-batch.jsonl").write_text("{")
    measure(2)
    assert first.read_bytes() != before
