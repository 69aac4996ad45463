"""Launches are counted in real runs through the interpreter; what is proof is decided from the counts alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.coverage import Launches, decide_coverage, parse_trace
from harness.trace import lay_tracer, read_trace
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits, Sandbox
from rtb.task import Target

KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def used(x_ptr, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tl.store(x_ptr + offsets, helper(tl.load(x_ptr + offsets)))

@triton.jit
def unused(x_ptr):
    tl.store(x_ptr, 0.0)
"""
RUN = """
import os, sys, time
import torch
from ops import kernels
x = torch.zeros(8)
for _ in range(3):
    kernels.used[(2,)](x, N=8)
"""


def target(name: str, kind: str = "triton_kernel", path: str = "ops/kernels.py") -> Target:
    return Target.model_validate({"path": path, "name": name, "kind": kind, "change": "modified"})


@contextmanager
def local(tmp_path: Path, run: str = RUN) -> Iterator[Sandbox]:
    base = tmp_path / "base"
    (base / "ops").mkdir(parents=True)
    (base / "ops" / "kernels.py").write_text(KERNELS)
    (base / "run.py").write_text(run)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open_local_sandbox(base, env={"TRITON_INTERPRET": "1"}, path=path, limits=Limits()) as sandbox:
        yield sandbox


def execute(sandbox: Sandbox, tmp_path: Path, script: str = "run.py") -> tuple[Launches, ...]:
    trace = lay_tracer(sandbox)
    env = {**trace.env, "PYTHONPATH": f"{trace.folder}/path"}
    trace.enter("requests")
    done = sandbox.execute(["python", script], output=tmp_path / "log", timeout_seconds=120, env=env)
    assert done.exit_code == 0, (tmp_path / "log").read_text()
    return trace.collect(tmp_path / "launches.jsonl")


@pytest.mark.slow
def test_launches_of_a_real_run_are_counted_with_file_and_phase(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    with local(tmp_path) as sandbox:
        found = execute(sandbox, tmp_path)
    launched = {(item.how, item.kernel): item for item in found}
    assert launched["launch", "used"].count == 3
    assert launched["launch", "used"].phase == "requests"
    assert launched["launch", "used"].file.endswith("/ops/kernels.py")
    assert launched["inside", "helper"].count == 3
    assert ("launch", "unused") not in launched
    assert decide_coverage([target("used")], found).state == "covered"
    assert decide_coverage([target("helper")], found).state == "covered"
    missing = decide_coverage([target("unused")], found)
    assert missing.state == "uncovered"
    assert "ops/kernels.py::unused" in missing.reason
    assert read_trace(tmp_path / "launches.jsonl") == found


@pytest.mark.slow
def test_children_of_a_run_are_counted_too(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    parent = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"
    with local(tmp_path) as sandbox:
        Path(sandbox.tree, "child.py").write_text(RUN)
        Path(sandbox.tree, "parent.py").write_text(parent)
        found = execute(sandbox, tmp_path, "parent.py")
    assert [item.count for item in found if (item.how, item.kernel) == ("launch", "used")] == [3]


def test_another_sitecustomize_still_has_its_turn(tmp_path: Path) -> None:
    with local(tmp_path, "import builtins\nprint(builtins.own_customisation)\n") as sandbox:
        own = Path(sandbox.tree) / "own"
        own.mkdir()
        (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own_customisation = 'kept'\n")
        trace = lay_tracer(sandbox)
        env = {**trace.env, "PYTHONPATH": f"{trace.folder}/path:{own}"}
        sandbox.execute(["python", "run.py"], output=tmp_path / "log", timeout_seconds=60, env=env)
    assert (tmp_path / "log").read_text().strip() == "kept"


def launch(kernel: str, count: int = 5, phase: str = "requests", how: str = "launch", file: str = "") -> Launches:
    return Launches(how, phase, kernel, file or "/testbed/ops/kernels.py", count)


def test_a_kernel_of_the_same_name_in_another_file_is_no_proof() -> None:
    found = decide_coverage([target("used")], [launch("used", file="/site-packages/other/kernels.py")])
    assert found.state == "uncovered"


def test_only_launches_in_the_phase_asked_for_are_proof() -> None:
    trace = [launch("used", phase="start")]
    assert decide_coverage([target("used")], trace, "requests").state == "uncovered"
    assert decide_coverage([target("used")], trace).state == "covered"


def test_tritons_own_hook_is_proof_where_nothing_else_saw_the_launch() -> None:
    found = decide_coverage([target("outer.<locals>.used")], [launch("used", how="hook", file="")])
    assert found.state == "covered"
    both = [launch("used", count=5), launch("used", count=5, how="hook")]
    assert decide_coverage([target("used")], both).launches == {"used": 5}


def test_what_is_not_known_is_said() -> None:
    assert decide_coverage([target("used")], None).state == "untraced"
    assert decide_coverage([target("run", "launcher")], [launch("used")]).state == "untraced"
    nothing = decide_coverage([target("used")], [])
    assert (nothing.state, nothing.reason.endswith("(nor any other Triton kernel)")) == ("uncovered", True)
    some = decide_coverage([target("used"), target("unused")], [launch("used")])
    assert some.state == "covered"
    assert "not launched: ops/kernels.py::unused" in some.reason
    assert some.targets == {"ops/kernels.py::used": 5, "ops/kernels.py::unused": 0}


def test_a_broken_or_forged_trace_line_is_left_out() -> None:
    text = '[["launch", "p", "k", "f", 2]]\n[["launch", "p", "k", "f", -2], ["x"], 7]\n{broken\n{"a": 1}\n\n'
    assert parse_trace(text) == (Launches("launch", "p", "k", "f", 2),)
