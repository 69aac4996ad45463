"""A few moments of the battery that `scripts/chaos` runs in full: broken machines cost nobody a verdict."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from harness.verdict import grade_task
from rtb.errors import ExpectedError, MachineError, OutOfSpace, known_fault
from rtb.run import Run
from tests.chaos.bench import REFERENCE, Bench, bench
from tests.chaos.faults import FAULTS, NotHere

MOMENTS = {
    "kill -9 of rtb": 2, "file of an earlier run damaged": 2, "disk full: run folder": 2,
    "sandbox's first process killed": 3, "disk full: temporary files": 3,
}  # fmt: skip
# What needs a minute, or one more build, is left to the script.
LEFT_TO_THE_SCRIPT = ("disk full: building", "test hangs", "command hangs", "out of memory")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("chaos"), "local") as made:
        yield made


def small(sandbox: str) -> list[str]:
    names = [fault.name for fault in FAULTS if sandbox in fault.sandboxes]
    return [name for name in names if not name.startswith(LEFT_TO_THE_SCRIPT)]


def strike(made: Bench, name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    try:
        trials = list(fault.run(made, MOMENTS.get(name, 1), Random(7)))
    except NotHere as reason:
        pytest.skip(str(reason))
    assert trials
    for trial in trials:
        assert not trial.faults and not trial.left, trial


@pytest.mark.parametrize("name", small("local"))
def test_a_broken_machine_costs_no_verdict_and_leaves_nothing(local: Bench, name: str) -> None:
    strike(local, name)


def test_a_run_cut_at_any_byte_is_never_graded_otherwise(local: Bench, tmp_path: Path) -> None:
    """Every raw file of every task, cut at many places, emptied or gone: the same outcome, or a named fault."""
    run = Run(shutil.copytree(local.runs / "calm-1", tmp_path / "r"))
    record = run.read_record()
    tried = 0
    for name, outcome in REFERENCE.items():
        folder = run.task(name).path
        for path in sorted(item for item in folder.rglob("*") if item.is_file() and item.name != "verdict.json"):
            data = path.read_bytes()
            step = max(1, len(data) // 40)
            for cut in (*range(0, len(data), step), None):
                path.unlink() if cut is None else path.write_bytes(data[:cut])
                try:
                    assert grade_task(run, record, name).outcome in (outcome, "error", "not_submitted"), (path, cut)
                except ExpectedError as error:
                    assert str(folder) in str(error)
                tried += 1
            path.write_bytes(data)
    assert tried > 400


def test_errors_of_the_interpreter_that_are_the_machines() -> None:
    for error, kind in (
        (OSError(errno.ENOSPC, "No space left on device", "/x"), OutOfSpace),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), MachineError),
        (OSError(errno.EMFILE, "Too many open files", "/x"), MachineError),
        (MemoryError(), MachineError),
        (RuntimeError("can't start new thread"), MachineError),
        (OSError(errno.EROFS, "Read-only file system", "/x"), ExpectedError),
    ):
        fault = known_fault(error)
        assert type(fault) is kind, error
        assert "again" in str(fault) or "choose" in str(fault)
    assert known_fault(RuntimeError("generator raised StopIteration")) is None
    assert known_fault(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/x")) is None
    assert known_fault(ValueError("ours")) is None
