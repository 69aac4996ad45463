"""The paper's metrics over verdicts, each with its count and interval. Pure; one small row a task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rtb.result import Metric, Metrics, Outcome, Verdict
from rtb.task import Category

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class Row:
    """What the metrics need of one verdict. `utp` is None where the unit stage gave no result.

    `not_reduced` (accuracy passed), `s_ttft` and `s_tpot` (gold / model) only where all unit tests passed and the
    stage gave a result, as in the paper; a value that is missing is None and enters no mean. In a run without the
    unit stage (`unit` False) they count for every patch that applied, and nothing is said about tests.
    """

    instance_id: str
    category: Category
    outcome: Outcome
    applied: bool
    utp: float | None
    cost_usd: float | None
    not_reduced: bool | None = None
    s_ttft: float | None = None
    s_tpot: float | None = None
    unit: bool = True

    @property
    def model_stages_count(self) -> bool:
        """Whether the accuracy and latency stages' numbers enter the metrics."""
        return self.outcome != "tampered" and (self.utp == 1.0 if self.unit else self.applied)


def row_of(verdict: Verdict, *, unit: bool = True) -> Row:
    """The numbers of one verdict. A tampered task passed no test: its evidence cannot be trusted.

    `unit`: whether unit is a stage of the run; without it no verdict has a share of passed tests, not even 0.
    """
    stage = verdict.stage("unit")
    utp = stage.unit.utp if stage is not None and stage.unit is not None else None
    if unit and verdict.outcome in ("tampered", "empty_patch", "apply_failed", "not_submitted"):
        utp = 0.0
    applied = verdict.patch is not None and verdict.patch.status == "applied"
    row = Row(verdict.instance_id, verdict.category, verdict.outcome, applied, utp, verdict.cost_usd, unit=unit)
    return _with_model_stages(row, verdict) if row.model_stages_count else row


def _with_model_stages(row: Row, verdict: Verdict) -> Row:
    accuracy, latency = verdict.stage("accuracy"), verdict.stage("latency")
    judged = accuracy is not None and accuracy.status in ("passed", "failed", "inconclusive")
    ratios = latency.latency.ratios if latency is not None and latency.latency is not None else {}
    ttft, tpot = ratios.get("s_ttft"), ratios.get("s_tpot")
    return replace(
        row,
        not_reduced=accuracy.status == "passed" if accuracy is not None and judged else None,
        s_ttft=ttft.estimate if ttft is not None else None,
        s_tpot=tpot.estimate if tpot is not None else None,
    )


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a proportion, as fractions (Wilson 1927, score interval without continuity correction)."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    centre = share + Z95**2 / (2 * n)
    spread = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    scale = 1 + Z95**2 / n
    # The bounds are exact at the ends; rounding must not push them inside.
    low = (centre - spread) / scale if successes > 0 else 0.0
    high = (centre + spread) / scale if successes < n else 1.0
    return max(0.0, low), min(1.0, high)


def percentage(successes: int, n: int) -> Metric:
    """A share of tasks in percent, with its Wilson interval; null over no task."""
    if n == 0:
        return Metric(value=None, n=0)
    low, high = wilson(successes, n)
    return Metric(value=100 * successes / n, n=n, low=100 * low, high=100 * high)


def mean(values: Sequence[float], *, scale: float = 1.0, bounds: tuple[float, float] | None = None) -> Metric:
    """Arithmetic mean with Student's 95 % interval (null below two values); null over none."""
    n = len(values)
    if n == 0:
        return Metric(value=None, n=0)
    centre = math.fsum(values) / n
    if n == 1:
        return Metric(value=scale * centre, n=1)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    low, high = centre - half, centre + half
    if bounds is not None:
        low, high = max(bounds[0], low), min(bounds[1], high)
    return Metric(value=scale * centre, n=n, low=scale * low, high=scale * high)


def metrics(rows: Iterable[Row]) -> Metrics:
    """The eight metrics over these tasks.

    Success and Applied are shares of all tasks given, FTP of those of a run with unit tests; UTP is the mean of
    passed / gold-passed over all tasks with a unit result, where a task without a usable patch counts 0; a task
    that a machine fault stopped has no UTP (it makes the run incomplete). NR, S_TTFT and S_TPOT stand on the
    tasks that passed all unit tests (in a run without them: on every patch that applied) and whose stage gave a
    result: share of passed accuracy stages, arithmetic means of the ratios. Cost: mean dollars of the tasks whose
    cost is known.
    """
    kept = list(rows)
    n = len(kept)
    reduced = [row.not_reduced for row in kept if row.not_reduced is not None]
    utps = [row.utp for row in kept if row.utp is not None]
    return Metrics(
        success=percentage(sum(row.outcome == "resolved" for row in kept), n),
        applied=percentage(sum(row.applied for row in kept), n),
        ftp=percentage(sum(row.utp == 1.0 for row in kept), sum(row.unit for row in kept)),
        utp=mean(utps, scale=100.0, bounds=(0.0, 1.0)),
        nr=percentage(sum(reduced), len(reduced)),
        s_ttft=mean([row.s_ttft for row in kept if row.s_ttft is not None]),
        s_tpot=mean([row.s_tpot for row in kept if row.s_tpot is not None]),
        cost=mean([row.cost_usd for row in kept if row.cost_usd is not None]),
    )


NAMES = ("success", "applied", "ftp", "utp", "nr", "s_ttft", "s_tpot", "cost")


def average(models: Sequence[Metrics]) -> Metrics:
    """The paper's row of averages: each metric's plain mean over the models that have it, with Student's interval
    over models. `n` is the number of models."""
    columns = {name: [getattr(item, name).value for item in models] for name in NAMES}
    return Metrics.model_validate(
        {name: mean([value for value in values if value is not None]) for name, values in columns.items()}
    )


def geometric(values: Sequence[float]) -> Metric:
    """Geometric mean of ratios with Student's 95 % interval of the logarithms; null over none."""
    if any(value <= 0 for value in values):
        return Metric(value=None, n=len(values))
    found = mean([math.log(value) for value in values])
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Metric(value=None if found.value is None else math.exp(found.value), n=found.n, low=low, high=high)
