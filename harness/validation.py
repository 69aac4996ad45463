"""What controls must show before a task may judge anybody. Pure: from what was measured to reasons to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rtb.baseline import Baseline
from rtb.result import CoverageFacts, Status
from rtb.task import SCHEMA_VERSION, Frozen, StageName

Control = Literal["gold", "base", "scale", "drop_rows", "low_precision", "busy_loop"]
# A stage claims to notice these. Accuracy needs to notice one of its two: greedy decoding cannot see a scaled last
# norm or logit, which is mathematics and no blindness. Low precision is measured and shown; tolerances may allow it.
CLAIMS: dict[StageName, tuple[Control, ...]] = {
    "unit": ("scale", "drop_rows"),
    "accuracy": ("scale", "drop_rows"),
    "latency": ("busy_loop",),
}


class ControlRun(Frozen):
    """One run of one stage with a patch whose answer is known."""

    control: Control
    stage: StageName
    number: int = Field(ge=1)
    status: Status
    reason: str


class Validation(Frozen):
    """validation.json: every control run, and whether the task may be used. `refused`: why not; empty means sound."""

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: str
    sandbox: str
    device_class: str
    stages: tuple[StageName, ...]
    controls: tuple[ControlRun, ...]
    impossible: dict[Control, str] = Field(default={}, description="sabotages that the targets do not allow, and why")
    coverage: dict[StageName, CoverageFacts] = {}
    baseline: Baseline
    quarantined: dict[str, str] = {}
    refused: tuple[str, ...]
    notes: tuple[str, ...] = ()


def refusals(
    stages: Sequence[StageName],
    controls: Sequence[ControlRun],
    impossible: dict[Control, str],
    coverage: dict[StageName, CoverageFacts],
) -> tuple[str, ...]:
    """Each reason in one sentence. Order: gold, base, coverage, sabotage."""
    found: list[str] = []
    failing = {stage: [run for run in _of(controls, stage, "gold") if run.status == "failed"] for stage in stages}
    found += [
        f"gold fails the {stage} stage ({len(bad)} runs): {bad[0].reason}" for stage, bad in failing.items() if bad
    ]
    found += _nothing_passes(controls)
    for stage in stages:
        facts = coverage.get(stage)
        if facts is not None and facts.state == "uncovered":
            found.append(f"the {stage} stage says nothing about the target: {facts.reason}")
            continue
        found += _unnoticed(stage, controls, impossible)
    return tuple(found)


def _nothing_passes(controls: Sequence[ControlRun]) -> list[str]:
    """An optimization's tests may be those of before: then another stage must tell base from gold."""
    unit = _of(controls, "unit", "base")
    passing = [run for run in unit if run.status == "passed"]
    if not passing:
        return []
    said = f"doing nothing passes the unit stage (run {passing[0].number})"
    if len(passing) < len(unit):
        return [said]
    other = [run for run in controls if run.control == "base" and run.stage != "unit"]
    if any(run.status == "failed" for run in other):
        return []
    shown = "; ".join(f"{run.stage}: {run.status}: {run.reason}" for run in other)
    return [f"{said}, and no other stage tells it from gold ({shown or 'none was run: validate latency, too'})"]


def _of(controls: Sequence[ControlRun], stage: StageName, control: Control) -> list[ControlRun]:
    return [run for run in controls if run.stage == stage and run.control == control]


def _unnoticed(stage: StageName, controls: Sequence[ControlRun], impossible: dict[Control, str]) -> list[str]:
    """Sabotages that the stage claims to notice and did not."""
    claimed = [control for control in CLAIMS[stage] if control not in impossible]
    missed = {
        control: [run for run in runs if run.status != "failed"]
        for control in claimed
        if (runs := _of(controls, stage, control))
    }
    unnoticed = [control for control, runs in missed.items() if runs]
    if stage == "accuracy" and len(unnoticed) < len(missed):
        return []
    if not unnoticed:
        return []
    first = missed[unnoticed[0]][0]
    return [
        f"the {stage} stage does not notice a sabotaged target ({', '.join(unnoticed)}): "
        f"{first.status} in run {first.number}: {first.reason}"
    ]


def notes(controls: Sequence[ControlRun], impossible: dict[Control, str], baseline: Baseline) -> tuple[str, ...]:
    """What a reader should know though it refuses nothing."""
    found = [f"{control} is not possible: {why}" for control, why in impossible.items()]
    if baseline.unmeasurable:
        found.append(f"latency is unmeasurable on this machine: {baseline.unmeasurable}")
    found += [
        f"the {run.stage} stage lets low precision pass ({run.status})"
        for run in controls
        if run.control == "low_precision" and run.status != "failed"
    ]
    return tuple(dict.fromkeys(found))
