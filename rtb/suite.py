"""Suites on disk: finding, reading and checking tasks, with errors that name file, field and line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rtb.errors import ExpectedError, InvalidFile
from rtb.task import Source, SplitRules, Suite, Task, TaskFolder, TestIds

Model = TypeVar("Model", bound=BaseModel)

DEFAULT_SPLIT = SplitRules(
    tests=(
        "**/tests/**",
        "**/test/**",
        "**/unit_tests/**",
        "**/testing/**",
        "**/test_*.py",
        "**/*_test.py",
        "**/conftest.py",
    )
)


@dataclass(frozen=True)
class TaskEntry:
    """A task as it stands in a suite folder, with what belongs to it."""

    task: Task
    folder: TaskFolder
    suite: Suite
    suite_path: Path

    @property
    def instance_id(self) -> str:
        return self.task.instance_id

    @property
    def source(self) -> Source:
        """Where its commits come from; a repository without an entry comes from GitHub."""
        return self.suite.sources.get(self.task.repo) or Source(url=f"https://github.com/{self.task.repo}.git")

    @property
    def split_rules(self) -> SplitRules:
        return self.suite.split.get(self.task.repo, DEFAULT_SPLIT)

    @cached_property
    def tests(self) -> TestIds | None:
        """tests.json, or None when the task has not been validated. Raises InvalidFile."""
        path = self.folder.tests_json
        return read_model(path, TestIds) if path.exists() else None

    def required_tests(self) -> TestIds:
        """tests.json. Raises ExpectedError with the way out when it is not there."""
        if self.tests is None:
            raise ExpectedError(
                f"{self.instance_id}: no {self.folder.tests_json.name} in {self.folder.path}; "
                f"run 'rtb validate {self.instance_id}' to find its test ids"
            )
        return self.tests


@dataclass(frozen=True)
class LoadedSuite:
    """A suite with its tasks, ordered by repository and pull request."""

    suite: Suite
    path: Path
    entries: tuple[TaskEntry, ...]

    def select(self, ids: Iterable[str]) -> tuple[TaskEntry, ...]:
        """The named tasks, in the suite's order; all when none is named. Raises ExpectedError on an unknown id."""
        wanted = list(ids)
        known = {entry.instance_id for entry in self.entries}
        if unknown := [name for name in wanted if name not in known]:
            raise ExpectedError(
                f"suite {self.suite.name} has no task {unknown[0]!r}; "
                f"'rtb tasks list --suite {self.suite.name}' shows what it has"
            )
        return tuple(entry for entry in self.entries if not wanted or entry.instance_id in wanted)


def read_json(path: Path) -> object:
    """The JSON document in a file. Raises InvalidFile naming the line and column of a syntax error."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file") from None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InvalidFile(f"{path}:{error.lineno}:{error.colno}: not valid JSON ({error.msg})") from error


def read_model(path: Path, kind: type[Model]) -> Model:
    """A strict model from a file. Raises InvalidFile naming the file, each wrong field and its line."""
    # The quick way reads bytes; only what it refuses is read again to say where and why.
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        document = read_json(path)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        text = path.read_text(encoding="utf-8-sig")
        raise InvalidFile("\n".join(_problem(path, text, detail) for detail in error.errors())) from error


def _problem(path: Path, text: str, detail: object) -> str:
    assert isinstance(detail, dict)
    location = [str(part) for part in detail["loc"]]
    line = _line_of(text, location)
    field = ".".join(location) or "(whole file)"
    return f"{path}{f':{line}' if line else ''}: field {field}: {detail['msg']}"


def _line_of(text: str, location: list[str]) -> int | None:
    """The line where a field's key stands: the keys of its path are looked for one after the other."""
    position = 0
    found = False
    for part in location:
        if part.isdigit():
            continue
        place = text.find(f'"{part}"', position)
        if place < 0:
            break
        position, found = place, True
    return text.count("\n", 0, position) + 1 if found else None


def suites_root() -> Path:
    """The folder of suites: `RTB_TASKS`, else `tasks/` here or in a parent, else the one beside the package."""
    named = os.environ.get("RTB_TASKS")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / "tasks").glob("*/suite.json")):
            return folder / "tasks"
    return Path(__file__).resolve().parent.parent / "tasks"


def suite_names(root: Path | None = None) -> tuple[str, ...]:
    """Every folder that holds a suite.json."""
    root = root or suites_root()
    return tuple(sorted(path.parent.name for path in root.glob("*/suite.json")))


def load_suite(name: str, root: Path | None = None) -> LoadedSuite:
    """A suite by name, or by the path of its folder. Raises InvalidFile / ExpectedError with every problem found."""
    root = root or suites_root()
    path = Path(name) if os.sep in name else root / name
    if not (path / "suite.json").is_file():
        raise ExpectedError(f"no suite {name!r} in {root}: there are {', '.join(suite_names(root)) or 'none'}")
    suite = read_model(path / "suite.json", Suite)
    entries: list[TaskEntry] = []
    problems: list[str] = []
    for folder in sorted(item.parent for item in path.glob("*/task.json")):
        try:
            entries.append(load_task(folder, suite, path))
        except InvalidFile as error:
            problems.append(str(error))
    if problems:
        raise InvalidFile("\n".join(problems))
    entries.sort(key=lambda entry: (entry.task.repo, entry.task.pull_number, entry.instance_id))
    return LoadedSuite(suite=suite, path=path, entries=tuple(entries))


def load_task(folder: Path, suite: Suite, suite_path: Path) -> TaskEntry:
    """One task of a suite. Raises InvalidFile, also when the folder's name is not the instance id."""
    files = TaskFolder(folder)
    task = read_model(files.task_json, Task)
    if task.instance_id != folder.name:
        raise InvalidFile(f"{files.task_json}: instance_id {task.instance_id!r} is not its folder's name")
    return TaskEntry(task=task, folder=files, suite=suite, suite_path=suite_path)


def find_task(instance_id: str, root: Path | None = None) -> TaskEntry:
    """A task by id in any suite. Raises ExpectedError when none, or more than one, has it."""
    root = root or suites_root()
    homes = sorted(path.parent for path in root.glob(f"*/{instance_id}/task.json"))
    if not homes:
        raise ExpectedError(f"no task {instance_id!r} in {root}; 'rtb tasks list' shows what there is")
    if len(homes) > 1:
        names = ", ".join(home.parent.name for home in homes)
        raise ExpectedError(f"task {instance_id!r} is in several suites ({names}): name one with --suite")
    suite_path = homes[0].parent
    return load_task(homes[0], read_model(suite_path / "suite.json", Suite), suite_path)
