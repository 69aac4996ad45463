"""GPU leases: one holder at a time, between processes too, and an attempt of the agent sees its own GPU alone.

No GPU is needed: a lease is about the ids that CUDA_VISIBLE_DEVICES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtb import devices
from rtb.errors import ExpectedError
from rtb.suite import load_suite
from scaffold.endpoint import ModelOptions
from scaffold.plans import SolveOptions
from scaffold.solve import solve
from scaffold.solve_folder import SolveFolder
from scaffold.trajectory import read_trajectory
from tests.scripted_model import ScriptedModel
from tests.toysuite import make_suite, solutions, toy_home
from tests.variables import variables

HOLD = """
import sys
from rtb import devices
with devices.lease(int(sys.argv[1])) as held:
    print(*held, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[None]:
    """A machine with GPUs 0 and 1, as far as leases look."""
    with variables({"CUDA_VISIBLE_DEVICES": "0,1", "RTB_CACHE": str(tmp_path / "cache")}):
        yield


def holder(count: int) -> tuple[subprocess.Popen[str], str]:
    """Another process that holds GPUs until its input ends, and the ids it got."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_nothing_is_held_for_nothing_and_too_many_are_refused(two: None) -> None:
    with devices.lease(0) as held:
        assert held == ()
    with devices.lease(2) as held:
        assert held == ("0", "1")
    with pytest.raises(ExpectedError, match=r"needs 3 GPU\(s\), this machine has 2"), devices.lease(3):
        pass
    with variables({"CUDA_VISIBLE_DEVICES": "-1"}):
        assert devices.visible() == ()


def test_each_gpu_has_one_holder_and_the_next_one_waits_for_it(two: None) -> None:
    first, mine = holder(1)
    second, other = holder(1)
    got: list[tuple[str, ...]] = []

    def wait() -> None:
        with devices.lease(1) as held:
            got.append(held)

    waiting = threading.Thread(target=wait, daemon=True)
    try:
        assert {mine, other} == {"0", "1"}
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and got == [], "both are held"
        second.kill()  # a holder that dies gives its GPU back
        waiting.join(30)
        assert got == [(other,)]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate(timeout=30)


def test_an_attempt_leases_what_its_task_asks_for_and_sees_that_alone(tmp_path: Path) -> None:
    with toy_home(tmp_path / "unused"):
        made = make_suite(tmp_path / "gpu", "needs-gpu")
        task = made.entries[0].folder.path / "task.json"
        document = json.loads(task.read_text())
        document["environment"]["gpu"] = {"count": 1}
        task.write_text(json.dumps(document))
        suite = load_suite("needs-gpu", tmp_path / "gpu" / "tasks")
        with ScriptedModel(solutions(suite)).serve() as server, variables({"CUDA_VISIBLE_DEVICES": "7,5"}):
            model = ModelOptions(name="local/spy", base_url=server.url)
            options = SolveOptions(model=model, out=tmp_path / "p.jsonl", sandbox="local", quiet=True)
            with devices.lease(1) as taken:
                assert taken == ("7",)
                summary = solve(suite.entries[:1], options)
        assert not summary.incomplete
        folder = SolveFolder(options.out).attempt(suite.entries[0].instance_id, 1)
        _, seen = next(read_trajectory(folder.path).commands)
        assert "CUDA_VISIBLE_DEVICES=5\n" in seen.output
        assert "TRITON_INTERPRET" not in seen.output, "kernels are compiled where there is a GPU"
