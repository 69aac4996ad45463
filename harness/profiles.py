"""A verdict by the rules of either profile, whichever decided the run; and a run's metrics under both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.metrics import Row, geometric, metrics, row_of
from rtb.result import Metric, Metrics, Outcome, StageResult, Verdict
from rtb.task import CATEGORIES, Category

Profile = Literal["robust", "paper"]
PROFILES: tuple[Profile, ...] = ("robust", "paper")


@dataclass(frozen=True)
class ProfileMetrics:
    """Some tasks under one profile: the eight metrics, the geometric means beside the arithmetic ones, and how many
    tasks cannot be told (they count as not resolved)."""

    tasks: int
    metrics: Metrics
    geometric_ttft: Metric
    geometric_tpot: Metric
    untold: int


@dataclass(frozen=True)
class TaskRows:
    """One task's numbers under both profiles, and its tokens: all that the tables need of a verdict."""

    category: Category
    rows: dict[Profile, Row]
    untold: dict[Profile, bool]
    tokens: int | None


def task_rows(verdict: Verdict, *, unit: bool) -> TaskRows:
    """What the tables need of a verdict. `unit`: whether unit is a stage of the run."""
    return TaskRows(
        verdict.category,
        {profile: row_under(verdict, profile, unit=unit) for profile in PROFILES},
        {profile: outcome_under(verdict, profile) is None for profile in PROFILES},
        verdict.tokens,
    )


def under(tasks: Sequence[TaskRows], profile: Profile) -> ProfileMetrics:
    """The metrics of these tasks under a profile."""
    rows = [task.rows[profile] for task in tasks]
    return ProfileMetrics(
        tasks=len(rows),
        metrics=metrics(rows),
        geometric_ttft=geometric([row.s_ttft for row in rows if row.s_ttft is not None]),
        geometric_tpot=geometric([row.s_tpot for row in rows if row.s_tpot is not None]),
        untold=sum(task.untold[profile] for task in tasks),
    )


def by_category(tasks: Sequence[TaskRows], profile: Profile) -> dict[Category, ProfileMetrics]:
    """The same for each category that has a task."""
    groups = {name: [task for task in tasks if task.category == name] for name in CATEGORIES}
    return {name: under(group, profile) for name, group in groups.items() if group}


def row_under(verdict: Verdict, profile: Profile, *, unit: bool) -> Row:
    """The numbers of one verdict by the rules of a profile, whatever profile the run was decided by.

    Under `paper` the ratios are means of the first three pairs' ratios of means. `outcome_under` says what a task is;
    one that cannot be told counts as not resolved here.
    """
    row = row_of(verdict, unit=unit)
    if not row.model_stages_count:
        return row
    accuracy, latency = verdict.stage("accuracy"), verdict.stage("latency")
    ratios = latency.latency.ratios if latency is not None and latency.latency is not None else {}
    found = [ratios.get(name) for name in ("s_ttft", "s_tpot")]
    values = [None if item is None else item.paper_ratio if profile == "paper" else item.estimate for item in found]
    status = _status_under(accuracy, profile) if accuracy is not None else None
    return replace(
        row,
        outcome=outcome_under(verdict, profile) or "inconclusive",
        not_reduced=status == "passed" if status in ("passed", "failed", "inconclusive") else None,
        s_ttft=values[0],
        s_tpot=values[1],
    )


def outcome_under(verdict: Verdict, profile: Profile) -> Outcome | None:
    """The outcome by the rules of a profile. None when it cannot be told: the other profile's rules ended the
    evaluation before a stage that this one needs."""
    if verdict.outcome not in ("resolved", "unresolved", "inconclusive"):
        return verdict.outcome
    outcomes: dict[str, Outcome | None] = {"failed": "unresolved", "inconclusive": "inconclusive", "skipped": None}
    for stage in verdict.stages:
        status = _status_under(stage, profile)
        if status != "passed":
            return outcomes.get(status, verdict.outcome)
    return "resolved"


def _status_under(stage: StageResult, profile: Profile) -> str:
    """How a stage ends under a profile; stages without a measurement end the same way under both."""
    if stage.accuracy is not None:
        if profile == "robust":
            return stage.accuracy.robust
        return "passed" if stage.accuracy.paper else "failed"
    facts = stage.latency
    if facts is None or facts.invalid or len(facts.ratios) < 2:
        return stage.status
    if facts.unmeasurable:
        return "inconclusive"
    if profile == "robust":
        return facts.robust
    return "inconclusive" if facts.paper is None else "passed" if facts.paper else "failed"
