"""The tables of the leaderboard's pages. Pure: entries in, `rtb.page` tables out."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from rtb.leaderboard import Entry, Milestone, Standing, TaskView
from rtb.page import Cell, Column, Filter, Row, Table, badge, choice
from rtb.published import Published, PublishedMetrics
from rtb.result import Metric, Outcome
from rtb.submission import TaskScore
from rtb.task import Category

TONES: dict[Outcome, str] = {
    "resolved": "good", "unresolved": "bad", "empty_patch": "bad", "apply_failed": "bad", "tampered": "odd",
    "inconclusive": "warn", "error": "warn", "not_submitted": "dim",
}  # fmt: skip
_PERCENT = ("applied", "ftp", "utp", "nr")
_NUMBERS = (
    Column("Applied %", "number", explain="patches that applied"),
    Column("FTP %", "number", explain="tasks whose gold-passed tests all pass"),
    Column("UTP %", "number", explain="mean share of gold-passed tests that pass"),
    Column("NR %", "number", explain="no accuracy regression"),
    Column("S_TTFT", "number", explain="time to first token: gold / model"),
    Column("S_TPOT", "number", explain="time per output token: gold / model"),
)
_RANKING = (
    Column("Model"),
    Column("Rank", "number", explain="equal scores share a rank (=); in brackets: ranks that a paired test allows"),
    Column("Scaffold"),
    Column("Success %", "number", explain="tasks resolved, with the 95 % interval"),
    *_NUMBERS,
    Column("Cost $", "number", explain="a task, where it is known"),
    Column("Weights", minor=True),
    Column("Hardware", minor=True),
    Column("Date", minor=True),
)


def ranking_table(standings: Sequence[Standing], *, by_category: bool = False) -> Table:
    """Who stands where: one row a submission, or one a submission and category."""
    rows = [_standing(item, by_category) for item in standings]
    columns = [_RANKING[0], *([Column("Category")] if by_category else []), *_RANKING[1:]]
    name = "by-category" if by_category else "ranking"
    caption = "By category" if by_category else "All tasks of a suite"
    return Table(name, caption, columns, rows, _filters(rows, by_category), search=True)


def _filters(rows: Sequence[Row], by_category: bool) -> list[Filter]:
    if not rows:
        return []
    keys = [("suite", "Suite"), ("scaffold", "Scaffold"), ("hardware", "Hardware"), ("month", "Date"),
            ("weights", "Weights")]  # fmt: skip
    return [choice(key, label, rows) for key, label in ([("category", "Category")] if by_category else []) + keys]


def _standing(item: Standing, by_category: bool) -> Row:
    entry, metrics, facts = item.entry, item.metrics, item.entry.metadata
    weights = "open" if facts.model.open_weights else "closed"
    name = facts.model.name
    marks = [badge("example", "warn")] if facts.example else []
    note = (
        Markup(" ").join([*marks, Markup.escape(facts.model.organisation)])
        if marks or facts.model.organisation
        else ""
    )
    cells: list[Cell | str] = [Cell(name, sort=name, href=f"models/{entry.model_id}.html#{entry.id}", note=note)]
    if by_category:
        cells.append(str(item.category))
    cells += [
        Cell(item.shown, sort=item.place if item.place is not None else ""),
        facts.scaffold.name,
        success_cell(metrics.success, item.resolved, item.tasks),
        *(metric_cell(getattr(metrics, key), 1) for key in _PERCENT),
        metric_cell(metrics.s_ttft, 3),
        metric_cell(metrics.s_tpot, 3),
        metric_cell(metrics.cost, 3),
        weights,
        facts.hardware.device_class,
        Cell(facts.date.isoformat()),
    ]
    data = {
        "suite": entry.group, "category": str(item.category or "all"), "scaffold": facts.scaffold.name,
        "hardware": facts.hardware.device_class, "month": f"{facts.date:%Y-%m}", "weights": weights,
    }  # fmt: skip
    return Row(cells, data=data)


def success_cell(metric: Metric, resolved: int, tasks: int) -> Cell:
    """Percent, with the count and the interval below."""
    if metric.value is None:
        return Cell("–", sort="")
    note = f"{resolved} of {tasks}; {metric.low:.0f} to {metric.high:.0f}"
    return Cell(f"{metric.value:.1f}", sort=round(metric.value, 4), note=note)


def metric_cell(metric: Metric, digits: int) -> Cell:
    """A number with its interval, or a dash where nothing was measured."""
    if metric.value is None:
        return Cell("–", sort="")
    has = metric.low is not None and metric.high is not None
    note = f"{metric.low:.{digits}f} to {metric.high:.{digits}f}" if has else ""
    return Cell(f"{metric.value:.{digits}f}", sort=round(metric.value, 6), note=note)


def published_table(found: Published) -> Table:
    """The paper's numbers, apart from everything that was computed here."""
    lines = [*((row, "") for row in found.models), (found.average, "average of the five"),
             *((row, "appendix") for row in found.further)]  # fmt: skip
    rows = []
    for row, note in lines:
        for category, metrics in [("all", row.overall), *row.by_category.items()]:
            cells: list[Cell | str] = [Cell(row.name, note=note), row.scaffold, category, *_published(metrics)]
            rows.append(Row(cells, data={"category": category}))
    columns = [Column("Model"), Column("Scaffold"), Column("Category"), Column("Success %", "number"), *_NUMBERS]
    caption = f"As published, not recomputed: {found.title} ({found.tasks} tasks)"
    return Table("published", caption, columns, rows, [choice("category", "Category", rows)])


def _published(metrics: PublishedMetrics) -> list[Cell]:
    values = (metrics.success, metrics.applied, metrics.ftp, metrics.utp, metrics.nr, metrics.s_ttft, metrics.s_tpot)
    return [Cell(f"{value:g}", sort=value) for value in values]


_TASK = (
    Column("Outcome"),
    Column("Unit tests", "number", explain="passed of those that gold passes"),
    Column("S_TTFT", "number", explain="gold / model"),
    Column("S_TPOT", "number", explain="gold / model"),
    Column("Seconds", "number", explain="wall time of the evaluation"),
    Column("Why", wide=True),
)


def _task_cells(task: TaskScore) -> list[Cell | str]:
    known = task.passed is not None and task.expected
    share = f"{task.passed}/{task.expected}" if known else "–"
    return [
        Cell(badge(task.outcome, TONES[task.outcome]), sort=task.outcome),
        Cell(share, sort=round((task.passed or 0) / task.expected, 6) if known and task.expected else ""),
        _number(task.s_ttft, 3),
        _number(task.s_tpot, 3),
        _number(task.seconds, 1),
        task.reason[:400],
    ]


def _number(value: float | None, digits: int) -> Cell:
    return Cell("–", sort="") if value is None else Cell(f"{value:.{digits}f}", sort=round(value, 6))


def submission_table(entry: Entry, pages: dict[tuple[str, str], str]) -> Table:
    """Every task of one submission. `pages`: file name of a task's page by group and id."""
    rows = []
    for task in entry.checked.tasks:
        href = f"../tasks/{pages[entry.group, task.instance_id]}.html"
        cells = [Cell(task.instance_id, href=href, note=task.title), task.category, *_task_cells(task)]
        rows.append(Row(cells, data={"category": task.category, "outcome": task.outcome}))
    filters = [choice("category", "Category", rows), choice("outcome", "Outcome", rows)] if rows else []
    return Table(
        f"tasks-{entry.id}".replace(".", "-"), "Tasks", [Column("Task"), Column("Category"), *_TASK], rows, filters
    )


def category_table(entry: Entry, resolved: dict[Category, tuple[int, int]]) -> Table:
    """A submission's numbers by category. `resolved`: tasks resolved, tasks."""
    rows = []
    lines = [("all", entry.report.metrics, (len(entry.solved), len(entry.checked.tasks)))]
    lines += [(name, metrics, resolved[name]) for name, metrics in entry.report.by_category.items()]
    for name, metrics, (solved, tasks) in lines:
        numbers = [metric_cell(getattr(metrics, key), 1) for key in _PERCENT]
        ratios = [metric_cell(metrics.s_ttft, 3), metric_cell(metrics.s_tpot, 3), metric_cell(metrics.cost, 3)]
        rows.append(Row([name, success_cell(metrics.success, solved, tasks), *numbers, *ratios]))
    columns = [Column("Category"), Column("Success %", "number"), *_NUMBERS, Column("Cost $", "number")]
    return Table(f"numbers-{entry.id}".replace(".", "-"), "Numbers", columns, rows, sortable=False)


def tasks_table(views: Sequence[TaskView]) -> Table:
    """All tasks: how many solve each, and the best ratios."""
    rows = []
    for view in views:
        count = len(view.rows)
        cells: list[Cell | str] = [
            Cell(view.task.instance_id, href=f"tasks/{view.page}.html", note=view.task.title),
            view.task.category,
            Cell(f"{view.solvers} of {count}", sort=view.solvers),
            _number(_best(view, "s_ttft"), 3),
            _number(_best(view, "s_tpot"), 3),
            view.failures[0][1] if view.failures else "–",
        ]
        rows.append(Row(cells, data={"suite": view.group, "category": view.task.category}))
    columns = [Column("Task"), Column("Category"), Column("Solved by", "number"), Column("Best S_TTFT", "number"),
               Column("Best S_TPOT", "number"), Column("Most frequent failure")]  # fmt: skip
    filters = [choice("suite", "Suite", rows), choice("category", "Category", rows)] if rows else []
    return Table("tasks", "Tasks", columns, rows, filters, search=True)


def _best(view: TaskView, ratio: str) -> float | None:
    values = [getattr(task, ratio) for _, task in view.rows if task.outcome == "resolved"]
    return max((value for value in values if value is not None), default=None)


def solvers_table(view: TaskView) -> Table:
    """One task over all submissions: solved first, the fastest first among those."""
    ordered = sorted(view.rows, key=lambda row: (row[1].outcome != "resolved", -(row[1].s_tpot or 0), row[0].id))
    rows = []
    for entry, task in ordered:
        href = f"../models/{entry.model_id}.html#{entry.id}"
        cells = [Cell(entry.metadata.model.name, href=href), entry.metadata.scaffold.name, *_task_cells(task)]
        rows.append(Row(cells, data={"outcome": task.outcome, "scaffold": entry.metadata.scaffold.name}))
    filters = [choice("outcome", "Outcome", rows), choice("scaffold", "Scaffold", rows)]
    return Table(
        "solvers", "Who solves it, and how fast", [Column("Model"), Column("Scaffold"), *_TASK], rows, filters
    )


def failures_table(view: TaskView) -> Table:
    """What typically goes wrong. Numbers and names are left out of the reasons, so that like stands with like."""
    rows = [Row([Cell(str(count), sort=count), outcome, reason]) for count, outcome, reason in view.failures]
    columns = [Column("Times", "number"), Column("Outcome"), Column("What happened", wide=True)]
    return Table("failures", "Typical failures", columns, rows)


def history_table(found: dict[str, list[Milestone]]) -> Table:
    """Every submission in order of its date."""
    rows = []
    for group, lines in found.items():
        for line in lines:
            facts = line.entry.metadata
            mark = badge("new best", "good") if line.is_record else badge("example", "warn") if facts.example else ""
            cells: list[Cell | str] = [
                Cell(facts.date.isoformat()),
                Cell(facts.model.name, href=f"models/{line.entry.model_id}.html#{line.entry.id}"),
                facts.scaffold.name,
                Cell(f"{line.percent:.1f}", sort=round(line.percent, 4), note=f"{line.resolved} of {line.tasks}"),
                Cell(mark, sort="new best" if line.is_record else "example" if facts.example else ""),
            ]
            rows.append(Row(cells, data={"suite": group}))
    columns = [Column("Date"), Column("Model"), Column("Scaffold"), Column("Success %", "number"), Column("Mark")]
    filters = [choice("suite", "Suite", rows)] if rows else []
    return Table("history", "Submissions by date", columns, rows, filters)
