"""Submission: a run as a folder that anybody can grade again, with what the run cannot know of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from rtb.result import Outcome, Report
from rtb.run import Run, RunRecord
from rtb.task import SCHEMA_VERSION, Category, Frozen

# One line of text that a page may show: no control characters, nothing endless.
Line = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Link = Annotated[str, StringConstraints(max_length=500, pattern=r"^https?://[^\s<>\"'`\\\x00-\x1f\x7f]+$")]


class ModelFacts(Frozen):
    """Which model. `name_or_path` is the name in the predictions; `name` is what a table shows."""

    name: Name
    name_or_path: Name
    organisation: Line = ""
    open_weights: bool
    released: date | None = Field(default=None, description="when the model was released")


class ScaffoldFacts(Frozen):
    """What stood between model and repository; `name` is "none" for patches written without an agent."""

    name: Name
    version: Line = ""


class AttemptFacts(Frozen):
    """How many attempts were made at each task, and how the one that was submitted was chosen.

    `agent`: by the scaffold itself, without the held-out tests. A choice by the held-out tests is no submission.
    """

    count: int = Field(ge=1, description="attempts at each task")
    chosen: Literal["only", "first", "agent"]


class HardwareFacts(Frozen):
    """What the stages ran on; must be what the run recorded. Memory in bytes."""

    device_class: Name
    gpus: tuple[Name, ...] = ()
    processor: Line = ""
    sandbox: Literal["docker", "local"]


class CostFacts(Frozen):
    """What the predictions cost; null where it is not known."""

    total_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)


class Metadata(Frozen):
    """metadata.json: what the run cannot know of itself. Asked for, or given by file."""

    schema_version: Literal[1] = SCHEMA_VERSION
    model: ModelFacts
    scaffold: ScaffoldFacts
    attempts: AttemptFacts
    hardware: HardwareFacts
    cost: CostFacts = CostFacts()
    links: tuple[Link, ...] = ()
    contact: Name = Field(description="an address for questions: mail or a page; shown to everybody")
    date: date
    example: bool = Field(default=False, description="shown, marked, never ranked; a control is always an example")
    harmless: tuple[Line, ...] = Field(
        default=(), description="FILE:LINE of what looks like a secret and is none; shown by the check"
    )

    @field_validator("links")
    @classmethod
    def _few_links(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 10:
            raise ValueError("at most ten links")
        return value


class FileFacts(Frozen):
    """One file of a submission."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    bytes: int = Field(ge=0)


class Manifest(Frozen):
    """MANIFEST.json: every file of the submission but itself and its signature, by path."""

    schema_version: Literal[1] = SCHEMA_VERSION
    files: dict[str, FileFacts]


class SubmissionFolder:
    """The folder of a submission; every file name is a property here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def metadata(self) -> Path:
        return self.path / "metadata.json"

    @property
    def predictions(self) -> Path:
        return self.path / "all_preds.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def manifest(self) -> Path:
        return self.path / "MANIFEST.json"

    @property
    def signature(self) -> Path:
        return self.path / "MANIFEST.sig"

    @property
    def run(self) -> Run:
        """run.json and a folder a task, as `rtb evaluate` left them, without the reports."""
        return Run(self.path / "run")

    @property
    def trajectories(self) -> Path:
        """A folder a task, in it a folder an attempt."""
        return self.path / "trajectories"

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file (and symbolic link, which is never followed) with its path in the folder, in order."""
        found = []
        for root, folders, names in os.walk(self.path, followlinks=False):
            home = Path(root)
            links = [name for name in folders if (home / name).is_symlink()]
            found += [home / name for name in (*names, *links)]
        yield from sorted((path.relative_to(self.path).as_posix(), path) for path in found)

    def sealed_files(self) -> Iterator[tuple[str, Path]]:
        """The files that the manifest lists."""
        outside = (self.manifest.name, self.signature.name)
        return ((name, path) for name, path in self.files() if name not in outside)


FaultKind = Literal[
    "layout", "digest", "signature", "secret", "metadata", "version", "suite", "task", "prediction", "raw", "verdict",
    "report", "attempts", "hardware", "trajectory", "incomplete",
]  # fmt: skip


class Fault(Frozen):
    """One reason to refuse a submission. `file` is a path in the folder."""

    file: str
    kind: FaultKind
    message: str
    line: int | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Evidence(Frozen):
    """One finding in a trajectory, for a person to judge."""

    instance_id: str
    file: str
    step: int
    kind: str
    what: str
    text: str


class TrajectoryAudit(Frozen):
    """What was looked at, what was found, and which files could not be read (file, why)."""

    trajectories: int = 0
    commands: int = 0
    findings: tuple[Evidence, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    patches: dict[str, tuple[str, ...]] = Field(default={}, description="sha256 of each attempt's patch, by task")


class TaskScore(Frozen):
    """One task of a checked submission, as pages show it. Ratios are gold / model."""

    instance_id: str
    title: str
    category: Category
    outcome: Outcome
    reason: str
    passed: int | None = None
    expected: int | None = None
    s_ttft: float | None = None
    s_tpot: float | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    tokens: int | None = None


class Checked(Frozen):
    """What a check found: reasons to refuse, remarks, and (when nothing is refused) the recomputed numbers."""

    folder: str
    digest: str = Field(default="", description="sha256 of MANIFEST.json")
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    metadata: Metadata | None = None
    run: RunRecord | None = None
    report: Report | None = None
    tasks: tuple[TaskScore, ...] = ()
    audit: TrajectoryAudit = TrajectoryAudit()
    signer: str | None = Field(default=None, description="fingerprint of the key, and its name where it is known")

    @property
    def accepted(self) -> bool:
        return not self.faults
