"""StageResult, Verdict, Report: what an evaluation says, with the raw facts it follows from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rtb.task import CATEGORIES, SCHEMA_VERSION, Category, Frozen, StageName

Status = Literal["passed", "failed", "error", "skipped", "inconclusive"]
Outcome = Literal[
    "resolved",
    "unresolved",
    "empty_patch",
    "apply_failed",
    "tampered",
    "inconclusive",
    "error",
    "not_submitted",
]
OUTCOMES: tuple[Outcome, ...] = (
    "resolved", "unresolved", "empty_patch", "apply_failed", "tampered", "inconclusive", "error", "not_submitted",
)  # fmt: skip
TestStatus = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "MISSING"]
Fraction = Annotated[float, Field(ge=0, le=1)]


class UnitFacts(Frozen):
    """Unit stage, by test id. `passed` and `expected` count ids of tests.json; UTP = passed / expected.

    `not_passed` names each expected id that did not pass, with its status and one line of message; `extra` counts
    statuses of collected ids that are not expected (new tests, or tests gold does not pass).
    """

    expected: int = Field(ge=0)
    passed: int = Field(ge=0)
    fail_to_pass: tuple[int, int] = Field(description="passed, expected")
    pass_to_pass: tuple[int, int] = Field(description="passed, expected")
    not_passed: dict[str, tuple[TestStatus, str]] = {}
    extra: dict[TestStatus, int] = {}
    exit_code: int | None = None
    timed_out: bool = False

    @property
    def utp(self) -> float | None:
        """Share of gold-passed ids that passed; None when nothing is expected."""
        return self.passed / self.expected if self.expected else None


class StageResult(Frozen):
    """How one stage ended. `reason` is one sentence a stranger understands; `tampered` overrides the status."""

    stage: StageName
    status: Status
    reason: str
    seconds: float | None = Field(default=None, ge=0, description="wall time of the stage's own command")
    tampered: str | None = Field(default=None, description="why the evidence cannot be trusted, or null")
    flags: tuple[str, ...] = Field(
        default=(), description="evidence shown beside the result, deciding nothing"
    )
    unit: UnitFacts | None = None


class PatchFactsApplied(Frozen):
    """How the patch met the tree. `method` names the strict path or the proven fallback."""

    status: Literal["applied", "apply_failed", "empty_patch", "unsafe_rejected"]
    method: str
    reason: str
    paths: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = Field(default=(), description="path, why it was left out")
    sha256: str = Field(description="of the patch's bytes")
    flags: tuple[str, ...] = Field(default=(), description="e.g. test_infrastructure_touched: conftest.py")


class AuditFinding(Frozen):
    """One line of evidence from the static audit of a patch. Decides nothing."""

    kind: str
    path: str
    line: int | None = None
    text: str = ""


class Attempt(Frozen):
    """One try at a task that ended in a machine fault: kept, so that nobody wonders."""

    number: int = Field(ge=1)
    error: str
    kind: str = Field(description="name of the MachineError")
    seconds: float = Field(ge=0)


class ResumeKey(Frozen):
    """Two results with the same key are the same measurement; anything else is run again."""

    patch_sha256: str
    task_digest: str
    environment_digest: str
    harness_version: str
    device_class: str
    stages: tuple[StageName, ...] = Field(description="the stages asked for, in order")
    profile: str


class Verdict(Frozen):
    """verdict.json: the outcome of one prediction on one task, and why."""

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: str
    model_name_or_path: str
    category: Category
    outcome: Outcome
    reason: str
    patch: PatchFactsApplied | None = None
    stages: tuple[StageResult, ...] = ()
    audit: tuple[AuditFinding, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    key: ResumeKey | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    seconds: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_result_a_stage(self) -> Self:
        names = [stage.stage for stage in self.stages]
        if len(names) != len(set(names)):
            raise ValueError("a stage appears twice in one verdict")
        return self

    def stage(self, name: StageName) -> StageResult | None:
        """The result of a stage, or None when the task has none."""
        return next((stage for stage in self.stages if stage.stage == name), None)


class Metric(Frozen):
    """A number with the count it stands on. `value` is null when nothing was measured: a gap is never a number."""

    value: float | None
    n: int = Field(ge=0, description="denominator")
    low: float | None = Field(default=None, description="lower bound of the 95 % interval")
    high: float | None = None


class Metrics(Frozen):
    """The paper's eight. Success, Applied, FTP, UTP and NR are percentages; cost is in US dollars a task."""

    success: Metric
    applied: Metric
    ftp: Metric
    utp: Metric
    nr: Metric
    s_ttft: Metric
    s_tpot: Metric
    cost: Metric


class Report(Frozen):
    """report.json: a run in numbers. Every denominator is the number of tasks in the suite (or of the selection)."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    suite: str
    tasks: int = Field(ge=0)
    outcomes: dict[Outcome, int]
    metrics: Metrics
    by_category: dict[Category, Metrics]
    category_tasks: dict[Category, int]
    incomplete: bool
    model_names: tuple[str, ...]
    sandbox: str
    stages: tuple[StageName, ...]
    profile: str
    tasks_by_outcome: dict[Outcome, tuple[str, ...]]
    notes: tuple[str, ...] = ()


def empty_by_category() -> dict[Category, int]:
    """A zero for each category, in the order tables show them."""
    return dict.fromkeys(CATEGORIES, 0)
