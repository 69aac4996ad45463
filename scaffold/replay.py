"""The commands of a trajectory again, in a fresh sandbox: does the same come of them?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rtb import environment
from rtb.errors import ExpectedError
from rtb.suite import TaskEntry, find_task, load_suite
from scaffold.budget import Budget
from scaffold.observation import Observation
from scaffold.places import places
from scaffold.trajectory import Result, Trajectory, read_trajectory
from scaffold.workbench import Workbench, workbench

Kind = Literal["exit code", "tree", "output"]

# What differs between two honest runs: times, addresses, process numbers, names of temporary files.
_VOLATILE = (
    (re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ms|us|µs|ns|s|sec|seconds|minutes)\b"), "<time>"),
    (re.compile(r"\b\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?\b"), "<clock>"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}\b"), "<date>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "<address>"),
    (re.compile(r"\b(?:pid|PID)[ =:]+\d+"), "<pid>"),
    (re.compile(r"/tmp/tmp[\w.]+"), "<temporary>"),
    (re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ .*"), "<date>"),
    (re.compile(r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}\b"), "<date>"),
)


@dataclass(frozen=True)
class Divergence:
    """Where a replay went another way. `recorded` and `now` are exit codes, tree ids, or the first differing line."""

    step: int
    command: str
    kind: Kind
    recorded: str
    now: str


@dataclass(frozen=True)
class Replay:
    """What came of a replay. `divergences` are in order; the tree at the end is compared as well."""

    trajectory: Path
    instance_id: str
    commands: int
    divergences: tuple[Divergence, ...]
    same_patch: bool | None
    patch: bytes

    @property
    def first(self) -> Divergence | None:
        return self.divergences[0] if self.divergences else None


@dataclass(frozen=True)
class ReplayOptions:
    """`suite`: where the task is, when its id is in several."""

    trajectory: Path
    suite: str | None = None
    sandbox: str | None = None
    command_seconds: float | None = None


def replay(options: ReplayOptions, on_step: Callable[[int, str], None] = lambda _step, _command: None) -> Replay:
    """Run a trajectory's commands in a fresh sandbox. Raises ExpectedError; MachineError when the sandbox fails."""
    recorded = read_trajectory(options.trajectory)
    entry = _task(recorded, options.suite)
    kind = environment.choose_kind(options.sandbox)
    with places(kind, "replay") as rooms, rooms.open(entry) as sandbox, workbench(sandbox) as bench:
        return replay_on(recorded, bench, _seconds(recorded, options), on_step)


def replay_on(
    recorded: Trajectory, bench: Workbench, command_seconds: float, on_step: Callable[[int, str], None]
) -> Replay:
    """The same on an open workbench."""
    found: list[Divergence] = []
    count = 0
    there = str(recorded.rtb.get("tree_path") or "")
    for step, result in recorded.commands:
        if result.returncode is None:
            continue  # it was never run: the attempt ended before
        on_step(step, result.command)
        seen = bench.execute(result.command, command_seconds)
        tree = bench.snapshot().tree
        count += 1
        found.extend(_compare(step, result, seen, tree, (there, bench.tree)))
    wanted = recorded.rtb.get("patch_sha256")
    last = bench.snapshot(final=True)
    return Replay(recorded.path, recorded.instance_id, count, tuple(found), _same(wanted, last.patch), last.patch)


def _same(wanted: object, patch: bytes) -> bool | None:
    return None if not isinstance(wanted, str) else hashlib.sha256(patch).hexdigest() == wanted


def _task(recorded: Trajectory, suite: str | None) -> TaskEntry:
    if not recorded.instance_id:
        raise ExpectedError(f"{recorded.path}: it names no task (instance_id)")
    name = suite or recorded.rtb.get("suite")
    if isinstance(name, str):
        return load_suite(name).select([recorded.instance_id])[0]
    return find_task(recorded.instance_id)


def _seconds(recorded: Trajectory, options: ReplayOptions) -> float:
    if options.command_seconds is not None:
        return options.command_seconds
    settings = recorded.rtb.get("settings") or {}
    return float((settings.get("budget") or {}).get("command_seconds") or Budget().command_seconds)


def _compare(step: int, recorded: Result, seen: Observation, tree: str, paths: tuple[str, str]) -> list[Divergence]:
    found: list[Divergence] = []

    def note(kind: Kind, before: str, now: str) -> None:
        found.append(Divergence(step, recorded.command, kind, before, now))

    if recorded.returncode != seen.returncode:
        note("exit code", str(recorded.returncode), str(seen.returncode))
    if recorded.tree is not None and recorded.tree != tree:
        note("tree", recorded.tree, tree)
    if recorded.output_sha256 != seen.output.sha256:
        before, now = steady(recorded.output, paths[0]), steady(seen.output.text, paths[1])
        if before != now:
            note("output", *_first_difference(before, now))
    return found


def steady(text: str, tree: str) -> str:
    """Output without what differs between two honest runs. The tree's path counts as one word."""
    if tree:
        text = text.replace(tree, "<tree>").replace(tree.rpartition("/")[0], "<sandbox>")
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return text


def _first_difference(before: str, now: str) -> tuple[str, str]:
    old, new = before.splitlines(), now.splitlines()
    for one, other in zip(old, new, strict=False):
        if one != other:
            return one[:300], other[:300]
    shorter = min(len(old), len(new))
    return (old[shorter:] or ["(end)"])[0][:300], (new[shorter:] or ["(end)"])[0][:300]
