"""What the model is told: templates under prompts/, filled with a task's facts. No model is needed for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtb import checkout
from rtb.errors import ExpectedError
from rtb.suite import TaskEntry
from scaffold.budget import Budget
from scaffold.dialect import Malformed
from scaffold.endpoint import Dialect
from scaffold.observation import MARKER

if TYPE_CHECKING:
    from jinja2 import Environment

KINDS = {"triton_kernel": "Triton kernel", "launcher": "launches a Triton kernel", "host": "host code"}
JUDGED = {
    "unit": "Correctness: unit tests of the change that you do not see, and those that passed before.",
    "accuracy": "Accuracy: the framework serves a language model with your code and answers grade-school mathematics "
    "questions; the score must not fall.",
    "latency": "Latency: time to the first token and time per token of that server, beside the merged change.",
}


@dataclass(frozen=True)
class Prompt:
    """The first two messages of a conversation. `task` is the part of `instance` that says what is wanted."""

    system: str
    instance: str
    task: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.system}\0{self.instance}".encode()).hexdigest()


class Templates:
    """The prompt files: the shipped ones, or a folder of the user's with files of the same names."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def render(self, name: str, **values: Any) -> str:
        """A template filled in. Raises ExpectedError naming file and fault: nothing is paid for a broken prompt."""
        import jinja2

        try:
            return _environment(self._folder).get_template(f"{name}.md.jinja").render(**values).strip() + "\n"
        except jinja2.TemplateNotFound:
            raise ExpectedError(f"--prompts {self._folder}: there is no {name}.md.jinja in it") from None
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ExpectedError(f"prompt {name}.md.jinja{f':{line}' if line else ''}: {error}") from error

    def prompt(self, facts: Facts, dialect: Dialect, budget: Budget, tree: str) -> Prompt:
        """The conversation's start for a task."""
        task = self.render("task", **facts.values, tree=tree)
        instance = self.render(
            "instance", task=task, tree=tree, dialect=dialect, marker=MARKER,
            command_seconds=f"{budget.command_seconds:g}", limits=_limits(budget),
        )  # fmt: skip
        return Prompt(self.render(f"system_{dialect}"), instance, task)

    def format_error(self, fault: Malformed, dialect: Dialect) -> str:
        return self.render("format_error", reason=fault.reason, dialect=dialect, marker=MARKER).strip()


@cache
def _environment(folder: Path | None) -> Environment:
    import jinja2

    if folder is not None:
        loader: jinja2.BaseLoader = jinja2.FileSystemLoader(folder)
    else:
        loader = jinja2.FunctionLoader(_shipped)
    # Texts of a task are values, never templates: what stands in them is not run.
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False)


def _shipped(name: str) -> str | None:
    path = resources.files("scaffold").joinpath("prompts", name)
    return path.read_text(encoding="utf-8") if path.is_file() else None


@dataclass(frozen=True)
class Facts:
    """What a prompt may say about a task: nothing that was landed beyond names and signatures."""

    values: dict[str, Any]


def facts_of(entry: TaskEntry, *, with_context: bool = True) -> Facts:
    """The facts of a task. `with_context` false leaves the context references out (the paper's ablation).

    Raises ExpectedError when the task has no problem statement or its commits cannot be had.
    """
    task = entry.task
    path = entry.folder.problem_statement
    if not path.is_file():
        raise ExpectedError(f"{entry.instance_id}: no {path.name} in {path.parent}; an agent needs one")
    statement = path.read_text(encoding="utf-8").strip()
    files = _files_at_base(entry, task.unit.files) if task.unit else ()
    return Facts(
        {
            "title": task.title,
            "repo": task.repo,
            "statement": _without_title(statement, task.title),
            "category": task.category,
            "targets": [{**item.model_dump(), "what": KINDS[item.kind]} for item in task.targets],
            "targets_are_triton": any(item.kind != "host" for item in task.targets),
            "context": [item.model_dump(mode="json") for item in task.context] if with_context else [],
            "test_files": list(files),
            "test_command": f"python -m pytest {' '.join(files)}",
            "judged": [JUDGED[name] for name in task.stages],
            "gpu_count": task.environment.gpu.count,
        }
    )


def _without_title(statement: str, title: str) -> str:
    """The statement without a first heading that only repeats the title."""
    first, _, rest = statement.partition("\n")
    return rest.strip() if first.lstrip("# ").strip() == title.strip() else statement


def _files_at_base(entry: TaskEntry, files: Sequence[str]) -> tuple[str, ...]:
    """Those of the test files that are in the tree the agent gets."""
    git_dir = checkout.obtain(entry)
    arguments = ["ls-tree", "-r", "-z", "--full-tree", "--name-only", entry.task.base_commit]
    listed = checkout.run_git(arguments, repository=git_dir).stdout.split(b"\0")
    there = {name.decode("utf-8", "surrogateescape") for name in listed}
    return tuple(name for name in files if name in there)


def _limits(budget: Budget) -> list[str]:
    """The limits worth telling a model."""
    told = []
    if budget.steps is not None:
        told.append(f"{budget.steps} turns")
    if budget.wall_seconds is not None:
        told.append(f"{budget.wall_seconds / 60:.0f} minutes")
    return told
