"""`rtb validate` over the tasks of a suite: what the command line calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.decisions import STANDARD, Schedule
from harness.opened_sides import place_of
from harness.validate import validator
from harness.validation import Validation
from rtb import environment, machine
from rtb.devices import lease
from rtb.suite import TaskEntry
from rtb.task import STAGES, StageName


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
    kind = environment.choose_kind(sandbox)
    found: list[Validation] = []
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
                checked = validator(
                    place, out / entry.instance_id, partial(_say, say, entry.instance_id), runs=runs,
                    schedule=schedule,
                )  # fmt: skip
                found.append(checked.validate(stages))
            refused = "; ".join(found[-1].refused)
            say(f"{entry.instance_id}: {'REFUSED: ' + refused if refused else 'sound'}")
    return found


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")
