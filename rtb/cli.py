"""The command line: every verb in sight. What a verb needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
import traceback
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rtb import __version__
from rtb.errors import ExpectedError, MachineError
from rtb.mine_command import HELP, mine_command
from rtb.options import (
    EXIT_DONE,
    EXIT_EXPECTED,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OURS,
    EXIT_USAGE,
    IdsArgument,
    JsonOption,
    PlainOption,
    SandboxOption,
    SkipInvalidOption,
    StagesOption,
    SuiteOption,
    WorkersOption,
    choose,
    emit,
)
from rtb.review_command import export_command as tasks_export
from rtb.review_command import import_command as tasks_import
from rtb.review_command import review_command as tasks_review
from rtb.solve_command import (
    AUDIT_HELP,
    EXPORT_HELP,
    REPLAY_HELP,
    SOLVE_HELP,
    audit_command,
    export_command,
    replay_command,
    solve_command,
)
from rtb.tasks_command import predictions_app, tasks_app

if TYPE_CHECKING:
    from harness.evaluate import Request
    from rtb.pass_at_k import PassAtK
    from rtb.series import Series, StepsReport

ALL_STAGES = "unit,accuracy,latency"
MOST_ROWS = 200  # of tasks in a console table
# Some versions of typer bring their own copy of click: its ClickException is found through BadParameter's ancestors.
USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
    help="Can a language model write Triton kernels that hold up inside real AI frameworks?",
)  # fmt: skip
app.add_typer(tasks_app, name="tasks")
app.add_typer(predictions_app, name="predictions")
app.command("mine", help=HELP)(mine_command)
tasks_app.command("review")(tasks_review)
tasks_app.command("export")(tasks_export)
tasks_app.command("import")(tasks_import)
app.command("solve", help=SOLVE_HELP)(solve_command)
app.command("replay", help=REPLAY_HELP)(replay_command)
app.command("audit", help=AUDIT_HELP)(audit_command)
app.command("export", help=EXPORT_HELP)(export_command)


@app.callback(invoke_without_command=True)
def version_option(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(f"rtb {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: rtb doctor")
def doctor(as_json: JsonOption = False) -> None:
    """What this machine can do: Docker, GPU, git, disk, data sets, tokens."""
    from rtb import environment
    from rtb.console import show_table

    facts = environment.diagnose()
    if as_json:
        emit([{"what": fact.what, "ok": fact.ok, "found": fact.found, "advice": fact.advice} for fact in facts])
        return
    rows = [(fact.what, "yes" if fact.ok else "no", fact.found, "" if fact.ok else fact.advice) for fact in facts]
    show_table("This machine", ("what", "usable", "found", "what to do"), rows)


@app.command("build-env", epilog="Example: rtb build-env --suite demo --sandbox local")
def build_env(
    ids: IdsArgument = None,
    suite: SuiteOption = None,
    sandbox: SandboxOption = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build although it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the environments of tasks: images (docker) or virtual environments and trees (local)."""
    from rtb import environment
    from rtb.console import say

    kind = environment.choose_kind(sandbox)
    built = []
    for entry in choose(suite, ids, need=True):
        prepared = environment.prepare(entry, kind, rebuild=rebuild, progress=say)
        built.append(
            {"instance_id": entry.instance_id, "kind": kind, "digest": prepared.digest, "name": prepared.name}
        )
        say(f"{entry.instance_id}: {prepared.name}")
    if as_json:
        emit(built)


@app.command(epilog="Example: rtb evaluate --predictions gold --suite demo --sandbox local -i rtb__tinyserve-9")
def evaluate(
    predictions: Annotated[
        list[str],
        typer.Option(
            "--predictions",
            help="A file, or the control gold, base or sabotage. Several files are several attempts: pass@k.",
        ),
    ],
    suite: SuiteOption = None,
    instance: Annotated[list[str] | None, typer.Option("-i", "--instance", help="Only these tasks.")] = None,
    stages: StagesOption = ALL_STAGES,
    sandbox: SandboxOption = None,
    workers: WorkersOption = os.cpu_count() or 1,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run; the same name resumes it.")] = None,
    profile: Annotated[str, typer.Option(help="robust or paper.")] = "robust",
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    skip_invalid: SkipInvalidOption = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Run kernels compiled, each task on a leased GPU.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="Further tries after a machine fault.")] = 2,
    attempts: Annotated[
        int, typer.Option(min=1, help="So many files of 'rtb solve --attempts', of which the first is named: pass@k.")
    ] = 1,
    steps: Annotated[
        bool, typer.Option("--steps", help="Grade the answer after each step that changed it: score against step.")
    ] = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate predictions: apply each patch, run the stages, write verdicts and a report."""
    from harness import evaluate as evaluation
    from harness import report as reports
    from rtb.prediction import attempt_file

    files = list(predictions)
    if attempts > 1 and len(files) == 1:
        files = [str(attempt_file(Path(files[0]), number)) for number in range(1, attempts + 1)]
    if len(files) > 1 and (steps or attempts not in (1, len(files))):
        other = "--steps" if steps else "--attempts"
        raise typer.BadParameter("does not go with several attempts or files", param_hint=other)
    request = evaluation.Request(
        predictions=files[0], suite=suite, instances=tuple(instance or ()), stages=tuple(stages.split(",")),
        sandbox=sandbox, workers=workers, run_id=run_id, profile=profile, out=out, retries=retries, gpu=gpu,
        plain=plain or None,
    )  # fmt: skip
    if steps or len(files) > 1:
        _evaluate_series(request, files, steps, skip_invalid, as_json)
        return
    finished = evaluation.evaluate(request)
    if as_json:
        emit(reports.as_json(finished.report))
    _show(finished.run.path)
    if finished.report.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)
    if finished.faulty_predictions and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)


def _evaluate_series(request: Request, files: list[str], steps: bool, skip_invalid: bool, as_json: bool) -> None:
    """Several attempts, or the steps of one."""
    from harness import series

    finished = series.evaluate_steps(request) if steps else series.evaluate_attempts(request, files)
    _show_series(finished.series, finished.report, as_json)
    if finished.report.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)
    if finished.faulty_predictions and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)


def _show_series(series: Series, found: PassAtK | StepsReport, as_json: bool) -> None:
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


@app.command(epilog="Example: rtb validate rtb__tinyserve-9 --sandbox local --runs 1")
def validate(
    ids: IdsArgument = None,
    suite: SuiteOption = None,
    sandbox: SandboxOption = None,
    stages: StagesOption = ALL_STAGES,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each control.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the raw files.")] = Path("validation"),
    gpu: Annotated[bool, typer.Option("--gpu", help="Run kernels compiled, each task on a leased GPU.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run gold, base and sabotage on tasks; write their test ids and baselines, or say why a task is refused."""
    from harness.evaluate import named_stages
    from harness.validate_suite import validate_tasks
    from rtb.console import say

    found = validate_tasks(
        choose(suite, ids, need=True), sandbox=sandbox, out=out, say=say, runs=runs, gpu=gpu,
        stages=named_stages(tuple(stages.split(","))),
    )  # fmt: skip
    if as_json:
        emit([{"instance_id": item.instance_id, "refused": list(item.refused)} for item in found])
    if any(item.refused for item in found):
        raise typer.Exit(EXIT_EXPECTED)


@app.command(epilog="Example: rtb report runs/RUN_ID --format md")
def report(
    run: str,
    form: Annotated[str, typer.Option("--format", help="table, json or md.")] = "table",
    as_json: JsonOption = False,
) -> None:
    """Grade a stored run again from its files alone, and show it. Needs no Docker, no GPU and no suite."""
    from harness import report as reports
    from harness.evaluate import regrade
    from rtb.run import find_run
    from rtb.series import find_series

    if form not in ("table", "json", "md"):
        raise typer.BadParameter(f"{form!r} is not one of table, json, md", param_hint="--format")
    if (series := find_series(run)) is not None:
        _report_series(series, form, as_json)
        return
    stored = find_run(run)
    graded = regrade(stored)
    if as_json or form == "json":
        emit(reports.as_json(graded))
    elif form == "md":
        typer.echo(stored.report_markdown.read_text())
    else:
        _show(stored.path)
    if graded.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)


def _report_series(series: Series, form: str, as_json: bool) -> None:
    from harness.series import regrade_series

    found = regrade_series(series)
    if form == "md":
        typer.echo(series.report_markdown.read_text())
    else:
        _show_series(series, found, as_json or form == "json")
    if found.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)


def _show(path: Path) -> None:
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


def main() -> None:
    """Run the command line and leave with the exit code of DESIGN section 5."""
    from rtb.console import say

    try:
        code = app(prog_name="rtb", standalone_mode=False)
    except USAGE_ERROR as error:
        error.show()
        code = EXIT_USAGE
    except ExpectedError as error:
        say(f"rtb: {error}")
        code = EXIT_EXPECTED
    except MachineError as error:
        say(f"rtb: {type(error).__name__}: {error}")
        code = EXIT_INCOMPLETE
    except (KeyboardInterrupt, typer.Abort):
        say("rtb: interrupted; what is finished is kept, the same command goes on from there")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left (`| head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_DONE
    except Exception:  # noqa: BLE001 - the last resort: a fault of ours, said as such, never a bare traceback
        say("rtb: a fault of rtb itself; please report it with the lines below")
        say(traceback.format_exc())
        code = EXIT_OURS
    sys.exit(code if isinstance(code, int) else EXIT_DONE)


if __name__ == "__main__":
    main()
