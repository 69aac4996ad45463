"""Opens the sides of a paired stage from a task: environment, gold's tree, what gold answered before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness import controls
from harness.plan import patch_plan
from harness.stages.sides import Open, Sides
from rtb import environment
from rtb.base_tree import base_repository
from rtb.baseline import read_baseline
from rtb.environment import Prepared, Session
from rtb.errors import ExpectedError
from rtb.git_objects import borrow_objects
from rtb.hydration import sha256
from rtb.sandbox import Sandbox
from rtb.storage import cache_folder
from rtb.suite import TaskEntry
from rtb.task import canonical_json


@dataclass(frozen=True)
class Place:
    """Where sandboxes of one task are opened."""

    entry: TaskEntry
    prepared: Prepared
    session: Session
    run: str
    devices: Sequence[str]
    device_class: str


def opener(place: Place, patch: bytes, control: str | None) -> Open:
    """Opens a sandbox with a patch and the trusted tests laid. Raises ExpectedError when it does not apply."""

    @contextmanager
    def opened() -> Iterator[Sandbox]:
        base = base_repository(place.entry)
        with borrow_objects(base.path) as objects:
            plan = patch_plan(place.entry, objects, base.tree, patch, control=control)
        if plan.change is None:
            raise ExpectedError(f"{place.entry.instance_id}: the {control} patch does not apply: {plan.facts.reason}")
        with place.session.open_sandbox(place.prepared, run=place.run, devices=place.devices) as sandbox:
            sandbox.write(sandbox.tree, plan.change)
            yield sandbox

    return opened


def control_opener(place: Place, name: str) -> Open:
    """Opens a control's sandbox: gold or base."""
    prediction = controls.control(name, place.entry, base_repository(place.entry))
    return opener(place, prediction.patch_bytes, name)


def sides(place: Place, model: Sandbox, concurrency: int = 32) -> Sides:
    """The sides of a paired stage for the tree that `model` holds."""
    asked = canonical_json(place.entry.task.accuracy) if place.entry.task.accuracy is not None else b""
    gold = place.entry.task.patches.gold.sha256 or ""
    key = sha256("\0".join((gold, place.prepared.digest, place.device_class)).encode() + asked)
    return Sides(
        model=model,
        gold=control_opener(place, "gold"),
        gold_cache=cache_folder("gold-answers", f"{place.entry.instance_id}-{key[:24]}"),
        concurrency=concurrency,
        known=read_baseline(place.entry, place.device_class),
    )


def place_of(
    entry: TaskEntry, kind: environment.Kind, session: Session, *, run: str, devices: Sequence[str], device_class: str
) -> Place:
    """A task's environment, made if need be."""
    return Place(entry, environment.prepare(entry, kind), session, run, devices, device_class)
