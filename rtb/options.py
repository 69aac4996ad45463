"""Options that several verbs share, spelt once; and the one JSON document of a verb."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtb.errors import ExpectedError

if TYPE_CHECKING:
    from rtb.suite import TaskEntry

EXIT_DONE, EXIT_EXPECTED, EXIT_USAGE, EXIT_OURS, EXIT_INCOMPLETE, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130

SuiteOption = Annotated[str | None, typer.Option("--suite", help="A suite: a folder under tasks/, or its path.")]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Exit with 0 although lines are bad.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Instance ids.")]
SandboxOption = Annotated[
    str | None, typer.Option("--sandbox", help="docker or local; default: docker where it answers.")
]
StagesOption = Annotated[str, typer.Option(help="Comma-separated; a task runs those it has.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="Plain lines instead of live progress.")]
WorkersOption = Annotated[int, typer.Option(min=1, help="Tasks at a time.")]
CloneOption = Annotated[Path | None, typer.Option(help="A clone that has the commits; else they are fetched.")]


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
