"""Run: one evaluation on disk. Written before it starts, resumable, and enough to grade again from alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rtb.errors import ExpectedError, StoredRunBroken
from rtb.prediction import Problem
from rtb.report_folder import ReportFolder
from rtb.result import Attempt, AuditFinding, PatchFactsApplied, ResumeKey, Verdict
from rtb.storage import write_atomic
from rtb.suite import read_model
from rtb.task import SCHEMA_VERSION, Category, Frozen, StageName, Task, TestIds

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Machine(Frozen):
    """What the numbers were measured on. Sizes in bytes."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    driver: str | None = None


class RunRecord(Frozen):
    """run.json: written first. Says what was asked for, with which versions and where."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: RunId
    created_at: str = Field(description="UTC, ISO 8601")
    rtb_version: str
    suite: str
    suite_digest: str = Field(description="sha256 over the digests of the selected tasks")
    categories: dict[str, Category] = Field(description="the selected tasks, the denominator, by instance id")
    whole_suite: bool = Field(description="false when a selection was made with -i")
    stages: tuple[StageName, ...]
    profile: Literal["robust", "paper"]
    sandbox: Literal["docker", "local"]
    isolation: tuple[str, ...] = Field(default=(), description="what the sandbox does not isolate here")
    predictions: str = Field(description="the file as named, or the control")
    predictions_sha256: str
    problems: tuple[Problem, ...] = ()
    unfinished: dict[str, str] = Field(default={}, description="lines that are no answer, by instance id: why not")
    model_names: tuple[str, ...]
    machine: Machine
    versions: dict[str, str]
    workers: int = Field(ge=1)
    devices: tuple[str, ...] = Field(default=(), description="ids of the GPUs that tasks may lease; none: CPU")

    @property
    def device_class(self) -> str:
        """What a result is comparable within: the GPU's name, or cpu."""
        return self.machine.gpus[0] if self.devices and self.machine.gpus else "cpu"

    @property
    def instance_ids(self) -> tuple[str, ...]:
        return tuple(self.categories)

    @property
    def has_unit(self) -> bool:
        """Whether unit is a stage of the run: without it nothing is said about tests."""
        return "unit" in self.stages


class TwinPlan(Frozen):
    """What of a prediction was made wrong for its sabotage twin, as path::name, and what could not be, and why."""

    sabotaged: tuple[str, ...]
    impossible: dict[str, str] = {}


class TaskRecord(Frozen):
    """record.json of one task: all that a grade needs beside the raw files of its stages. Written before the stages.

    `task` and `tests` are the very data that decided, so that a stored run needs no suite to be graded again.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    task: Task
    tests: TestIds | None
    model_name_or_path: str
    patch: PatchFactsApplied
    audit: tuple[AuditFinding, ...] = ()
    key: ResumeKey
    twin: TwinPlan | None = Field(default=None, description="null: the unit stage was run without a twin")
    stages: tuple[StageName, ...] = Field(description="the stages that were asked for and that the task has")
    cost_usd: float | None = None
    tokens: int | None = None


class StageTimes(Frozen):
    """times.json: wall seconds of the parts of one evaluation; finished_stages.json: those of one under way.

    Shown, never graded."""

    total_seconds: float
    stage_seconds: dict[StageName, float]


class AttemptLog(Frozen):
    """attempts.json: tries that a machine fault ended. `final` when no more tries were left."""

    schema_version: Literal[1] = SCHEMA_VERSION
    attempts: tuple[Attempt, ...]
    final: bool


class TaskRun:
    """The folder of one task in a run; every file name is a property here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def instance_id(self) -> str:
        return self.path.name

    @property
    def patch_diff(self) -> Path:
        return self.path / "patch.diff"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts.json"

    @property
    def times(self) -> Path:
        return self.path / "times.json"

    @property
    def finished_stages(self) -> Path:
        """Stages that came to their end in an evaluation that has not: what an interrupted one need not run again."""
        return self.path / "finished_stages.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def fault(self) -> Path:
        """A traceback, when rtb itself was at fault."""
        return self.path / "fault.txt"

    def stage(self, name: StageName) -> Path:
        """The folder of a stage's raw files."""
        return self.path / name

    def failed_attempt(self, number: int) -> Path:
        """Where the raw files of a try that a machine fault ended are kept."""
        return self.path / f"attempt-{number}"


class Run(ReportFolder):
    """A run folder; every file name is a property here and nowhere else."""

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.jsonl"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    def task(self, instance_id: str) -> TaskRun:
        return TaskRun(self.path / instance_id)

    def read_record(self) -> RunRecord:
        """run.json. Raises ExpectedError when this is no run folder, InvalidFile when it is broken."""
        if not self.record.is_file():
            raise ExpectedError(f"{self.path} is no run: it has no {self.record.name}")
        return read_model(self.record, RunRecord)

    def read_verdict(self, instance_id: str) -> Verdict | None:
        """The stored verdict of a task, or None when it has none yet."""
        path = self.task(instance_id).verdict
        return read_model(path, Verdict) if path.is_file() else None

    def read_task_record(self, instance_id: str) -> TaskRecord | None:
        path = self.task(instance_id).record
        return read_model(path, TaskRecord) if path.is_file() else None

    def read_attempts(self, instance_id: str) -> AttemptLog | None:
        path = self.task(instance_id).attempts
        return read_model(path, AttemptLog) if path.is_file() else None

    def write_page(self, text: str) -> None:
        """report.html."""
        write_atomic(self.report_html, text.encode())


def find_run(name: str, root: Path = Path("runs")) -> Run:
    """A run by path or by id under `runs/`. Raises ExpectedError when there is none."""
    for path in (Path(name), root / name):
        if (path / "run.json").is_file():
            return Run(path)
    known = ", ".join(sorted(path.parent.name for path in root.glob("*/run.json"))) or "none"
    raise ExpectedError(f"no run {name!r}: neither a folder with run.json nor an id under {root}/ (there: {known})")


def check_run_id(name: str) -> str:
    """The id, when it can name a folder. Raises ExpectedError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ExpectedError(
            f"--run-id {name!r}: use letters, digits, '.', '_' and '-' (at most 100), not starting with '.'"
        )
    return name


def broken(path: Path, what: str) -> StoredRunBroken:
    """The error for a stored run that cannot be graded."""
    return StoredRunBroken(
        f"{path}: {what}; the run cannot be graded from it: run 'rtb evaluate' with its --run-id again"
    )
