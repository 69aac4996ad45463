"""Two or more runs of the same tasks beside each other: what changed, and whether it is more than noise.

A task that a machine fault stopped in either run says nothing and is left out of the pair's test. Pure but for
reading the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from harness.evaluate import regrade
from harness.metrics import average
from harness.profiles import TaskRows, task_rows
from harness.statistics import Bounds, Pairs, mcnemar, pair_up, score_bounds
from harness.verdict import grade_task
from rtb.errors import ExpectedError
from rtb.result import Metrics, Report, Verdict
from rtb.run import Run, RunRecord

ALPHA = 0.05  # of all pairs of a comparison together (Holm)


@dataclass(frozen=True)
class Member:
    """One run of a comparison. `label` is unique in it."""

    label: str
    record: RunRecord
    report: Report
    verdicts: dict[str, Verdict]

    @property
    def model(self) -> str:
        return ", ".join(self.record.model_names) or "no model"

    @property
    def rows(self) -> list[TaskRows]:
        """What the paper's tables need of each task."""
        return [task_rows(verdict, unit=self.record.has_unit) for verdict in self.verdicts.values()]


@dataclass(frozen=True)
class Difference:
    """Two runs on the tasks that have a result in both. Points of percent, second less first.

    `low` and `high`: 95 % score interval of the paired difference (Tango 1998). `p`: exact McNemar, two-sided;
    `adjusted` is Holm's over all pairs of the comparison.
    """

    first: str
    second: str
    pairs: Pairs | None
    points: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    left_out: int

    @property
    def more_than_noise(self) -> bool | None:
        """None when no task can be compared."""
        return None if self.adjusted is None else self.adjusted < ALPHA

    @property
    def sentence(self) -> str:
        """What a reader should take away."""
        if self.pairs is None or self.points is None or self.p is None or self.adjusted is None:
            return f"{self.second} against {self.first}: no task has a result in both"
        pairs = self.pairs
        kind = "more than noise" if self.more_than_noise else "not more than noise"
        holm = "" if self.adjusted == self.p else f", {self.adjusted:.3g} after Holm"
        changes = (
            f"{pairs.won} won, {pairs.lost} lost; {self.points:+.1f} points, 95 % interval {self.low:+.1f} to "
            f"{self.high:+.1f}"
        )
        return (
            f"{self.second} against {self.first}: {pairs.new_right} of {pairs.n} tasks resolved, "
            f"{pairs.reference_right} before ({changes}): {kind} (exact McNemar p = {self.p:.3g}{holm})"
        )


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other. `changed`: the tasks whose outcome is not the same in all."""

    members: tuple[Member, ...]
    differences: tuple[Difference, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.members[0].record.instance_ids

    @property
    def mean(self) -> Metrics:
        """The paper's row of averages over these runs."""
        return average([member.report.metrics for member in self.members])


def compare(runs: Sequence[Run]) -> Comparison:
    """Grade the runs again and put them beside each other.

    Raises ExpectedError when they are not of the same tasks: another suite, other tasks, or tasks whose data differ.
    """
    if len(runs) < 2:
        raise ExpectedError("a comparison needs at least two runs")
    records = [run.read_record() for run in runs]
    for run, record in zip(runs[1:], records[1:], strict=True):
        _same_tasks(runs[0], records[0], run, record)
    labels = _labels(records)
    members = tuple(
        Member(label, record, regrade(run), {name: _verdict(run, record, name) for name in record.instance_ids})
        for label, run, record in zip(labels, runs, records, strict=True)
    )
    differences = holm([_difference(first, second) for first, second in combinations(members, 2)])
    changed = tuple(
        name for name in records[0].instance_ids if len({member.verdicts[name].outcome for member in members}) > 1
    )
    return Comparison(members, tuple(differences), changed, tuple(_notes(members)))


def _verdict(run: Run, record: RunRecord, name: str) -> Verdict:
    return run.read_verdict(name) or grade_task(run, record, name)


def _same_tasks(first: Run, one: RunRecord, second: Run, two: RunRecord) -> None:
    what = f"{first.path} and {second.path} cannot be compared"
    if one.suite != two.suite:
        raise ExpectedError(f"{what}: the first is of suite {one.suite}, the second of {two.suite}")
    if lone := sorted(set(one.categories) ^ set(two.categories)):
        owner = first.path if lone[0] in one.categories else second.path
        raise ExpectedError(
            f"{what}: {len(lone)} task(s) are in one of them only, e.g. {lone[0]} in {owner}; "
            "evaluate both on the same tasks (-i)"
        )
    if one.suite_digest == two.suite_digest:
        return
    names = [name for name in one.instance_ids if len({_digest(first, name), _digest(second, name)} - {None}) == 2]
    where = f"{', '.join(names[:3])} changed between them" if names else "some task changed between them"
    digests = f"suite digests {one.suite_digest[:12]} and {two.suite_digest[:12]}"
    raise ExpectedError(
        f"{what}: the tasks' data differ ({where}; {digests}); evaluate both with the same version of the suite"
    )


def _digest(run: Run, name: str) -> str | None:
    record = run.read_task_record(name)
    return record.key.task_digest if record is not None else None


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Run ids; numbered where two runs have the same."""
    names = [record.run_id for record in records]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]


def _difference(first: Member, second: Member) -> Difference:
    both = [
        (first.verdicts[name].outcome, second.verdicts[name].outcome)
        for name in first.verdicts
        if "error" not in (first.verdicts[name].outcome, second.verdicts[name].outcome)
    ]
    left_out = len(first.verdicts) - len(both)
    if not both:
        return Difference(first.label, second.label, None, None, None, None, None, None, left_out)
    pairs = pair_up([old == "resolved" for old, _ in both], [new == "resolved" for _, new in both])
    bounds: Bounds = score_bounds(pairs, ALPHA / 2)
    p = mcnemar(pairs)
    return Difference(
        first.label, second.label, pairs, 100 * bounds.estimate, 100 * bounds.low, 100 * bounds.high, p, p, left_out
    )


def holm(found: Sequence[Difference]) -> list[Difference]:
    """The differences with p adjusted for their number (Holm 1979, step-down)."""
    order = sorted((place for place, item in enumerate(found) if item.p is not None), key=lambda i: found[i].p or 0.0)
    adjusted = list(found)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (found[place].p or 0.0)))
        adjusted[place] = replace(found[place], adjusted=highest)
    return adjusted


def _notes(members: Sequence[Member]) -> Iterator[str]:
    records = [member.record for member in members]
    for what, values in (
        ("stages", [", ".join(record.stages) for record in records]),
        ("profile", [record.profile for record in records]),
        ("sandbox", [record.sandbox for record in records]),
        ("version of rtb", [record.rtb_version for record in records]),
        ("class of device", [record.device_class for record in records]),
    ):
        if len(set(values)) > 1:
            said = "; ".join(f"{member.label}: {value}" for member, value in zip(members, values, strict=True))
            yield f"Not the same {what} ({said}): a difference may come from that."
    digests = [record.predictions_sha256 for record in records]
    if len(set(digests)) < len(digests):
        yield "Some of the runs graded the same predictions: between those, every difference is one of measurement."
    for member in members:
        if member.report.incomplete:
            yield f"{member.label} is incomplete: {member.report.outcomes['error']} task(s) ended in a machine fault."
