"""The command line: every verb in sight. What a verb needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rtb import __version__
from rtb.errors import ExpectedError, MachineError, known_fault
from rtb.leaderboard_command import leaderboard_app
from rtb.mine_command import HELP, mining_verb
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
from rtb.report_command import (
    COMPARE_HELP,
    REPORT_HELP,
    compare_command,
    report_command,
    show_run,
    show_series,
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
from rtb.submit_command import SUBMIT_HELP, submit_command
from rtb.tasks_command import predictions_app, tasks_app

if TYPE_CHECKING:
    from harness.evaluate import Request
    from rtb.description import Ask

ALL_STAGES = "unit,accuracy,latency"
# Some versions of typer bring their own copy of click: its ClickException is found through BadParameter's ancestors.
USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
    help="Can a language model write Triton kernels that hold up inside real AI frameworks?",
)  # fmt: skip
app.add_typer(tasks_app, name="tasks")
app.add_typer(predictions_app, name="predictions")
app.add_typer(leaderboard_app, name="leaderboard")
tasks_app.command("review")(tasks_review)
tasks_app.command("export")(tasks_export)
tasks_app.command("import")(tasks_import)
app.command("solve", help=SOLVE_HELP)(solve_command)
app.command("replay", help=REPLAY_HELP)(replay_command)
app.command("audit", help=AUDIT_HELP)(audit_command)
app.command("export", help=EXPORT_HELP)(export_command)
app.command("report", help=REPORT_HELP, epilog="Example: rtb report runs/RUN_ID --format md")(report_command)
app.command("compare", help=COMPARE_HELP, epilog="Example: rtb compare runs/RUN_ID runs/OTHER_ID")(compare_command)
app.command("submit", help=SUBMIT_HELP)(submit_command)


@contextmanager
def open_model(name: str, base_url: str | None, key_variable: str | None) -> Iterator[Ask]:
    """A line to a language model for verbs that know no model. Raises ExpectedError at once for a missing key."""
    from scaffold.endpoint import ModelOptions
    from scaffold.model import Model

    options = ModelOptions(name=name, base_url=base_url, key_variable=key_variable, dialect="text", tries=5)
    with Model(options) as model:
        yield lambda messages: model.ask(messages).reply.text


app.command("mine", help=HELP)(mining_verb(open_model))


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
def doctor(ids: IdsArgument = None, suite: SuiteOption = None, as_json: JsonOption = False) -> None:
    """What this machine can do: Docker, GPU, git, disk, data sets, tokens; for tasks also what they need and lack."""
    from rtb import environment
    from rtb.console import show_table

    facts = environment.diagnose()
    if ids or suite is not None:
        facts += environment.diagnose_tasks(choose(suite, ids))
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
    show_run(finished.run.path)
    if finished.report.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)
    if finished.faulty_predictions and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)


def _evaluate_series(request: Request, files: list[str], steps: bool, skip_invalid: bool, as_json: bool) -> None:
    """Several attempts, or the steps of one."""
    from harness import series

    finished = series.evaluate_steps(request) if steps else series.evaluate_attempts(request, files)
    show_series(finished.series, finished.report, as_json)
    if finished.report.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)
    if finished.faulty_predictions and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)


@app.command(epilog="Example: rtb validate rtb__tinyserve-9 --sandbox local --runs 1")
def validate(
    ids: IdsArgument = None,
    suite: SuiteOption = None,
    sandbox: SandboxOption = None,
    stages: StagesOption = ALL_STAGES,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each control.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the raw files.")] = Path("validation"),
    gpu: Annotated[bool, typer.Option("--gpu", help="Run kernels compiled, each task on a leased GPU.")] = False,
    only_twin: Annotated[
        bool, typer.Option("--only-twin", help="Only record which tests notice gold made wrong; test ids stay.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run gold, base and sabotage on tasks; write their test ids and baselines, or say why a task is refused."""
    from harness.evaluate import named_stages
    from harness.validate_suite import record_twins, validate_tasks
    from rtb.console import say

    if only_twin:
        twins = record_twins(choose(suite, ids, need=True), sandbox=sandbox, out=out, say=say, gpu=gpu)
        if as_json:
            emit(
                [{"instance_id": name, "twin_noticed_by": list(item.twin_noticed_by)} for name, item in twins.items()]
            )
        return
    found = validate_tasks(
        choose(suite, ids, need=True), sandbox=sandbox, out=out, say=say, runs=runs, gpu=gpu,
        stages=named_stages(tuple(stages.split(","))),
    )  # fmt: skip
    if as_json:
        emit([{"instance_id": item.instance_id, "refused": list(item.refused)} for item in found])
    if any(item.refused for item in found):
        raise typer.Exit(EXIT_EXPECTED)


def _last_resort(error: Exception) -> int:
    """Say what nobody caught: a machine that has nothing left, or a fault of ours. The exit code."""
    from rtb.console import say

    fault = known_fault(error)
    if fault is not None:
        say(f"rtb: {type(fault).__name__}: {fault}")
        return EXIT_INCOMPLETE if isinstance(fault, MachineError) else EXIT_EXPECTED
    say("rtb: a fault of rtb itself; please report it with the lines below")
    say(traceback.format_exc())
    return EXIT_OURS


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
    except Exception as error:  # noqa: BLE001 - the last resort: a fault of ours, said as such, no bare traceback
        code = _last_resort(error)
    sys.exit(code if isinstance(code, int) else EXIT_DONE)


if __name__ == "__main__":
    main()
