"""Series: several runs over the same tasks read together: the attempts at them, or the steps of one attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rtb.report_folder import ReportFolder
from rtb.result import Outcome
from rtb.run import Run, RunId
from rtb.suite import read_model
from rtb.task import SCHEMA_VERSION, Category, Frozen


class StepPoint(Frozen):
    """The answer after one step, and the run of the series that graded it. Equal answers share one grade."""

    step: int = Field(ge=1)
    run: str
    seconds: float | None = Field(default=None, description="wall time of the attempt until then")
    tokens: int | None = None
    cost_usd: float | None = None


class SeriesRecord(Frozen):
    """series.json: written first. Which runs belong together, and for steps, which step each of them graded."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["attempts", "steps"]
    run_id: RunId
    suite: str
    predictions: tuple[str, ...] = Field(description="files as named")
    runs: tuple[str, ...] = Field(description="folders in the series' folder, each a run of its own")
    categories: dict[str, Category]
    points: dict[str, tuple[StepPoint, ...]] = Field(default={}, description="steps only: by instance id, in order")
    unfinished: dict[str, str] = Field(default={}, description="lines that are no answer: why not")


class GradedStep(Frozen):
    """A step with what its answer came to. `passed` of `expected` unit tests, null where there is no result."""

    step: int
    outcome: Outcome
    passed: int | None
    expected: int | None
    reason: str
    run: str
    seconds: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class TaskSteps(Frozen):
    """One task: each step that changed its tree. `resolved_at` is the first that resolves it, null when none does."""

    instance_id: str
    category: Category
    steps: tuple[GradedStep, ...]
    resolved_at: int | None
    resolved_at_end: bool


class CurvePoint(Frozen):
    """All tasks after so many steps. `resolved` with the answer of that moment, `ever` at that step or before."""

    step: int = Field(ge=0)
    resolved: int
    ever: int
    unknown: int = Field(description="tasks whose answer of that moment has no grade")
    unit: float | None = Field(description="mean share of expected unit tests that pass, over all graded tasks")


class StepsReport(Frozen):
    """report.json of a series of steps: score against step. Every denominator is the number of tasks."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    suite: str
    tasks: int
    curve: tuple[CurvePoint, ...]
    by_task: tuple[TaskSteps, ...]
    incomplete: bool
    notes: tuple[str, ...] = ()


class Series(ReportFolder):
    """The folder of a series; every file name is a property here and nowhere else."""

    @property
    def record(self) -> Path:
        return self.path / "series.json"

    def answers(self, name: str) -> Path:
        """The predictions that a run of a series of steps grades."""
        return self.path / f"{name}.jsonl"

    def run(self, name: str) -> Run:
        return Run(self.path / name)

    def read_record(self) -> SeriesRecord:
        return read_model(self.record, SeriesRecord)

    def runs(self) -> list[Run]:
        """Its runs that were begun, in order."""
        found = [self.run(name) for name in self.read_record().runs]
        return [run for run in found if run.record.is_file()]


def find_series(name: str, root: Path = Path("runs")) -> Series | None:
    """A series by path or by id under `runs/`, or None when that is none."""
    found = (Series(path) for path in (Path(name), root / name))
    return next((series for series in found if series.record.is_file()), None)
