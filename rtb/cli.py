"""The command line: every verb in sight. What a verb needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rtb import __version__
from rtb.errors import ExpectedError, MachineError

if TYPE_CHECKING:
    from rtb.suite import TaskEntry

# Some versions of typer bring their own copy of click: its ClickException is found through BadParameter's ancestors.
USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])
EXIT_DONE, EXIT_EXPECTED, EXIT_USAGE, EXIT_OURS, EXIT_INCOMPLETE, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
    help="Can a language model write Triton kernels that hold up inside real AI frameworks?",
)  # fmt: skip
tasks_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at tasks, check and hydrate them.")
predictions_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at predictions files.")
app.add_typer(tasks_app, name="tasks")
app.add_typer(predictions_app, name="predictions")

SuiteOption = Annotated[str | None, typer.Option("--suite", help="A suite: a folder under tasks/.")]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Exit with 0 although lines are bad.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Instance ids.")]
SandboxOption = Annotated[
    str | None, typer.Option("--sandbox", help="docker or local; default: docker if it answers.")
]


def emit(document: Any) -> None:
    """The one JSON document of a verb."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def choose(suite: str | None, ids: list[str] | None, *, need: bool = False) -> tuple[TaskEntry, ...]:
    """The tasks a command is about: of a suite, or by id in any suite, or (unless `need`) all there are."""
    from rtb.suite import find_task, load_suite, suite_names

    if suite is not None:
        return load_suite(suite).select(ids or [])
    if ids:
        return tuple(find_task(name) for name in ids)
    if need:
        raise ExpectedError("name a TASK_ID or a --suite")
    return tuple(entry for name in suite_names() for entry in load_suite(name).entries)


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


@tasks_app.command("list", epilog="Example: rtb tasks list --suite demo")
def tasks_list(
    suite: SuiteOption = None,
    category: Annotated[str | None, typer.Option(help="optimization, modification or new_kernel.")] = None,
    state: Annotated[str | None, typer.Option(help="draft, accepted or rejected.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks there are."""
    from rtb.console import show_table

    entries = [
        entry
        for entry in choose(suite, None)
        if category in (None, entry.task.category) and state in (None, entry.task.provenance.state)
    ]
    if as_json:
        emit([{"suite": entry.suite.name, **entry.task.model_dump(mode="json")} for entry in entries])
        return
    rows = [
        (entry.suite.name, entry.instance_id, entry.task.category, ",".join(entry.task.stages), entry.task.title)
        for entry in entries
    ]
    show_table(f"{len(rows)} tasks", ("suite", "task", "category", "stages", "title"), rows)


@tasks_app.command("show", epilog="Example: rtb tasks show rtb__tinyserve-2")
def tasks_show(task_id: str, suite: SuiteOption = None, as_json: JsonOption = False) -> None:
    """Show one task: what it asks, its targets, how it is judged."""
    from rtb.taskview import describe

    entry = choose(suite, [task_id])[0]
    if as_json:
        tests = entry.tests.model_dump(mode="json") if entry.tests else None
        emit({"suite": entry.suite.name, "task": entry.task.model_dump(mode="json"), "tests": tests})
        return
    typer.echo(describe(entry))


@tasks_app.command("check", epilog="Example: rtb tasks check --suite demo")
def tasks_check(ids: IdsArgument = None, suite: SuiteOption = None, as_json: JsonOption = False) -> None:
    """Check tasks: schema, test ids, patches against their recorded digests."""
    from rtb.taskview import check

    findings = [(entry, check(entry)) for entry in choose(suite, ids)]
    if as_json:
        emit({entry.instance_id: list(problems) for entry, problems in findings})
    else:
        for entry, problems in findings:
            typer.echo(f"{entry.suite.name}/{entry.instance_id}: {'; '.join(problems) or 'ok'}", err=True)
    if any(problems for _, problems in findings):
        raise typer.Exit(EXIT_EXPECTED)


@tasks_app.command("schema", epilog="Example: rtb tasks schema > task.schema.json")
def tasks_schema(
    what: Annotated[str, typer.Argument(help="task, tests, suite, prediction, run, verdict or report.")] = "task",
) -> None:
    """Print the JSON Schema of what reaches disk."""
    from rtb.taskview import schema

    emit(schema(what))


@tasks_app.command("hydrate", epilog="Example: rtb tasks hydrate vllm-project__vllm-7386 --clone ../vllm")
def tasks_hydrate(
    ids: IdsArgument = None,
    suite: SuiteOption = None,
    clone: Annotated[Path | None, typer.Option(help="A clone that has the commits; else they are fetched.")] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Record digests and paths instead of checking them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the patches of tasks that hold facts only, and check them against the recorded digests."""
    from rtb.console import say
    from rtb.hydration import hydrate

    done = []
    for entry in choose(suite, ids, need=True):
        result = hydrate(entry, clone=clone, pin=pin)
        done.append({**asdict(result), "source": str(result.source), "folder": str(result.folder)})
        say(f"{result.instance_id}: {'pinned' if pin else 'matches its recorded digests'} (from {result.source})")
    if as_json:
        emit(done)


@predictions_app.command("check", epilog="Example: rtb predictions check tasks/demo/example_predictions.jsonl")
def predictions_check(
    file: Path,
    suite: SuiteOption = None,
    skip_invalid: SkipInvalidOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain every bad line of a predictions file, with its number."""
    from rtb.console import say
    from rtb.prediction import read_predictions
    from rtb.suite import load_suite

    known = {entry.instance_id for entry in load_suite(suite).entries} if suite else None
    found = read_predictions(file, known)
    missing = sorted(known - set(found.ids)) if known else []
    if as_json:
        problems = [item.model_dump(mode="json") for item in found.problems]
        emit({"file": str(file), "form": found.form, "usable": list(found.ids), "empty_patch": sorted(found.empty),
              "not_submitted": missing, "problems": problems})  # fmt: skip
    else:
        for item in found.problems:
            say(f"{file}:{item.place}: {'warning' if item.is_warning else 'error'}: {item.message}")
        for name in missing:
            say(f"{file}: no prediction for {name}")
        say(f"{len(found.ids)} usable ({len(found.empty)} with an empty patch), {len(found.errors)} not")
    if found.errors and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)


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


@app.command(epilog="Example: rtb evaluate --predictions gold --suite demo --sandbox local -i rtb__tinyserve-2")
def evaluate(
    predictions: Annotated[str, typer.Option("--predictions", help="A file, or the control gold, base or sabotage.")],
    suite: SuiteOption = None,
    instance: Annotated[list[str] | None, typer.Option("-i", "--instance", help="Only these tasks.")] = None,
    stages: Annotated[str, typer.Option(help="Comma-separated: unit.")] = "unit",
    sandbox: SandboxOption = None,
    workers: Annotated[int, typer.Option(min=1, help="Tasks at a time.")] = os.cpu_count() or 1,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run; the same name resumes it.")] = None,
    profile: Annotated[str, typer.Option(help="robust or paper.")] = "robust",
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    skip_invalid: SkipInvalidOption = False,
    devices: Annotated[
        str, typer.Option(help="GPUs that tasks may lease, e.g. 0,1; none: tasks run on the CPU.")
    ] = "",
    retries: Annotated[int, typer.Option(min=0, help="Further tries after a machine fault.")] = 2,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of live progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate predictions: apply each patch, run the stages, write verdicts and a report."""
    from harness import evaluate as evaluation
    from harness import report as reports

    request = evaluation.Request(
        predictions=predictions, suite=suite, instances=tuple(instance or ()), stages=tuple(stages.split(",")),
        sandbox=sandbox, workers=workers, run_id=run_id, profile=profile, out=out, retries=retries,
        devices=tuple(item for item in devices.split(",") if item),
        plain=plain or None,
    )  # fmt: skip
    finished = evaluation.evaluate(request)
    if as_json:
        emit(reports.as_json(finished.report))
    _show(finished.run.path)
    if finished.report.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)
    if finished.faulty_predictions and not skip_invalid:
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

    if form not in ("table", "json", "md"):
        raise typer.BadParameter(f"{form!r} is not one of table, json, md", param_hint="--format")
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
    rows = [reports.task_row(verdict) for verdict in verdicts if verdict is not None]
    show_table(f"{stored.suite}: {', '.join(stored.model_names)}", reports.TASK_COLUMNS, rows, right=(3, 5))
    numbers = range(1, len(reports.metric_columns()))
    show_table("", reports.metric_columns(), reports.metric_rows(stored), right=tuple(numbers))
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
