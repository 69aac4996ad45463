"""Series in numbers and words: pass@k over attempts, score against step; for the console, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from harness.report import table_lines
from rtb.pass_at_k import PassAtK
from rtb.result import Verdict
from rtb.series import CurvePoint, GradedStep, Series, SeriesRecord, StepPoint, StepsReport, TaskSteps

# Outcomes of an answer whose unit tests say nothing beyond "none passed".
NOTHING_PASSED = ("empty_patch", "apply_failed", "tampered")
BAR = 20


def pass_columns(found: PassAtK) -> tuple[str, ...]:
    """Headings for `pass_rows`."""
    return ("category", "tasks", *(f"pass@{k} %" for k in found.values))


def pass_rows(found: PassAtK) -> list[tuple[str, ...]]:
    """pass@k in percent: one row a category, then all. A dash where a task has too few attempts that count."""

    def row(name: str, tasks: int, values: dict[int, float | None]) -> tuple[str, ...]:
        return (name, str(tasks), *("–" if value is None else f"{100 * value:.1f}" for value in values.values()))

    counts = {name: sum(task.category == name for task in found.tasks) for name in found.by_category}
    rows = [row(name, counts[name], values) for name, values in found.by_category.items()]
    return [*rows, row("all", len(found.tasks), found.values)]


TRY_COLUMNS = ("task", "category", "n", "c", "outcomes")


def try_rows(found: PassAtK) -> list[tuple[str, ...]]:
    """Each task: attempts that count (n), those that solved it (c), and every attempt's outcome."""
    return [
        (task.instance_id, task.category, str(task.n), str(task.solved), ", ".join(task.outcomes))
        for task in found.tasks
    ]


def pass_notes(found: PassAtK) -> tuple[str, ...]:
    """What a reader must know of these numbers."""
    notes = ["pass@k: 1 − C(n − c, k) / C(n, k), averaged over tasks (Chen et al., 2021)."]
    if short := [task for task in found.tasks if task.n < len(found.runs)]:
        notes.append(
            f"Incomplete: {len(short)} task(s) have an attempt that was not made or that a machine fault ended; it "
            "counts neither as solved nor as failed, and pass@k is empty where fewer than k attempts are left."
        )
    return tuple(notes)


def attempts_markdown(record: SeriesRecord, found: PassAtK) -> str:
    """The report of several attempts."""
    lines = [f"# {record.suite}: {len(record.runs)} attempts", ""]
    lines += [f"Series `{record.run_id}`: {', '.join(record.predictions)}.", ""]
    lines += [*(f"> {note}" for note in pass_notes(found)), ""]
    lines += [*table_lines(pass_columns(found), pass_rows(found)), "", "## Tasks", ""]
    lines += [*table_lines(TRY_COLUMNS, try_rows(found)), "", "Each attempt is a run of its own:", ""]
    lines += [f"- [{name}]({name}/report.md): {label}" for name, label in zip(record.runs, record.predictions)]  # noqa: B905
    return "\n".join([*lines, ""])


def steps_report(series: Series, record: SeriesRecord) -> StepsReport:
    """Score against step from the stored verdicts of a series."""
    tasks = [
        _task_steps(name, series, record, record.points.get(name, ()))
        for name in record.categories
        if name not in record.unfinished
    ]
    curve = tuple(_moment(step, tasks) for step in _moments(tasks))
    ungraded = [task for task in tasks if any(step.outcome == "error" for step in task.steps)]
    notes = []
    if ungraded:
        notes.append(
            f"Incomplete: answers of {len(ungraded)} task(s) met a machine fault; the same command finishes them."
        )
    if record.unfinished:
        notes.append(
            f"Incomplete: {len(record.unfinished)} attempt(s) were ended by a fault, not by the model; they are left "
            "out. Run 'rtb solve' again first."
        )
    if idle := [task for task in tasks if not task.steps]:
        notes.append(f"{len(idle)} task(s) have no step that changed the tree; they count as not solved.")
    return StepsReport(
        run_id=record.run_id, suite=record.suite, tasks=len(tasks), curve=curve, by_task=tuple(tasks),
        incomplete=bool(ungraded or record.unfinished), notes=tuple(notes),
    )  # fmt: skip


def _task_steps(name: str, series: Series, record: SeriesRecord, points: Iterable[StepPoint]) -> TaskSteps:
    verdicts: dict[str, Verdict | None] = {}
    graded = []
    for point in points:
        if point.run not in verdicts:
            verdicts[point.run] = series.run(point.run).read_verdict(name)
        graded.append(_graded(point, verdicts[point.run]))
    first = next((step.step for step in graded if step.outcome == "resolved"), None)
    return TaskSteps(
        instance_id=name, category=record.categories[name], steps=tuple(graded), resolved_at=first,
        resolved_at_end=bool(graded) and graded[-1].outcome == "resolved",
    )  # fmt: skip


def _graded(point: StepPoint, verdict: Verdict | None) -> GradedStep:
    stage = verdict.stage("unit") if verdict is not None else None
    unit = stage.unit if stage is not None else None
    known = point.model_dump(include={"step", "run", "seconds", "tokens", "cost_usd"})
    return GradedStep(
        outcome=verdict.outcome if verdict is not None else "error",
        reason=verdict.reason if verdict is not None else "not evaluated yet; run the same command again",
        passed=unit.passed if unit is not None else None,
        expected=unit.expected if unit is not None else None,
        **known,
    )


def _moments(tasks: Sequence[TaskSteps]) -> list[int]:
    return sorted({0, *(step.step for task in tasks for step in task.steps)})


def _moment(step: int, tasks: Sequence[TaskSteps]) -> CurvePoint:
    """All tasks with the answers that stood after `step`. Before its first change a task is not solved."""
    current = [next((item for item in reversed(task.steps) if item.step <= step), None) for task in tasks]
    shares = [share for share in map(_share, current) if share is not None]
    return CurvePoint(
        step=step,
        resolved=sum(item is not None and item.outcome == "resolved" for item in current),
        ever=sum(task.resolved_at is not None and task.resolved_at <= step for task in tasks),
        unknown=sum(item is not None and item.outcome == "error" for item in current),
        unit=fsum(shares) / len(shares) if shares else None,
    )


def _share(item: GradedStep | None) -> float | None:
    """Share of the unit tests that pass; None when there is no grade. The base tree is not measured: it counts 0."""
    if item is None or item.outcome in NOTHING_PASSED:
        return 0.0
    return item.passed / item.expected if item.passed is not None and item.expected else None


CURVE_COLUMNS = ("step", "resolved", "success %", "ever resolved", "not graded", "unit tests %", "")


def curve_rows(report: StepsReport) -> list[tuple[str, ...]]:
    """Score against step. The last column draws the success."""
    rows: list[tuple[str, ...]] = []
    for point in report.curve:
        share = point.resolved / report.tasks if report.tasks else 0.0
        unit = "–" if point.unit is None else f"{100 * point.unit:.1f}"
        counts = (str(point.step), str(point.resolved), f"{100 * share:.1f}", str(point.ever), str(point.unknown))
        rows.append((*counts, unit, "█" * round(BAR * share) or "▏"))
    return rows


STEP_COLUMNS = ("task", "resolved at step", "at the end", "answers by step (unit tests passed)")


def step_rows(report: StepsReport) -> list[tuple[str, ...]]:
    """Each task: the first step that resolves it, and what every step's answer came to."""
    return [
        (
            task.instance_id,
            "–" if task.resolved_at is None else str(task.resolved_at),
            task.steps[-1].outcome if task.steps else "no change",
            "; ".join(_step_cell(step) for step in task.steps),
        )
        for task in report.by_task
    ]


def _step_cell(step: GradedStep) -> str:
    counts = f" {step.passed}/{step.expected}" if step.passed is not None else ""
    return f"{step.step}: {step.outcome}{counts}"


def steps_markdown(report: StepsReport) -> str:
    """The report of the steps of one attempt at each task."""
    lines = [f"# {report.suite}: score against step", "", f"Series `{report.run_id}`, {report.tasks} tasks.", ""]
    lines += [*(f"> {note}" for note in report.notes), ""]
    lines += [*table_lines(CURVE_COLUMNS, curve_rows(report)), "", "## Tasks", ""]
    return "\n".join([*lines, *table_lines(STEP_COLUMNS, step_rows(report)), ""])
