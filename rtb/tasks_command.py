"""The verbs about tasks and predictions on disk: `rtb tasks …`, `rtb predictions …`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rtb.options import (
    EXIT_EXPECTED,
    CloneOption,
    IdsArgument,
    JsonOption,
    SkipInvalidOption,
    SuiteOption,
    choose,
    emit,
)

tasks_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at tasks, check and hydrate them.")
predictions_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at predictions files.")


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


@tasks_app.command("show", epilog="Example: rtb tasks show rtb__tinyserve-9")
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
    what: Annotated[
        str, typer.Argument(help="task, tests, suite, prediction, run, verdict, report, metadata or manifest.")
    ] = "task",
) -> None:
    """Print the JSON Schema of what reaches disk."""
    from rtb.taskview import schema

    emit(schema(what))


@tasks_app.command(
    "hydrate", epilog="Example: rtb tasks hydrate vllm-project__vllm-7386 --suite real-cpu --clone ../vllm"
)
def tasks_hydrate(
    ids: IdsArgument = None,
    suite: SuiteOption = None,
    clone: CloneOption = None,
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
    missing = sorted(known - set(found.ids) - set(found.unfinished)) if known else []
    if as_json:
        problems = [item.model_dump(mode="json") for item in found.problems]
        emit({"file": str(file), "form": found.form, "usable": list(found.ids), "empty_patch": sorted(found.empty),
              "unfinished": found.unfinished, "not_submitted": missing, "problems": problems})  # fmt: skip
    else:
        for item in found.problems:
            say(f"{file}:{item.place}: {'warning' if item.is_warning else 'error'}: {item.message}")
        for name, why in found.unfinished.items():
            say(f"{file}: {name}: {why}")
        for name in missing:
            say(f"{file}: no prediction for {name}")
        say(f"{len(found.ids)} usable ({len(found.empty)} with an empty patch), {len(found.errors)} not")
    if found.errors and not skip_invalid:
        raise typer.Exit(EXIT_EXPECTED)
