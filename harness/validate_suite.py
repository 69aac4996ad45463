"""`rtb validate` over the tasks of a suite: what the command line calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.decisions import STANDARD, Schedule
from harness.opened_sides import place_of
from harness.validate import Validator, validator
from harness.validation import Validation
from rtb import environment, machine
from rtb.devices import lease
from rtb.suite import TaskEntry
from rtb.task import STAGES, StageName, TestIds


def validate_tasks(
    entries: tuple[TaskEntry, ...],
    *,
    sandbox: str | None,
    out: Path,
    say: Callable[[str], None],
    stages: tuple[StageName, ...] = STAGES,
    runs: int = 3,
    gpu: bool = False,
    schedule: Schedule = STANDARD,
) -> list[Validation]:
    """Validate each task; raw files under `out`/<instance id>. Raises what a control that cannot run raises."""
    found: list[Validation] = []

    def validate(checked: Validator) -> None:
        found.append(checked.validate(stages))
        refused = "; ".join(found[-1].refused)
        say(f"{found[-1].instance_id}: {'REFUSED: ' + refused if refused else 'sound'}")

    _each(validate, entries, sandbox, out, say, runs, gpu, schedule)
    return found


def record_twins(
    entries: tuple[TaskEntry, ...], *, sandbox: str | None, out: Path, say: Callable[[str], None], gpu: bool = False
) -> dict[str, TestIds]:
    """Measure again which tests of each task notice gold made wrong; all else of a validation stays as it is."""
    found: dict[str, TestIds] = {}

    def record(checked: Validator) -> None:
        tests = checked.twin()
        found[tests.instance_id] = tests
        many = f"{len(tests.twin_noticed_by)} of {len(tests.expected)} tests"
        say(f"{tests.instance_id}: gold made wrong is {tests.twin} ({many})")

    _each(record, entries, sandbox, out, say, 1, gpu, STANDARD)
    return found


def _each(
    work: Callable[[Validator], None],
    entries: tuple[TaskEntry, ...],
    sandbox: str | None,
    out: Path,
    say: Callable[[str], None],
    runs: int,
    gpu: bool,
    schedule: Schedule,
) -> None:
    """Do the work with each task's validator, its GPUs leased for as long."""
    kind = environment.choose_kind(sandbox)
    with environment.session() as session:
        for entry in entries:
            count = max(1, entry.task.environment.gpu.count) if gpu else entry.task.environment.gpu.count
            with lease(count) as devices:
                gpus, _ = machine.gpus()
                device_class = gpus[0] if devices and gpus else "cpu"
                place = place_of(
                    entry, kind, session, run=f"validate-{entry.instance_id}", devices=devices,
                    device_class=device_class,
                )  # fmt: skip
                told = partial(_say, say, entry.instance_id)
                work(validator(place, out / entry.instance_id, told, runs=runs, schedule=schedule))


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")
