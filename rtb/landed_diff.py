"""The diffs of many landed changes from two git processes, cut into their files. EDGE git, reading only.

A process for each diff costs more than the diff: hundreds of changes are asked for at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtb.checkout import run_git
from rtb.errors import GitFailed

_PATCH = (
    "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
# A line of a binary patch is one letter and a multiple of five more, so none has 40; other lines of a file's part
# begin with a blank or a sign, or are headers.
_COMMIT = re.compile(rb"^([0-9a-f]{40})\n", re.MULTILINE)
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)


@dataclass(frozen=True)
class LandedDiff:
    """The changed paths of a landed change in git's order, each with its part of the patch, bytes exact."""

    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that differs, renames as a deletion and an addition."""
        return tuple(path for path, _ in self.files)

    def over(self, paths: Collection[str]) -> bytes:
        """The patch over exactly these paths, as `rtb.checkout.diff` gives it."""
        wanted = frozenset(paths)
        return b"".join(part for path, part in self.files if path in wanted)


def landed_diffs(repository: Path, changes: Sequence[tuple[str, str]]) -> dict[str, LandedDiff]:
    """The diff of each (base, landed) by its landed commit; full commit ids, no landed one twice.

    Raises GitFailed when git fails or its answers do not fit each other.
    """
    if not changes:
        return {}
    # A commit with the parents it is to be taken to have.
    asked = "".join(f"{landed} {base}\n" for base, landed in changes).encode()
    common = ["diff-tree", "--stdin", "-r", "--no-renames"]
    # Without --always git is as silent about a change of nothing as about a commit that it does not have.
    raw = run_git([*common, "--raw", "-z", "--always"], repository=repository, stdin=asked).stdout
    patch = run_git([*common, "--patch", *_PATCH], repository=repository, stdin=asked).stdout
    marks = _COMMIT.split(patch)[1:]
    parts = {commit.decode(): text for commit, text in zip(marks[::2], marks[1::2], strict=True)}
    found: dict[str, LandedDiff] = {}
    for commit, entries in _raw(raw):
        pieces = _FILE.split(parts.get(commit, b""))[1:]
        if sum(count for _, count in entries) != len(pieces):
            raise GitFailed(f"{repository}: the patch of {commit} does not have the files that its trees have")
        held = iter(pieces)
        found[commit] = LandedDiff(
            tuple((path, b"".join(next(held) for _ in range(count))) for path, count in entries)
        )
    if missing := [landed for _, landed in changes if landed not in found]:
        raise GitFailed(f"{repository} has no commit {missing[0]}: fetch it, or mine a clone that has it")
    return {landed: found[landed] for _, landed in changes}


def _raw(told: bytes) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Each commit's paths, with the number of parts that each has in a patch: a change of type is two."""
    commit, entries = "", list[tuple[str, int]]()
    tokens = iter(told.split(b"\0"))
    for token in tokens:
        if token.startswith(b":"):
            old, new = token[1:].split(b" ", 2)[:2]
            twice = old != b"000000" != new and old[:2] != new[:2]
            entries.append((os.fsdecode(next(tokens)), 2 if twice else 1))
        elif token:
            if commit:
                yield commit, entries
            commit, entries = token.decode().strip(), []
    if commit:
        yield commit, entries
