"""A run in numbers and words: report.json, Markdown, the console table, and the answer of `--json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness import paper_tables
from harness.metrics import Row, metrics, row_of
from harness.paper_tables import Numbers
from harness.profiles import PROFILES, task_rows
from rtb.console import visible
from rtb.result import OUTCOMES, Metric, Metrics, Outcome, Report, Verdict
from rtb.run import RunRecord
from rtb.task import CATEGORIES

COLUMNS = (
    ("success", "Success %"),
    ("applied", "Applied %"),
    ("ftp", "FTP %"),
    ("utp", "UTP %"),
    ("nr", "NR %"),
    ("s_ttft", "S_TTFT"),
    ("s_tpot", "S_TPOT"),
    ("cost", "Cost $"),
)


def build_report(record: RunRecord, verdicts: Iterable[Verdict]) -> Report:
    """The report of a run. Takes verdicts one at a time and keeps a few numbers of each."""
    rows: list[Row] = []
    by_outcome: dict[Outcome, list[str]] = {outcome: [] for outcome in OUTCOMES}
    for verdict in verdicts:
        row = row_of(verdict, unit=record.has_unit)
        # An attempt that a fault ended says nothing about the tests it would have passed.
        rows.append(replace(row, utp=None) if verdict.instance_id in record.unfinished else row)
        by_outcome[verdict.outcome].append(verdict.instance_id)
    groups = {name: [row for row in rows if row.category == name] for name in CATEGORIES}
    return Report(
        run_id=record.run_id,
        suite=record.suite,
        tasks=len(record.instance_ids),
        outcomes={outcome: len(ids) for outcome, ids in by_outcome.items()},
        metrics=metrics(rows),
        by_category={name: metrics(group) for name, group in groups.items() if group},
        category_tasks={name: len(group) for name, group in groups.items()},
        incomplete=bool(by_outcome["error"] or record.unfinished),
        model_names=record.model_names,
        sandbox=record.sandbox,
        stages=record.stages,
        profile=record.profile,
        tasks_by_outcome={outcome: tuple(ids) for outcome, ids in by_outcome.items()},
        notes=_notes(record, by_outcome),
    )


def _notes(record: RunRecord, by_outcome: dict[Outcome, list[str]]) -> tuple[str, ...]:
    notes: list[str] = []
    if by_outcome["error"]:
        notes.append(
            f"Incomplete: {len(by_outcome['error'])} task(s) ended in a machine fault; no fault counts as a failed "
            "model, but no score is final before they have a result. The same command finishes the run."
        )
    if record.unfinished:
        notes.append(
            f"Incomplete: {len(record.unfinished)} prediction(s) are of attempts that a fault of a machine or of the "
            "model's API ended; they are not graded and say nothing about the model. Run 'rtb solve' again first."
        )
    if missing := len(by_outcome["not_submitted"]) - len(record.unfinished):
        notes.append(f"{missing} task(s) have no prediction and count as not solved.")
    if errors := sum(not problem.is_warning for problem in record.problems):
        notes.append(f"{errors} prediction(s) of {record.predictions} could not be read; see run.json, problems.")
    if not record.whole_suite:
        notes.append(f"A selection of the suite {record.suite}, not the whole of it.")
    if unmeasured := [name for name in ("unit", "accuracy", "latency") if name not in record.stages]:
        counted = " and ".join("the unit tests" if name == "unit" else name for name in record.stages)
        notes.append(f"Not measured: {', '.join(unmeasured)}. Success counts {counted} only.")
    notes.extend(f"Sandbox: {item}." for item in record.isolation)
    return tuple(notes)


def as_json(report: Report) -> dict[str, Any]:
    """The document that `evaluate --json` and `report --json` end with. A metric that was not measured is null."""

    def values(item: Metrics) -> dict[str, float | None]:
        return {name: getattr(item, name).value for name, _ in COLUMNS}

    return {
        "run_id": report.run_id,
        "suite": report.suite,
        "tasks": report.tasks,
        "outcomes": dict(report.outcomes),
        "metrics": values(report.metrics),
        "by_category": {name: values(item) for name, item in report.by_category.items()},
        "incomplete": report.incomplete,
    }


def cell(metric: Metric, name: str) -> str:
    """A metric as a table shows it; a dash where nothing was measured."""
    if metric.value is None:
        return "–"
    digits = 4 if name in ("s_ttft", "s_tpot", "cost") else 1
    return f"{metric.value:.{digits}f}"


def metric_rows(report: Report) -> list[tuple[str, ...]]:
    """The table of metrics: one row a category, then all."""
    rows = [
        (name, str(report.category_tasks[name]), *(cell(getattr(item, key), key) for key, _ in COLUMNS))
        for name, item in report.by_category.items()
    ]
    rows.append(("all", str(report.tasks), *(cell(getattr(report.metrics, key), key) for key, _ in COLUMNS)))
    return rows


def metric_columns() -> tuple[str, ...]:
    """Headings for `metric_rows`."""
    return ("category", "tasks", *(title for _, title in COLUMNS))


def unit_cell(verdict: Verdict) -> str:
    """Tests passed of tests expected, or a dash."""
    stage = verdict.stage("unit")
    return f"{stage.unit.passed}/{stage.unit.expected}" if stage is not None and stage.unit is not None else "–"


def task_row(verdict: Verdict) -> tuple[str, ...]:
    """One task as the console and Markdown show it."""
    method = verdict.patch.method if verdict.patch is not None and verdict.patch.status == "applied" else "–"
    seconds = f"{verdict.seconds:.1f}" if verdict.seconds is not None else "–"
    why = verdict.reason
    if verdict.patch is not None and verdict.patch.flags:
        why += f" [set aside: {', '.join(verdict.patch.flags)}]"
    for stage in verdict.stages:
        if stage.coverage is not None and stage.coverage.state == "uncovered":
            why += f" [{stage.stage} {stage.coverage.reason}]"
    return (
        verdict.instance_id,
        verdict.category,
        verdict.outcome,
        unit_cell(verdict),
        method,
        seconds,
        why,
    )


TASK_COLUMNS = ("task", "category", "outcome", "unit", "patch applied", "seconds", "why")


def numbers_of(record: RunRecord, verdicts: Iterable[Verdict]) -> Numbers:
    """The run under both profiles. Takes verdicts one at a time and keeps a few numbers of each."""
    return paper_tables.numbers([task_rows(verdict, unit=record.has_unit) for verdict in verdicts])


def paper_markdown(record: RunRecord, found: Numbers) -> list[str]:
    """Metrics in both profiles with interval and n, then the paper's Tables 3 and 4 for this run."""
    titles = ["metric", *(f"{profile}{part}" for profile in PROFILES for part in ("", ": 95 % interval", ": n"))]
    model = ", ".join(record.model_names) or "no model"
    return [
        *table_lines(titles, paper_tables.headline_rows(found)),
        "",
        f"{paper_tables.TABLE3_CAPTION}:",
        "",
        *table_lines(paper_tables.TABLE3_COLUMNS, paper_tables.table3(model, found)),
        "",
        f"{paper_tables.TABLE4_CAPTION}:",
        "",
        *table_lines(paper_tables.TABLE4_COLUMNS, paper_tables.table4(found)),
    ]


def to_markdown(report: Report, record: RunRecord, verdicts: Iterable[Verdict], found: Numbers) -> str:
    """The report as Markdown: numbers, tasks, evidence, and what it was measured on."""
    interval = report.metrics.success
    lines = [
        f"# {report.suite}: {plain_markdown(', '.join(report.model_names) or 'no model')}",
        "",
        f"Run `{report.run_id}`, {record.created_at}, sandbox {report.sandbox}, stages {', '.join(report.stages)}, "
        f"profile {report.profile}, rtb {record.rtb_version}.",
        "",
    ]
    if interval.value is not None:
        lines += [
            f"**Success {interval.value:.1f} %** ({report.outcomes['resolved']} of {report.tasks} tasks; "
            f"95 % interval {interval.low:.1f} to {interval.high:.1f} %).",
            "",
        ]
    lines += [*(f"> {note}" for note in report.notes), ""]
    lines += table_lines(metric_columns(), metric_rows(report))
    counts = [(outcome, str(count)) for outcome, count in report.outcomes.items() if count]
    lines += ["", *table_lines(("outcome", "tasks"), counts), ""]
    lines += ["## In both profiles, and as in the paper", "", *paper_markdown(record, found), "", "## Tasks", ""]
    lines += table_lines(TASK_COLUMNS, (task_row(verdict) for verdict in verdicts))
    machine = record.machine
    lines += [
        "",
        "## Measured on",
        "",
        f"{machine.system}; {machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1024**3:.1f} GiB; "
        f"GPUs: {', '.join(machine.gpus) or 'none'}.",
        "",
        *(f"- {name} {version}" for name, version in record.versions.items()),
        f"- suite digest `{record.suite_digest[:16]}`, predictions digest `{record.predictions_sha256[:16]}`",
        "",
    ]
    return "\n".join(lines)


def plain_markdown(text: str) -> str:
    """Text of a table's cell or a heading: no markup of HTML in it, and no character that a reader cannot see."""
    return visible(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown, line by line."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(plain_markdown(text) for text in cells) + " |"

    return [line(columns), "|" + " --- |" * len(columns), *(line(row) for row in rows)]
