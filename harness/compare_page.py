"""A comparison as tables, JSON, Markdown and one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from harness.compare import Comparison, Difference
from harness.report import COLUMNS, cell, plain_markdown, table_lines
from harness.task_view import TONES
from rtb.page import Cell, Column, Row, Table, badge, choice, page, render, table_html

RUN_COLUMNS = ("run", "model", "tasks", *(title for _, title in COLUMNS))
PAIR_COLUMNS = (
    "first",
    "second",
    "n",
    "won",
    "lost",
    "points",
    "95 % interval",
    "McNemar p",
    "Holm",
    "more than noise",
)


def run_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Each run's metrics, then the paper's row of averages."""
    rows = [
        (
            member.label, member.model, str(member.report.tasks),
            *(cell(getattr(member.report.metrics, key), key) for key, _ in COLUMNS),
        )
        for member in found.members
    ]  # fmt: skip
    mean = found.mean
    return [*rows, ("mean of the runs", "", "", *(cell(getattr(mean, key), key) for key, _ in COLUMNS))]


def pair_rows(found: Comparison) -> list[tuple[str, ...]]:
    """The paired test of each two runs."""
    return [_pair_row(item) for item in found.differences]


def _pair_row(item: Difference) -> tuple[str, ...]:
    if item.pairs is None or item.p is None or item.adjusted is None:
        return (item.first, item.second, "0", *("–",) * 7)
    return (
        item.first, item.second, str(item.pairs.n), str(item.pairs.won), str(item.pairs.lost), f"{item.points:+.1f}",
        f"{item.low:+.1f} to {item.high:+.1f}", f"{item.p:.4f}", f"{item.adjusted:.4f}",
        "yes" if item.more_than_noise else "no",
    )  # fmt: skip


def task_columns(found: Comparison) -> tuple[str, ...]:
    """Headings of `changed_rows`."""
    return ("task", "category", *(member.label for member in found.members))


def changed_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    """The tasks whose outcome is not the same in all runs."""
    for name in found.changed:
        category = found.members[0].record.categories[name]
        yield (name, category, *(member.verdicts[name].outcome for member in found.members))


def as_json(found: Comparison) -> dict[str, Any]:
    """The document of `rtb compare --json`."""
    return {
        "suite": found.members[0].record.suite,
        "tasks": len(found.tasks),
        "runs": [
            {"label": item.label, "run_id": item.record.run_id, "models": list(item.record.model_names),
             "success": item.report.metrics.success.value, "incomplete": item.report.incomplete}
            for item in found.members
        ],
        "differences": [
            {"first": item.first, "second": item.second, "tasks": item.pairs.n if item.pairs else 0,
             "won": item.pairs.won if item.pairs else None, "lost": item.pairs.lost if item.pairs else None,
             "points": item.points, "low": item.low, "high": item.high, "p": item.p, "p_holm": item.adjusted,
             "more_than_noise": item.more_than_noise, "left_out": item.left_out}
            for item in found.differences
        ],
        "changed": [
            {"instance_id": name, "outcomes": {item.label: item.verdicts[name].outcome for item in found.members}}
            for name in found.changed
        ],
        "notes": list(found.notes),
    }  # fmt: skip


def to_markdown(found: Comparison) -> str:
    """The comparison as Markdown."""
    lines = [f"# {plain_markdown(_title(found))}", "", *(f"> {plain_markdown(note)}" for note in found.notes), ""]
    lines += [*(f"- {plain_markdown(item.sentence)}" for item in found.differences), ""]
    lines += [*table_lines(RUN_COLUMNS, run_rows(found)), "", *table_lines(PAIR_COLUMNS, pair_rows(found)), ""]
    lines += [f"{len(found.changed)} of {len(found.tasks)} tasks ended differently:", ""]
    return "\n".join([*lines, *table_lines(task_columns(found), changed_rows(found)), ""])


def compare_page(found: Comparison) -> str:
    """The comparison as a page: every task, those that changed first."""
    body = render(
        "compare.html.jinja",
        notes=found.notes,
        sentences=[item.sentence for item in found.differences],
        runs=_plain("runs", "Metrics of the runs", RUN_COLUMNS, run_rows(found), texts=2),
        pairs=_plain("pairs", "Paired test on success, each two runs", PAIR_COLUMNS, pair_rows(found), texts=2),
        tasks=_tasks(found),
        changed=len(found.changed),
        total=len(found.tasks),
    )
    return page(_title(found), body, subtitle=f"Suite {found.members[0].record.suite}, {len(found.tasks)} tasks")


def _title(found: Comparison) -> str:
    return "Comparison of " + " and ".join(member.label for member in found.members)


def _plain(name: str, caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> Markup:
    columns = [Column(title, "text" if place < texts else "number") for place, title in enumerate(titles)]
    return table_html(Table(name, caption, columns, [Row(cells) for cells in rows], sortable=False))


def _tasks(found: Comparison) -> Markup:
    columns = [Column("task"), Column("category", minor=True), Column("change"),
               *(Column(member.label, wide=True) for member in found.members)]  # fmt: skip
    rows = sorted((_task(found, name) for name in found.tasks), key=lambda row: row.data["change"] == "same")
    filters = [choice("change", "Change", rows), choice("category", "Category", rows)]
    return table_html(Table("tasks", "One row a task", columns, rows, filters, search=True))


def _task(found: Comparison, name: str) -> Row:
    verdicts = [member.verdicts[name] for member in found.members]
    category = found.members[0].record.categories[name]
    outcomes = [verdict.outcome for verdict in verdicts]
    change = "same"
    if len(set(outcomes)) > 1:
        first, last = outcomes[0] == "resolved", outcomes[-1] == "resolved"
        change = "won" if last and not first else "lost" if first and not last else "other"
    tone = {"won": "good", "lost": "bad", "other": "warn"}.get(change, "dim")
    cells = [
        Cell(badge(item.outcome, TONES.get(item.outcome, "")), sort=item.outcome, note=item.reason[:160])
        for item in verdicts
    ]
    return Row(
        [name, category, Cell(badge(change, tone), sort=change), *cells], id=f"t-{name}",
        data={"change": change, "category": category},
    )  # fmt: skip
