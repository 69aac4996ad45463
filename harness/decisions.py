"""The rules that turn measurements into passed, failed or inconclusive: both profiles, accuracy and latency. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from harness.statistics import Bounds, Pairs, deviation, paired_bounds, student_bounds

Decision = Literal["passed", "failed", "inconclusive"]

# Latency: numbers of block pairs after which one looks, and the one-sided alpha of each look.
LOOKS: Final = (4, 6, 9, 12)
LOOK_ALPHA: Final = 0.02
# For noisy machines: looks on until equal servers pass through 3 % of noise per launch. More looks, smaller alpha;
# none at four pairs, where a small deviation seen by chance failed one equal server in 250.
PATIENT_LOOKS: Final = (6, 9, 12, 18, 27, 40, 60, 90, 120, 160)
PATIENT_ALPHA: Final = 0.01
UNMEASURABLE: Final = 0.01  # gold against gold must stay within 1 %

# Accuracy: early looks at a part of the questions are strict, so that the last one keeps its 95 %.
EARLY_ALPHA: Final = 0.005
LAST_ALPHA: Final = 0.05


@dataclass(frozen=True)
class Schedule:
    """When to look, and how sure one has to be."""

    looks: tuple[int, ...] = LOOKS
    alpha: float = LOOK_ALPHA

    @property
    def last(self) -> int:
        return self.looks[-1]


STANDARD: Final = Schedule()
PATIENT: Final = Schedule(PATIENT_LOOKS, PATIENT_ALPHA)


@dataclass(frozen=True)
class Ratio:
    """What block pairs say about one metric. `estimate`, `low` and `high` are ratios gold / model (above 1: faster).

    `final` is false while another look may still decide. `pairs` is how many were used, `deviation` that of ln ratio.
    """

    decision: Decision
    final: bool
    pairs: int
    estimate: float
    low: float
    high: float
    deviation: float


def decide_ratio(logs: Sequence[float], threshold: float, schedule: Schedule = STANDARD) -> Ratio | None:
    """The sequential rule on y = ln(gold / model) of each block pair; None before the first look.

    Passed at the first look whose lower bound exceeds ln(threshold), failed at the first whose upper bound is below.
    Raises ValueError on a value that is not finite: a gap is never a number.
    """
    if not all(math.isfinite(value) for value in logs):
        raise ValueError("a block pair without a finite log ratio cannot be decided on")
    limit = math.log(threshold)
    found: Ratio | None = None
    for look in schedule.looks:
        if look > len(logs):
            break
        used = logs[:look]
        bounds = student_bounds(used, schedule.alpha)
        assert bounds is not None
        decision: Decision = "passed" if bounds.low > limit else "failed" if bounds.high < limit else "inconclusive"
        found = Ratio(
            decision, decision != "inconclusive" or look == schedule.last, look,
            math.exp(bounds.estimate), math.exp(bounds.low), math.exp(bounds.high), deviation(used),
        )  # fmt: skip
        if decision != "inconclusive":
            break
    return found


def combine(decisions: Sequence[Decision]) -> Decision:
    """Every part must pass (an intersection, so alpha needs no correction); one failure fails."""
    if not decisions:
        return "inconclusive"
    if "failed" in decisions:
        return "failed"
    return "inconclusive" if "inconclusive" in decisions else "passed"


def paper_latency(ratios: Sequence[float], threshold: float) -> bool | None:
    """The paper's rule: the mean of three runs' ratios gold mean / model mean reaches the threshold."""
    return math.fsum(ratios[:3]) / 3 >= threshold if len(ratios) >= 3 else None


def unmeasurable(logs: Sequence[float]) -> str | None:
    """Why gold against gold says that this machine cannot tell, or None.

    Their difference must be under 1 %, and what the last look could show must be finer than the 2 % in question.
    """
    bounds = student_bounds(logs, LOOK_ALPHA)
    if bounds is None:
        return "gold against gold was not measured"
    if abs(bounds.estimate) >= UNMEASURABLE:
        return f"gold against gold differs by {100 * math.expm1(abs(bounds.estimate)):.1f} %, allowed is 1 %"
    return None


@dataclass(frozen=True)
class Difference:
    """What paired answers say about one filter. All in points of percent, new - gold."""

    decision: Decision
    final: bool
    bounds: Bounds
    alpha: float


def decide_difference(pairs: Pairs, margin_points: float, *, used_up: bool) -> Difference:
    """Non-inferiority: passed when the lower bound is above -margin, failed when the upper one is below.

    `used_up`: no further questions can be added, so this look has the full 5 %.
    """
    alpha = LAST_ALPHA if used_up else EARLY_ALPHA
    found = paired_bounds(pairs, alpha)
    points = Bounds(100 * found.estimate, 100 * found.low, 100 * found.high)
    decision: Decision = "inconclusive"
    if points.low > -margin_points:
        decision = "passed"
    elif points.high < -margin_points:
        decision = "failed"
    return Difference(decision, used_up or decision != "inconclusive", points, alpha)


def paper_accuracy(differences: Sequence[float]) -> bool:
    """The paper's rule: not below gold on either filter. An equal kernel meets it less than half of the time."""
    return all(difference >= 0 for difference in differences)


def question_looks(total: int) -> tuple[int, ...]:
    """After how many questions one looks: a quarter, a half, all; small sets are used whole."""
    if total < 200:
        return (total,)
    return (math.ceil(total / 4), math.ceil(total / 2), total)
