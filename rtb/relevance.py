"""Whether a Triton function can be in a file at all, told from its bytes before anything is taken apart.

Large files that only speak of Triton (server arguments, say) are most of what a history changes. Of a further version
of such a file only the place that differs is looked at: what makes a file matter is never longer than `_REACH`, or
stands on one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rtb.source_parts import LONGEST_LAUNCH, holds, launches

_LIBRARY = re.compile(rb"(?:from|import)[ \t]+[\w.]*triton_kernels")
_REACH = LONGEST_LAUNCH + 256


@dataclass(frozen=True, slots=True)
class Irrelevant:
    """A version of a file without a Triton function; whether it `speaks` of Triton all the same."""

    data: bytes
    speaks: bool


def irrelevant(
    data: bytes, path: str, wrappers: frozenset[str] = frozenset(), before: Irrelevant | None = None
) -> Irrelevant | None:
    """The version, when no Triton function can be in it; None when it has to be read.

    `wrappers`: a project's own decorators. `before`: another version of the same path, which saves most of the work.
    """
    if before is not None:
        place = _differing(before.data, data)
        if not (_has_traces(place, wrappers) if before.speaks else b"triton" in place):
            return Irrelevant(data, before.speaks)
    speaks = b"triton" in data or "triton" in path
    return None if speaks and _has_traces(data, wrappers) else Irrelevant(data, speaks)


def _has_traces(data: bytes, wrappers: frozenset[str]) -> bool:
    if b"triton_kernels" in data and _LIBRARY.search(data):
        return True
    if any(name.rsplit(".", 1)[-1].encode() in data for name in wrappers):
        return True
    text = data.decode("latin-1")  # fast; other letters than those written are letters, too
    return holds(text) or launches(text)


def _differing(before: bytes, data: bytes) -> bytes:
    """The lines of `data` from its first byte that differs to its last, and as far as a trace reaches around them."""
    old, new = len(before), len(data)
    begin = _shared(min(old, new), lambda at, size: data.startswith(before[at : at + size], at))
    rest = min(old, new) - begin
    end = new - _shared(rest, lambda at, size: data.endswith(before[old - at - size : old - at], 0, new - at))
    first = data.rfind(b"\n", 0, max(0, begin - _REACH)) + 1
    last = data.find(b"\n", min(new, end + _REACH))
    return data[first:] if last < 0 else data[first:last]


def _shared(most: int, same: Callable[[int, int], bool]) -> int:
    """How many bytes are the same one after the other, `most` at most. `same` says it of some after so many: they are
    compared by pieces, which get smaller."""
    at, size = 0, 1 << 16
    while size:
        while at + size <= most and same(at, size):
            at += size
        size >>= 4
    return at
