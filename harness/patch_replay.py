"""Hunks laid onto a file's bytes by exact match, apart from git: the proof of a repaired patch, and the reason when
one does not fit. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.patch_names import shown
from harness.patch_text import Hunk


@dataclass(frozen=True, slots=True)
class Replay:
    """The file after the hunks, and the hunks with the counts and places at which they were found."""

    data: bytes
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why hunks do not fit a file: one sentence."""

    reason: str


def images(hunk: Hunk) -> tuple[bytes, bytes]:
    """The bytes a hunk takes away with its context, and the bytes that stand there afterwards."""
    old: list[bytes] = []
    new: list[bytes] = []
    last: list[list[bytes]] = []
    for line in hunk.body:
        kind, text = line[:1], line[1:] + b"\n"
        if kind == b"\\":
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        last = [side for side, marks in ((old, b" -"), (new, b" +")) if kind in marks]
        for side in last:
            side.append(text)
    return b"".join(old), b"".join(new)


def replay(hunks: Sequence[Hunk], base: bytes, path: bytes) -> Replay | Misfit:
    """Lay hunks, in order and without overlap, each where its pre-image stands in `base`: at the place its header
    names, or else at the only place it stands at. Line ends, blanks and the missing last newline count."""
    starts = [0]
    at = base.find(b"\n") + 1
    while at:
        starts.append(at)
        at = base.find(b"\n", at) + 1
    pieces: list[bytes] = []
    placed: list[Hunk] = []
    cursor = shift = 0
    for number, hunk in enumerate(hunks, 1):
        old, new = images(hunk)
        where = _place(hunk, old, base, starts, cursor)
        if isinstance(where, str):
            return Misfit(f"{shown(path)}, hunk {number} ({hunk.header}, line {hunk.line} of the patch): {where}")
        pieces += [base[cursor:where], new]
        cursor = where + len(old)
        line = bisect_left(starts, where)
        old_count, new_count = hunk.counts
        placed.append(
            replace(
                hunk,
                old_start=line + (old_count > 0),
                old_count=old_count,
                new_start=line + shift + (new_count > 0),
                new_count=new_count,
                fault="",
            )
        )
        shift += new_count - old_count
    pieces.append(base[cursor:])
    return Replay(b"".join(pieces), tuple(placed))


def _place(hunk: Hunk, old: bytes, base: bytes, starts: Sequence[int], cursor: int) -> int | str:
    """The byte offset of the hunk, or why it has none."""
    if not old:
        # Nothing to match: only a file without a byte, or none, can be meant with certainty.
        return 0 if not base else "it has no context, and the file is not empty: its place cannot be proven"
    found = _matches(hunk, old, base, starts, cursor)
    if not found:
        return _difference(hunk, base)
    if len(found) > 1:
        return f"its lines stand at more than one place, none of them line {hunk.old_start}"
    return found[0]


def _matches(hunk: Hunk, old: bytes, base: bytes, starts: Sequence[int], cursor: int) -> list[int]:
    """Where the pre-image stands as whole lines: the stated place, or else the first two."""
    at_end = not old.endswith(b"\n") or not _has_trailing_context(hunk)
    if hunk.old_start <= 1 or at_end:
        # As git has it: a hunk at line 1 is at the top, and one that ends with a change is at the end of the file.
        where = 0 if hunk.old_start <= 1 else len(base) - len(old)
        ends = not at_end or where + len(old) == len(base)
        begins = where == 0 or (where > 0 and base[where - 1 : where] == b"\n")
        return [where] if where >= cursor and begins and ends and base.startswith(old, where) else []
    line = hunk.old_start - 1
    if line < len(starts) and starts[line] >= cursor and base.startswith(old, starts[line]):
        return [starts[line]]
    found = [0] if cursor == 0 and base.startswith(old) else []
    at = base.find(b"\n" + old, max(cursor - 1, 0))
    while at >= 0 and len(found) < 2:
        found.append(at + 1)
        at = base.find(b"\n" + old, at + 1)
    return found


def _has_trailing_context(hunk: Hunk) -> bool:
    for line in reversed(hunk.body):
        if line[:1] != b"\\":
            return line[:1] == b" "
    return False


def _difference(hunk: Hunk, base: bytes) -> str:
    """The first line that differs at the stated place."""
    lines = base.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    at = max(hunk.old_start - 1, 0)
    for line in hunk.body:
        if line[:1] not in (b" ", b"-"):
            continue
        if at >= len(lines):
            return f"the patch expects '{shown(line[1:])}' at line {at + 1}, the file has {len(lines)} lines"
        if lines[at] != line[1:]:
            return f"the patch expects '{shown(line[1:])}' at line {at + 1}, the file has '{shown(lines[at])}'"
        at += 1
    if not _has_trailing_context(hunk) and at < len(lines):
        return f"it ends with a change, so it must end the file, which goes on at line {at + 1}"
    return "its lines do not stand in the file as whole lines (the last newline may differ)"
