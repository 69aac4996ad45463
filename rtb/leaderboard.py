"""Leaderboard: who stands where, with what certainty; what each task shows; how it went over time. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rtb.result import Metrics, Report
from rtb.run import RunRecord
from rtb.submission import Checked, Metadata, TaskScore
from rtb.task import CATEGORIES, Category

SIGNIFICANT = 0.05  # two-sided, of the paired test


def slug(text: str) -> str:
    """A name that can be a file, a branch and a part of an address."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.") or "x"


@dataclass(frozen=True)
class Entry:
    """One accepted submission. `id` and `model_id` are file names, each its own."""

    id: str
    model_id: str
    checked: Checked
    metadata: Metadata
    run: RunRecord
    report: Report

    @property
    def group(self) -> str:
        """What may be compared: the same tasks, stages and rules."""
        stages = "+".join(self.run.stages)
        return f"{self.run.suite} ({stages}, {self.run.profile}, tasks {self.run.suite_digest[:7]})"

    @property
    def solved(self) -> frozenset[str]:
        return frozenset(task.instance_id for task in self.checked.tasks if task.outcome == "resolved")

    def metrics(self, category: Category | None) -> Metrics | None:
        return self.report.metrics if category is None else self.report.by_category.get(category)


def entries_of(checked: Iterable[Checked]) -> list[Entry]:
    """Accepted submissions as entries, newest first. One model's submissions share its page."""
    taken = [item for item in checked if item.accepted and item.metadata and item.run and item.report]
    name = _unique_names()
    models = _unique_names()
    found = []
    for item in taken:
        assert item.metadata is not None and item.run is not None and item.report is not None
        found.append(
            Entry(
                id=name(item.folder, slug(item.folder.rstrip("/").rpartition("/")[2])),
                model_id=models(item.metadata.model.name, slug(item.metadata.model.name)),
                checked=item,
                metadata=item.metadata,
                run=item.run,
                report=item.report,
            )
        )
    return sorted(found, key=lambda entry: (entry.metadata.date, entry.id), reverse=True)


def _unique_names() -> Callable[[Hashable, str], str]:
    """A function that gives each key a name of its own, near the one that is wished for."""
    given: dict[Hashable, str] = {}
    taken: set[str] = set()

    def name(key: Hashable, wished: str) -> str:
        if key not in given:
            number = 1
            found = wished
            while found in taken:
                number += 1
                found = f"{wished}-{number}"
            taken.add(found)
            given[key] = found
        return given[key]

    return name


@dataclass(frozen=True)
class Standing:
    """A place in the ranking. `place` counts from 1, equal scores share it (`tied`); None: an example, not ranked.

    `best` to `worst`: the places that a paired exact McNemar test leaves possible (two-sided, 5 %).
    """

    entry: Entry
    category: Category | None
    metrics: Metrics
    resolved: int
    tasks: int
    place: int | None
    tied: bool = False
    best: int | None = None
    worst: int | None = None

    @property
    def shown(self) -> str:
        if self.place is None:
            return "example"
        spread = f" ({self.best}–{self.worst})" if self.best != self.worst else ""
        return f"{'=' if self.tied else ''}{self.place}{spread}"


def ranking(entries: Sequence[Entry], category: Category | None = None) -> list[Standing]:
    """Standings of all groups, best first within each; only entries of one group are compared with each other."""
    found: list[Standing] = []
    for group in sorted({entry.group for entry in entries}):
        found += _rank([entry for entry in entries if entry.group == group], category)
    return found


def _rank(entries: Sequence[Entry], category: Category | None) -> list[Standing]:
    wanted = {entry.id: _tasks(entry, category) for entry in entries}
    solved = {entry.id: entry.solved & wanted[entry.id] for entry in entries}
    ranked = [entry for entry in entries if not entry.metadata.example]
    found = []
    for entry in entries:
        metrics = entry.metrics(category)
        if metrics is None:
            continue
        mine = solved[entry.id]
        standing = Standing(entry, category, metrics, resolved=len(mine), tasks=len(wanted[entry.id]), place=None)
        if not entry.metadata.example:
            others = [solved[other.id] for other in ranked if other.id != entry.id]
            standing = _placed(standing, mine, others)
        found.append(standing)
    return sorted(found, key=lambda item: (-item.resolved, item.place is None, item.entry.metadata.model.name))


def _placed(standing: Standing, mine: frozenset[str], others: Sequence[frozenset[str]]) -> Standing:
    odds = [(len(other), differ(len(other - mine), len(mine - other))) for other in others]
    return replace(
        standing,
        place=1 + sum(len(other) > len(mine) for other in others),
        tied=any(len(other) == len(mine) for other in others),
        best=1 + sum(count > len(mine) and is_so for count, is_so in odds),
        worst=1 + len(others) - sum(count < len(mine) and is_so for count, is_so in odds),
    )


def _tasks(entry: Entry, category: Category | None) -> frozenset[str]:
    return frozenset(task.instance_id for task in entry.checked.tasks if category in (None, task.category))


@cache
def differ(only_first: int, only_second: int) -> bool:
    """Whether two solvers differ by more than chance: exact McNemar over the tasks that one of them alone solved."""
    total, smaller = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, k) for k in range(smaller + 1)) / 2**total
    return bool(2 * tail < SIGNIFICANT)


@dataclass(frozen=True)
class TaskView:
    """One task of a group over all entries. `failures`: how often, what happened; most frequent first."""

    group: str
    task: TaskScore
    rows: tuple[tuple[Entry, TaskScore], ...]
    failures: tuple[tuple[int, str, str], ...]

    @property
    def page(self) -> str:
        return f"{slug(self.group)}-{slug(self.task.instance_id)}"

    @property
    def solvers(self) -> int:
        return sum(task.outcome == "resolved" for _, task in self.rows)


def task_views(entries: Sequence[Entry]) -> list[TaskView]:
    """Every task of every group, in the order of the runs."""
    rows: dict[tuple[str, str], list[tuple[Entry, TaskScore]]] = {}
    for entry in entries:
        for task in entry.checked.tasks:
            rows.setdefault((entry.group, task.instance_id), []).append((entry, task))
    return [
        TaskView(group=group, task=found[0][1], rows=tuple(found), failures=tuple(_failures(found)))
        for (group, _), found in sorted(rows.items(), key=lambda item: item[0][0])
    ]


def _failures(rows: Sequence[tuple[Entry, TaskScore]]) -> list[tuple[int, str, str]]:
    kinds = Counter(
        (task.outcome, typical(task.reason)) for _, task in rows if task.outcome not in ("resolved", "not_submitted")
    )
    return [(count, outcome, reason) for (outcome, reason), count in kinds.most_common(12)]


def typical(reason: str) -> str:
    """A reason without what differs from run to run: numbers, quoted text, test names."""
    first = re.split(r"[:;] (?=\S*::)|\n", reason, maxsplit=1)[0]
    return re.sub(r"\d+(\.\d+)?", "N", re.sub(r"'[^']*'|\"[^\"]*\"|\S+::\S+", "…", first))[:160]


@dataclass(frozen=True)
class Milestone:
    """The best score of a group from a day on."""

    entry: Entry
    resolved: int
    tasks: int
    is_record: bool

    @property
    def percent(self) -> float:
        return 100 * self.resolved / self.tasks if self.tasks else 0.0


def history(entries: Sequence[Entry]) -> dict[str, list[Milestone]]:
    """By group, every submission in order of its date, and whether it was then the best; examples are no records."""
    found: dict[str, list[Milestone]] = {}
    best: dict[str, int] = {}
    for entry in sorted(entries, key=lambda item: (item.metadata.date, item.id)):
        count = len(entry.solved)
        is_record = not entry.metadata.example and count > best.get(entry.group, 0)
        if is_record:
            best[entry.group] = count
        line = Milestone(entry, count, len(entry.checked.tasks), is_record)
        found.setdefault(entry.group, []).append(line)
    return dict(sorted(found.items()))


def every_category(entries: Sequence[Entry]) -> list[Category]:
    """Categories that some entry has tasks of."""
    return [name for name in CATEGORIES if any(name in entry.report.by_category for entry in entries)]
