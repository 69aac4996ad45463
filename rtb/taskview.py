"""A task for people: what it says, what is wrong with it, and the schemas of what reaches disk."""

from __future__ import annotations

from typing import Any

from rtb.errors import ExpectedError, InvalidFile
from rtb.hydration import patches_of
from rtb.prediction import Prediction
from rtb.result import Report, Verdict
from rtb.run import RunRecord
from rtb.submission import Manifest, Metadata
from rtb.suite import TaskEntry
from rtb.task import Frozen, Suite, Task, TestIds

SCHEMAS: dict[str, type[Frozen]] = {
    "task": Task,
    "tests": TestIds,
    "suite": Suite,
    "prediction": Prediction,
    "run": RunRecord,
    "verdict": Verdict,
    "report": Report,
    "metadata": Metadata,
    "manifest": Manifest,
}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a model. Raises ExpectedError on a name that is none."""
    if name not in SCHEMAS:
        raise ExpectedError(f"no schema {name!r}: there are {', '.join(SCHEMAS)}")
    return SCHEMAS[name].model_json_schema()


def describe(entry: TaskEntry) -> str:
    """A task on one page of text."""
    task = entry.task
    lines = [
        f"{task.instance_id}  ({entry.suite.name}, {task.category})",
        task.title,
        "",
        f"repository   {task.repo}, pull request {task.pull_number}",
        f"base         {task.base_commit}",
        f"landed       {task.merge_commit}",
        f"environment  {task.environment.dockerfile}"
        + (f", {task.environment.lock}" if task.environment.lock else ""),
        "targets",
        *(f"  {item.change:<9} {item.kind:<13} {item.path}::{item.name}{item.signature}" for item in task.targets),
    ]
    if task.unit is not None:
        lines += [f"unit         {task.unit.command}"]
    if entry.tests is not None:
        counts = f"{len(entry.tests.fail_to_pass)} fail to pass, {len(entry.tests.pass_to_pass)} pass to pass"
        lines += [f"tests        {counts}, {len(entry.tests.quarantined)} quarantined"]
    lines += [f"note         {note}" for note in task.provenance.notes]
    if entry.folder.problem_statement.is_file():
        lines += ["", entry.folder.problem_statement.read_text(encoding="utf-8").strip()]
    return "\n".join(lines)


def check(entry: TaskEntry) -> tuple[str, ...]:
    """What keeps a task from being run or graded. Empty when nothing does."""
    problems: list[str] = []
    for look in (_tests, _statement, _patches):
        try:
            problems.extend(look(entry))
        except (ExpectedError, InvalidFile) as error:
            problems.append(str(error))
    return tuple(problems)


def _tests(entry: TaskEntry) -> list[str]:
    if entry.task.unit is None:
        return []
    tests = entry.required_tests()
    if tests.instance_id != entry.instance_id:
        return [f"tests.json is of {tests.instance_id}"]
    stray = [node for node in tests.expected if not _in_files(node, entry.task.unit.files)]
    return [f"test id {stray[0]!r} is in none of unit.files"] if stray else []


def _in_files(node: str, files: tuple[str, ...]) -> bool:
    path = node.partition("::")[0]
    return path in files


def _statement(entry: TaskEntry) -> list[str]:
    path = entry.folder.problem_statement
    if not path.is_file() or not path.read_text(encoding="utf-8").strip():
        return [f"no {path.name}: a solver would not know what to do"]
    return []


def _patches(entry: TaskEntry) -> list[str]:
    patches = patches_of(entry)
    empty = [name for name, data in patches.as_mapping().items() if not data.strip()]
    return [f"the {name} patch is empty" for name in empty]
