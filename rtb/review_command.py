"""The verbs `rtb tasks review` and `rtb tasks export`."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtb.errors import ExpectedError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rtb.review import Review
    from rtb.suite import TaskEntry

Ids = Annotated[list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Instance ids.")]
SuiteOption = Annotated[str | None, typer.Option("--suite", help="A suite, or the path of a folder of drafts.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def review_command(
    ids: Ids = None,
    suite: SuiteOption = None,
    reviewer: Annotated[str | None, typer.Option(help="Who reviews; default: your user name.")] = None,
    scores: Annotated[
        str | None, typer.Option(help="Score without questions: intent,completeness,absence of leaks, e.g. 2,2,1.")
    ] = None,
    comment: Annotated[str, typer.Option(help="A remark, with --scores.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Walk through drafts and score each 0, 1 or 2; two reviewers decide.

    Example: rtb tasks review --suite mined/ --reviewer ada
    """
    from rtb.review import load_reviews, record, standing

    who = reviewer or os.environ.get("RTB_REVIEWER") or getpass.getuser()
    told: list[dict[str, Any]] = []
    for entry in _entries(suite, ids):
        known = load_reviews(entry)
        if ids is None and (
            standing(known.reviews) == "accepted" or who in {item.reviewer for item in known.reviews}
        ):
            continue
        review = _given(entry, who, scores, comment) if scores else _asked(entry, who)
        if review is None:
            continue
        now = record(entry, review)
        told.append({"instance_id": entry.instance_id, "reviewer": who, "standing": now})
        typer.echo(f"{entry.instance_id}: {now}", err=True)
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _entries(suite: str | None, ids: list[str] | None) -> tuple[TaskEntry, ...]:
    from rtb.suite import find_task, load_suite

    if suite is not None:
        return load_suite(suite).select(ids or [])
    if not ids:
        raise ExpectedError("name a TASK_ID or a --suite")
    return tuple(find_task(name) for name in ids)


def _given(entry: TaskEntry, who: str, scores: str, comment: str) -> Review:
    parts = [part.strip() for part in scores.split(",")]
    if len(parts) != 3 or any(part not in ("0", "1", "2") for part in parts):
        raise typer.BadParameter(f"{scores!r} is not three of 0, 1, 2, e.g. 2,2,1", param_hint="--scores")
    return _review(entry, who, [int(part) for part in parts], comment)


def _review(entry: TaskEntry, who: str, scores: list[int], comment: str) -> Review:
    from rtb.review import CRITERIA, Review

    statement = entry.folder.problem_statement
    text = statement.read_bytes() if statement.is_file() else b""
    named = dict(zip(CRITERIA, scores, strict=True))
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(text).hexdigest()
    return Review.model_validate({"reviewer": who, **named, "comment": comment, "at": when, "task_digest": digest})


def _asked(entry: TaskEntry, who: str) -> Review | None:
    """Show a task and ask; None when it is skipped."""
    _show(entry)
    questions = (
        "Intent: does it say what the change is for?",
        "Completeness: can all that the tests ask for be known from it?",
        "Absence of leaks: does it keep the solution to itself?",
    )
    scores = []
    for question in questions:
        answer = typer.prompt(f"{question} 0 no, 1 partly, 2 yes, s skip", err=True).strip().lower()
        while answer not in ("0", "1", "2", "s"):
            answer = typer.prompt("0, 1, 2 or s", err=True).strip().lower()
        if answer == "s":
            return None
        scores.append(int(answer))
    comment = typer.prompt("Remark", default="", show_default=False, err=True)
    return _review(entry, who, scores, comment)


def _show(entry: TaskEntry) -> None:
    """Description and targets on the left, the diff and the tests on the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{entry.instance_id}  {entry.task.category}", expand=True, show_lines=True)
    table.add_column("description, targets, tests", ratio=1, overflow="fold")
    table.add_column("gold diff, then test diff", ratio=1, overflow="fold")
    table.add_row(_left(entry), _right(entry))
    console = Console(stderr=True)
    with console.pager(styles=True) if sys.stderr.isatty() else _nothing():
        console.print(table)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _left(entry: TaskEntry) -> RenderableType:
    from rich.text import Text

    from rtb.console import printable
    from rtb.draft import leaks

    task = entry.task
    statement = entry.folder.problem_statement
    text = statement.read_text(encoding="utf-8", errors="replace") if statement.is_file() else "(no description)"
    lines = [text.strip(), "", "targets:"]
    lines += [f"  {item.change} {item.kind} {item.path}:{item.name}{item.signature}" for item in task.targets]
    lines += ["", f"tests: {task.unit.command if task.unit else 'none'}"]
    lines += ["", *(f"evidence: {line}" for line in task.provenance.evidence)]
    lines += [f"note: {line}" for line in task.provenance.notes]
    gold = entry.folder.gold_patch
    if gold.is_file():
        lines += [f"LEAK: {line}" for line in leaks(text, gold.read_bytes())]
    return Text(printable("\n".join(lines)))


def _right(entry: TaskEntry) -> RenderableType:
    from rich.console import Group
    from rich.syntax import Syntax

    from rtb.console import printable
    from rtb.hydration import patches_of

    patches = patches_of(entry)
    halves = [printable(data.decode("utf-8", "replace")) for data in (patches.gold, patches.test)]
    return Group(*(Syntax(text, "diff", word_wrap=True) for text in halves if text))


def export_command(
    ids: Ids = None,
    suite: SuiteOption = None,
    to: Annotated[str, typer.Option(help="jsonl, parquet, disk or hub.")] = "jsonl",
    out: Annotated[Path, typer.Option(help="File (jsonl, parquet) or folder (disk).")] = Path("tasks.jsonl"),
    name: Annotated[str | None, typer.Option(help="OWNER/NAME of the data set, with --to hub.")] = None,
    public: Annotated[bool, typer.Option("--public", help="With --to hub: readable by anybody.")] = False,
) -> None:
    """Write tasks in SWE-bench's fields, for JSONL readers or as a Hugging Face data set.

    Example: rtb tasks export --suite demo --out demo.jsonl
    """
    from rtb.dataset import push_rows, save_rows
    from rtb.swebench import to_row

    rows = [to_row(bundle_of(entry)) for entry in _entries(suite, ids)]
    if to == "hub":
        if name is None:
            raise ExpectedError("--to hub needs --name OWNER/NAME")
        push_rows(rows, name, private=not public)
        typer.echo(f"{len(rows)} tasks pushed to {name}", err=True)
        return
    save_rows(rows, out, to)
    typer.echo(f"{len(rows)} tasks written to {out}", err=True)


def import_command(
    source: Annotated[Path, typer.Argument(help="What 'rtb tasks export' wrote: a file or a folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the suite to write.")],
    hub: Annotated[bool, typer.Option("--hub", help="SOURCE is the OWNER/NAME of a data set on the hub.")] = False,
) -> None:
    """Turn exported rows back into a suite, without loss.

    Example: rtb tasks import demo.jsonl --out demo-again
    """
    from rtb.dataset import load_rows, pull_rows
    from rtb.swebench import from_row

    rows = pull_rows(source.as_posix()) if hub else load_rows(source)
    bundles = [from_row(row, f"{source}, row {number}") for number, row in enumerate(rows, 1)]
    write_bundles(bundles, out)
    typer.echo(f"{len(bundles)} tasks written to {out}", err=True)


def bundle_of(entry: TaskEntry) -> Any:
    """A task with everything beside it. Raises ExpectedError when it is not hydrated."""
    from rtb.hydration import patches_of
    from rtb.swebench import Bundle

    patches = patches_of(entry)
    statement = entry.folder.problem_statement
    text = statement.read_bytes().decode("utf-8", "replace") if statement.is_file() else ""
    return Bundle(entry.task, entry.tests, text, patches.gold, patches.test)


def write_bundles(bundles: list[Any], out: Path) -> None:
    """A suite folder from bundles."""
    import re

    from rtb.storage import write_atomic, write_model
    from rtb.task import Suite, TaskFolder

    name = re.sub(r"[^a-z0-9]+", "-", out.resolve().name.lower()).strip("-") or "imported"
    write_model(out / "suite.json", Suite(name=name, title="Imported tasks"))
    for bundle in bundles:
        folder = TaskFolder(out / bundle.task.instance_id)
        write_atomic(folder.gold_patch, bundle.gold)
        write_atomic(folder.test_patch, bundle.test)
        write_atomic(folder.problem_statement, bundle.statement.encode())
        if bundle.tests is not None:
            write_model(folder.tests_json, bundle.tests)
        write_model(folder.task_json, bundle.task)
