"""Hydrate: a task that holds facts only gets its patches from a clone, and they must match the recorded digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtb import checkout
from rtb.errors import ExpectedError
from rtb.storage import cache_folder, write_atomic, write_model
from rtb.suite import TaskEntry
from rtb.task import Patches, PatchFacts, Task


@dataclass(frozen=True)
class TaskPatches:
    """The two halves of a landed diff, as bytes."""

    gold: bytes
    test: bytes

    def as_mapping(self) -> dict[str, bytes]:
        return {"gold": self.gold, "test": self.test}


@dataclass(frozen=True)
class Hydrated:
    """What hydrate did for one task."""

    instance_id: str
    source: Path
    gold_sha256: str
    test_sha256: str
    pinned: bool
    folder: Path


def patch_folder(entry: TaskEntry) -> Path:
    """Where a foreign task's patches are kept: in the user's cache, named by the two commits."""
    task = entry.task
    return cache_folder("patches", f"{task.instance_id}-{task.base_commit[:12]}-{task.merge_commit[:12]}")


def patches_of(entry: TaskEntry) -> TaskPatches:
    """A task's patches: beside task.json, else as hydrated. Checked against the recorded digests each time.

    Raises ExpectedError when they are not there, or are not the recorded ones.
    """
    beside = entry.folder.gold_patch.exists() or entry.folder.test_patch.exists()
    home = entry.folder.path if beside else patch_folder(entry)
    try:
        patches = TaskPatches((home / "gold.patch").read_bytes(), (home / "test.patch").read_bytes())
    except FileNotFoundError:
        raise ExpectedError(
            f"{entry.instance_id} holds facts only and is not hydrated: run 'rtb tasks hydrate {entry.instance_id}' "
            "(add --clone PATH to use a clone you have)"
        ) from None
    _check(entry, patches, home)
    return patches


def sha256(data: bytes) -> str:
    """Hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()


def _check(entry: TaskEntry, patches: TaskPatches, where: Path) -> None:
    for name, data, facts in (
        ("gold", patches.gold, entry.task.patches.gold),
        ("test", patches.test, entry.task.patches.test),
    ):
        if facts.sha256 is None:
            raise ExpectedError(
                f"{entry.instance_id}: task.json records no digest for its {name} patch; review it, then run "
                f"'rtb tasks hydrate {entry.instance_id} --pin'"
            )
        if sha256(data) != facts.sha256:
            raise ExpectedError(
                f"{where / f'{name}.patch'} has sha256 {sha256(data)}, task.json records {facts.sha256}: the clone, "
                "the split rules or the file differ from what was recorded; hydrate again, or --pin if it is meant"
            )


def split_landed(entry: TaskEntry, git_dir: Path) -> tuple[TaskPatches, checkout.Split]:
    """Gold and test patch of the landed diff, by the repository's split rules."""
    task = entry.task
    paths = checkout.changed_paths(git_dir, task.base_commit, task.merge_commit)
    if not paths:
        raise ExpectedError(f"{entry.instance_id}: base and landed commit have the same tree; check the two commits")
    split = checkout.split_paths(paths, entry.split_rules)
    gold = checkout.diff(git_dir, task.base_commit, task.merge_commit, split.source)
    test = checkout.diff(git_dir, task.base_commit, task.merge_commit, split.tests)
    return TaskPatches(gold, test), split


def hydrate(entry: TaskEntry, *, clone: Path | None = None, pin: bool = False) -> Hydrated:
    """Make a task's patches from its commits, check them, and keep them in the user's cache.

    `pin` writes digests and paths into task.json instead of checking them. Raises ExpectedError on a mismatch.
    """
    git_dir = checkout.obtain(entry, clone)
    patches, split = split_landed(entry, git_dir)
    if pin:
        entry = _pin(entry, patches, split)
    else:
        _same_paths(entry, "gold", entry.task.patches.gold.paths, split.source)
        _same_paths(entry, "test", entry.task.patches.test.paths, split.tests)
    home = patch_folder(entry)
    _check(entry, patches, home)
    write_atomic(home / "gold.patch", patches.gold)
    write_atomic(home / "test.patch", patches.test)
    return Hydrated(entry.instance_id, git_dir, sha256(patches.gold), sha256(patches.test), pin, home)


def _same_paths(entry: TaskEntry, name: str, recorded: Sequence[str], found: Sequence[str]) -> None:
    if set(recorded) != set(found):
        odd = sorted(set(recorded) ^ set(found))[0]
        side = "only in task.json" if odd in recorded else "only in the clone's diff"
        raise ExpectedError(
            f"{entry.instance_id}: the {name} patch's paths differ from task.json ({odd} is {side}); mend the split "
            f"rules of {entry.task.repo} in {entry.suite_path / 'suite.json'}, or --pin if it is meant"
        )


def _pin(entry: TaskEntry, patches: TaskPatches, split: checkout.Split) -> TaskEntry:
    facts = Patches(
        gold=PatchFacts(sha256=sha256(patches.gold), paths=split.source),
        test=PatchFacts(sha256=sha256(patches.test), paths=split.tests),
    )
    task = Task.model_validate({**entry.task.model_dump(), "patches": facts.model_dump()})
    write_model(entry.folder.task_json, task)
    return TaskEntry(task=task, folder=entry.folder, suite=entry.suite, suite_path=entry.suite_path)
