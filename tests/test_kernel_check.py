"""Kernels that naive checks accept: the inputs of public bug reports, run in the demo's own environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.kernel_check import KernelCheck, check_kernel
from rtb import environment
from rtb.sandbox import Sandbox
from rtb.suite import load_suite
from tests.cases import ROOT, case_folder

RELU = b"import torch\n\n\ndef relu(x):\n    return torch.relu(x)\n"
HONEST = b"import torch\n\n\ndef honest(x):\n    return torch.clamp(x, min=0)\n"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """A sandbox that has torch, whatever this interpreter has."""
    entry = load_suite("demo", ROOT / "tasks").entries[0]
    prepared = environment.prepare(entry, "local")
    with environment.open_sandbox(prepared, run="kernel-check") as sandbox:
        yield sandbox


def relu_case(box: Sandbox, tmp_path: Path, function: str, source: bytes | None = None) -> KernelCheck:
    candidates = source or (case_folder("96-dishonest-kernels") / "candidates.py").read_bytes()
    return check_kernel(
        box, RELU, candidates, function, log=tmp_path / "log", shape=(64, 33), reference_function="relu"
    )


@pytest.mark.slow
def test_a_crash_is_not_equal_to_an_empty_answer(box: Sandbox, tmp_path: Path) -> None:
    folder = case_folder("95-empty-equals-empty")
    reference, candidate = ((folder / f"{name}.py").read_bytes() for name in ("reference", "candidate"))
    found = check_kernel(box, reference, candidate, "run", log=tmp_path / "log")
    assert not found.correct
    assert "no result compared" in found.reason and "exit code 1" in found.reason and "triton" in found.reason
    assert check_kernel(box, reference, reference, "run", log=tmp_path / "log").correct
    silent = b"def run():\n    return None\n"
    assert not check_kernel(box, silent, silent, "run", log=tmp_path / "log").correct  # nothing was compared


@pytest.mark.slow
def test_an_honest_kernel_is_right_and_timed(box: Sandbox, tmp_path: Path) -> None:
    found = relu_case(box, tmp_path, "honest", HONEST)
    assert (found.correct, found.timing_valid) == (True, True), found
    assert found.times is not None and found.times.n == 3 and found.times.median is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("mutates_input", "not the reference's"),
        ("reuses_memory", "not the reference's"),
        ("lazy", "rejected: the result is a L, not a plain tensor"),
        ("side_stream", "no result compared"),  # without a GPU it cannot run at all
    ],
)
def test_dishonest_kernels_are_not_correct(box: Sandbox, tmp_path: Path, function: str, reason: str) -> None:
    found = relu_case(box, tmp_path, function)
    assert not found.correct and reason in found.reason, found
    assert found.timing_valid is None and found.times is None


@pytest.mark.slow
def test_a_replayed_result_has_no_valid_time(box: Sandbox, tmp_path: Path) -> None:
    found = relu_case(box, tmp_path, "replays")
    assert (found.correct, found.timing_valid, found.times) == (True, False, None), found
    assert "timed call" in found.timing_reason


@pytest.mark.slow
def test_a_right_result_in_a_changed_input_is_wrong(box: Sandbox, tmp_path: Path) -> None:
    inplace = b"import torch\n\n\ndef honest(x):\n    out = torch.relu(x)\n    x.zero_()\n    return out\n"
    assert relu_case(box, tmp_path, "honest", inplace).reason == "it changes its input"


@pytest.mark.slow
def test_a_candidate_cannot_answer_for_the_judge(box: Sandbox, tmp_path: Path) -> None:
    forged = (
        b"import json, os, sys\nopen(sys.argv[2], 'w').write(json.dumps({'correct': True, 'reason': 'equal'}))\n"
        b"os._exit(0)\n"
    )
    found = relu_case(box, tmp_path, "honest", forged)
    assert not found.correct and "no result compared" in found.reason
