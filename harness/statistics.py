"""Intervals and tests that the accuracy and latency rules stand on. Pure; scipy and numpy only where one is called.

A missing value is never a number: what cannot be computed is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

BOOTSTRAP_DRAWS = 10_000


@dataclass(frozen=True)
class Bounds:
    """An estimate with its two one-sided bounds: each is missed with probability alpha."""

    estimate: float
    low: float
    high: float


def student_bounds(values: Sequence[float], alpha: float) -> Bounds | None:
    """Mean with one-sided Student bounds at `alpha` each; None below two values or when one is not finite."""
    n = len(values)
    if n < 2 or not all(math.isfinite(value) for value in values):
        return None
    from scipy.special import stdtrit

    centre = math.fsum(values) / n
    half = float(stdtrit(n - 1, 1 - alpha)) * deviation(values) / math.sqrt(n)
    return Bounds(centre, centre - half, centre + half)


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 below two values."""
    n = len(values)
    if n < 2:
        return 0.0
    centre = math.fsum(values) / n
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1))


def arithmetic_mean(values: Sequence[float | None]) -> float | None:
    """None over nothing, or when a value is missing or not finite."""
    kept = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(kept) / len(kept) if kept and len(kept) == len(values) else None


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """None over nothing, or when a value is missing, not finite, or not above zero: one gap voids the whole."""
    kept = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    if not kept or len(kept) != len(values):
        return None
    return math.exp(math.fsum(math.log(value) for value in kept) / len(kept))


def quantile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between order statistics (type 7, numpy's default); None over nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float | None:
    """None over nothing."""
    return quantile(values, 0.5)


@dataclass(frozen=True)
class Pairs:
    """Two runs over the same `n` questions. `lost`: reference right, new wrong. `won`: the other way round."""

    n: int
    reference_right: int
    new_right: int
    lost: int
    won: int

    @property
    def difference(self) -> float:
        """new - reference, as a fraction."""
        return (self.won - self.lost) / self.n

    @property
    def discordant(self) -> float:
        """Share of questions whose correctness differs (between two runs of gold: the flip rate)."""
        return (self.won + self.lost) / self.n


def pair_up(reference: Sequence[bool], new: Sequence[bool]) -> Pairs:
    """Counts over the same questions in the same order. Raises ValueError when the lengths differ or are zero."""
    if len(reference) != len(new) or not reference:
        raise ValueError(f"cannot pair {len(reference)} with {len(new)} answers")
    both = list(zip(reference, new, strict=True))
    return Pairs(
        n=len(both),
        reference_right=sum(reference),
        new_right=sum(new),
        lost=sum(old and not now for old, now in both),
        won=sum(now and not old for old, now in both),
    )


def mcnemar(pairs: Pairs) -> float:
    """Exact two-sided p of McNemar's test: how odd the split of the discordant questions is (binomial, share 1/2)."""
    total = pairs.lost + pairs.won
    smaller = min(pairs.lost, pairs.won)
    tail = sum(math.comb(total, k) for k in range(smaller + 1)) / 2**total
    return float(min(1.0, 2 * tail))


def score_bounds(pairs: Pairs, alpha: float) -> Bounds:
    """Score bounds of a paired difference (Tango 1998, Stat. Med. 17:891). Sound without discordance too."""
    z = NormalDist().inv_cdf(1 - alpha)
    n, won, lost = pairs.n, pairs.won, pairs.lost

    def score(delta: float) -> float:
        a, b = 2.0 * n, -won - lost + (2.0 * n - won + lost) * delta
        c = -lost * delta * (1 - delta)
        share = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = n * (2 * share + delta * (1 - delta))
        gap = won - lost - n * delta
        if variance <= 0:
            return math.copysign(math.inf, gap) if gap else 0.0
        return gap / math.sqrt(variance)

    centre = pairs.difference
    low = _crossing(lambda delta: score(delta) - z, -1.0, centre)
    high = _crossing(lambda delta: score(delta) + z, centre, 1.0)
    return Bounds(centre, low, high)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero, by halving."""
    for _ in range(60):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def bootstrap_bounds(pairs: Pairs, alpha: float, draws: int = BOOTSTRAP_DRAWS, seed: int = 0) -> Bounds:
    """Percentile bootstrap over questions. Drawing questions again is drawing the three counts again."""
    import numpy as np

    shares = [pairs.lost / pairs.n, pairs.won / pairs.n, 1 - pairs.discordant]
    counts = np.random.default_rng(seed).multinomial(pairs.n, [max(share, 0.0) for share in shares], size=draws)
    differences = (counts[:, 1] - counts[:, 0]) / pairs.n
    low, high = np.quantile(differences, [alpha, 1 - alpha])
    return Bounds(pairs.difference, float(low), float(high))


def paired_bounds(pairs: Pairs, alpha: float) -> Bounds:
    """The wider of bootstrap and score bounds: the bootstrap alone is certain of everything where nothing differs."""
    first, second = bootstrap_bounds(pairs, alpha), score_bounds(pairs, alpha)
    return Bounds(first.estimate, min(first.low, second.low), max(first.high, second.high))


# (z of 95 % + z of 80 %) squared: questions for 80 % power of a one-sided 5 % test, per unit of d / margin^2.
POWER_FACTOR = (NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf(0.80)) ** 2


def provable_margin(discordant: float, n: int) -> float:
    """The smallest margin (fraction) that `n` questions show with 80 % power at this discordant share.

    With no discordance seen, the share may still be 3/n (rule of three).
    """
    return math.sqrt(POWER_FACTOR * max(discordant, 3 / n) / n)


def questions_needed(discordant: float, margin: float) -> int:
    """Questions for 80 % power at a margin (fraction)."""
    return math.ceil(POWER_FACTOR * discordant / margin**2)
