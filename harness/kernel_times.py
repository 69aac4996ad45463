"""Times of single kernel calls and of shapes, summarised without hiding first calls, hiccups or gaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.statistics import geometric_mean, median, quantile

HICCUP = 3.0  # a longest call so many times the median is named
# No launch of a kernel ends sooner: a time below is a clock that was stopped before the work was done. Milliseconds.
FLOOR_MS = 0.001


@dataclass(frozen=True)
class Calls:
    """Steady calls by median and 20th / 80th percentile; the first calls (compiling, tuning) are kept apart."""

    n: int
    median: float | None
    low: float | None
    high: float | None
    first_calls: tuple[float, ...]
    flags: tuple[str, ...]


def summarise_calls(samples: Sequence[float], first_calls: int) -> Calls:
    """Times in call order, of which the first `first_calls` compile or tune. Same unit out as in."""
    steady = list(samples[first_calls:])
    middle = median(steady)
    flags: list[str] = []
    if middle and max(steady) / middle >= HICCUP:
        flags.append(f"max/median = {max(steady) / middle:.1f}")
    return Calls(
        len(steady), middle, quantile(steady, 0.2), quantile(steady, 0.8), tuple(samples[:first_calls]), tuple(flags)
    )


@dataclass(frozen=True)
class Shapes:
    """`score` is the geometric mean of reference / candidate, or None when any shape has no valid time."""

    score: float | None
    invalid: dict[str, str]
    below_floor: tuple[str, ...]


def summarise_shapes(shapes: Sequence[Mapping[str, Any]]) -> Shapes:
    """Shapes as {shape, ref_ms, cand_ms, correct}. One without a valid time makes the whole score invalid."""
    invalid: dict[str, str] = {}
    floor: list[str] = []
    ratios: list[float | None] = []
    for shape in shapes:
        name, reference, candidate = str(shape["shape"]), shape["ref_ms"], shape["cand_ms"]
        if reference is None or candidate is None or not shape["correct"]:
            invalid[name] = "no valid time"
        elif reference <= 0 or candidate <= 0:
            invalid[name] = "the time is not above zero"
        if candidate is not None and candidate < FLOOR_MS:
            floor.append(name)
        ratios.append(None if name in invalid else reference / candidate)
    return Shapes(None if floor else geometric_mean(ratios), invalid, tuple(floor))
