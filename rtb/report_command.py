"""`rtb report` and `rtb compare`: stored runs in every form. Imports happen when they run: --help is quick."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtb.errors import ExpectedError
from rtb.options import EXIT_INCOMPLETE, JsonOption, emit

if TYPE_CHECKING:
    from harness.compare import Comparison
    from rtb.pass_at_k import PassAtK
    from rtb.series import Series, StepsReport

MOST_ROWS = 200  # of tasks in a console table
FORMS = ("table", "json", "md", "html", "latex")
COMPARE_FORMS = FORMS[:-1]
COMPARE_HELP = "Put runs of the same tasks side by side: what changed per task, and whether it is more than noise."
REPORT_HELP = "Grade a stored run again from its files alone, and show it. Needs no Docker, no GPU and no suite."


def report_command(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id under runs/.")],
    form: Annotated[
        str, typer.Option("--format", help="table, json, md, html (writes report.html, prints its path) or latex.")
    ] = "table",
    as_json: JsonOption = False,
) -> None:
    from harness import report as reports
    from harness.evaluate import regrade, stored_verdicts
    from rtb.run import find_run
    from rtb.series import find_series

    if form not in FORMS:
        raise typer.BadParameter(f"{form!r} is not one of {', '.join(FORMS)}", param_hint="--format")
    if (series := find_series(run)) is not None:
        _report_series(series, form, as_json)
        return
    stored = find_run(run)
    graded = regrade(stored)
    if as_json or form == "json":
        emit(reports.as_json(graded))
    elif form == "md":
        typer.echo(stored.report_markdown.read_text())
    elif form == "html":
        from harness.report_page import report_page

        stored.write_page(report_page(stored, graded))
        typer.echo(str(stored.report_html))
    elif form == "latex":
        from harness.latex import to_latex

        record = stored.read_record()
        typer.echo(to_latex(record, reports.numbers_of(record, stored_verdicts(stored, record))))
    else:
        show_run(stored.path)
    if graded.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Runs' folders, or their ids under runs/.")],
    form: Annotated[
        str, typer.Option("--format", help="table, json, md, or html (writes a page, prints its path).")
    ] = ("table"),
    out: Annotated[Path, typer.Option(help="The page that --format html writes.")] = Path("comparison.html"),
    as_json: JsonOption = False,
) -> None:
    from harness import compare_page as views
    from harness.compare import compare
    from rtb.run import find_run
    from rtb.storage import write_atomic

    if form not in COMPARE_FORMS:
        raise typer.BadParameter(f"{form!r} is not one of {', '.join(COMPARE_FORMS)}", param_hint="--format")
    if len(runs) < 2:
        raise typer.BadParameter("name at least two runs", param_hint="RUN RUN...")
    found = compare([find_run(name) for name in runs])
    if as_json or form == "json":
        emit(views.as_json(found))
    elif form == "md":
        typer.echo(views.to_markdown(found))
    elif form == "html":
        write_atomic(out, views.compare_page(found).encode())
        typer.echo(str(out))
    else:
        _show_comparison(found)
    if any(member.report.incomplete for member in found.members):
        raise typer.Exit(EXIT_INCOMPLETE)


def _show_comparison(found: Comparison) -> None:
    from harness import compare_page as views
    from rtb.console import say, show_table

    rows = list(views.changed_rows(found))
    if rows:
        title = f"{len(rows)} of {len(found.tasks)} tasks ended differently"
        show_table(title, views.task_columns(found), rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            say(f"the first {MOST_ROWS} of {len(rows)}; --format html and md have them all")
    else:
        say(f"all {len(found.tasks)} tasks ended the same")
    show_table("", views.RUN_COLUMNS, views.run_rows(found), right=tuple(range(2, len(views.RUN_COLUMNS))))
    for line in (*found.notes, *(item.sentence for item in found.differences)):
        say(line)


def _report_series(series: Series, form: str, as_json: bool) -> None:
    from harness.series import regrade_series

    if form in ("html", "latex"):
        names = ", ".join(str(run.path) for run in series.runs()) or "none yet"
        raise ExpectedError(f"{series.path} is a series; --format {form} is made of one of its runs: {names}")
    found = regrade_series(series)
    if form == "md":
        typer.echo(series.report_markdown.read_text())
    else:
        show_series(series, found, as_json or form == "json")
    if found.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)


def show_series(series: Series, found: PassAtK | StepsReport, as_json: bool) -> None:
    """The console tables of a series, and its JSON document."""
    from harness import series_report
    from rtb.console import say, show_table
    from rtb.pass_at_k import PassAtK

    if as_json:
        emit({"run_id": series.path.name, **found.model_dump(mode="json")})
    if isinstance(found, PassAtK):
        show_table("", series_report.TRY_COLUMNS, series_report.try_rows(found), right=(2, 3))
        columns, rows = series_report.pass_columns(found), series_report.pass_rows(found)
        show_table("", columns, rows, right=tuple(range(1, len(columns))))
        notes = series_report.pass_notes(found)
    else:
        show_table("", series_report.STEP_COLUMNS, series_report.step_rows(found), right=(1,))
        show_table("", series_report.CURVE_COLUMNS, series_report.curve_rows(found), right=tuple(range(6)))
        notes = found.notes
    for note in notes:
        say(note)
    say(f"report: {series.report_markdown}  {series.report_json}")


def show_run(path: Path) -> None:
    """The console tables of a run."""
    from harness import report as reports
    from rtb.console import say, show_table
    from rtb.result import Report
    from rtb.run import Run
    from rtb.suite import read_model

    run = Run(path)
    stored = read_model(run.report_json, Report)
    verdicts = (run.read_verdict(name) for name in run.read_record().instance_ids)
    found = (verdict for verdict in verdicts if verdict is not None)
    rows = [reports.task_row(verdict) for verdict in islice(found, MOST_ROWS)]
    title = f"{stored.suite}: {', '.join(stored.model_names)}"
    show_table(title, reports.TASK_COLUMNS, rows, right=(3, 5), text_below=True)
    numbers = range(1, len(reports.metric_columns()))
    show_table("", reports.metric_columns(), reports.metric_rows(stored), right=tuple(numbers))
    if stored.tasks > MOST_ROWS:
        say(f"the first {MOST_ROWS} of {stored.tasks} tasks; {run.report_markdown} has them all")
    for note in stored.notes:
        say(note)
    say(f"report: {run.report_markdown}  {run.report_json}")
