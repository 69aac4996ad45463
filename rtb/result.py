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


Decision = Literal["passed", "failed", "inconclusive"]


class CoverageFacts(Frozen):
    """Which Triton kernels a stage launched, from a traced, untimed run of it.

    `uncovered`: no target kernel was launched, so the stage says nothing about the patch. `untraced`: not known.
    """

    state: Literal["covered", "uncovered", "untraced"]
    reason: str
    targets: dict[str, int] = Field(default={}, description="launches of each target kernel, as path::name")
    launches: dict[str, int] = Field(default={}, description="launches of each kernel of the run")
    phases: dict[str, int] = Field(default={}, description="launches in each phase of the run")


class TwinFacts(Frozen):
    """The tests once more, on the model's own tree with its targets made wrong on purpose. Sound tests fail there.

    `noticed`: an expected test did not pass. `unnoticed`: all that ran passed, so the pass of the real tree does not
    come from the targets. `impossible`: the targets allow no such change, and nothing is known.
    """

    state: Literal["noticed", "unnoticed", "impossible"]
    reason: str
    sabotaged: tuple[str, ...] = Field(default=(), description="what was made wrong, as path::name")


class FilterFacts(Frozen):
    """One filter of the accuracy stage over the questions that both sides answered. Points are of percent."""

    gold_right: int = Field(ge=0)
    model_right: int = Field(ge=0)
    lost: int = Field(ge=0, description="questions that gold has right and the model's patch has not")
    won: int = Field(ge=0)
    difference_points: float
    low_points: float = Field(description="one-sided lower bound of the difference")
    high_points: float
    mcnemar_p: float
    decision: Decision


class AccuracyFacts(Frozen):
    """Accuracy stage: both sides on the same questions."""

    questions: int = Field(ge=0)
    available: int = Field(ge=0)
    filters: dict[Literal["strict-match", "flexible-extract"], FilterFacts]
    margin_points: float
    provable_margin_points: float = Field(description="the smallest margin that so many questions show (80 % power)")
    flip_rate: float | None = Field(default=None, description="share of answers that differ between two runs of gold")
    no_answer: tuple[int, int] = Field(description="answers without a number: gold, model")
    retried_requests: int = Field(default=0, description="machine faults that a second try mended; in no score")
    robust: Decision
    paper: bool = Field(description="the paper's rule: not below gold on either filter")


class RatioFacts(Frozen):
    """One latency metric over block pairs: gold / model, above 1 means faster than gold."""

    pairs: int = Field(ge=0)
    estimate: float
    low: float = Field(description="one-sided lower bound")
    high: float
    deviation: float = Field(description="of the log ratio, between pairs")
    threshold: float
    decision: Decision
    gold_seconds: float = Field(description="median over launches of the launch's median")
    model_seconds: float
    paper_ratio: float | None = Field(default=None, description="mean of the first three pairs' ratios of means")
    paper: bool | None = None
    gain_over_base: float | None = Field(default=None, description="base / model; base was measured by validate")


class LatencyFacts(Frozen):
    """Latency stage. `ratios` decide; `single` is the same with one request at a time, and only shown."""

    ratios: dict[Literal["s_ttft", "s_tpot"], RatioFacts]
    single: dict[Literal["s_ttft", "s_tpot"], RatioFacts] = {}
    requests: int = Field(ge=0, description="valid requests that the ratios stand on")
    invalid: dict[str, int] = Field(default={}, description="invalid requests by reason")
    looks: tuple[int, ...]
    unmeasurable: str | None = None
    robust: Decision
    paper: bool | None = None


class StageResult(Frozen):
    """How one stage ended. `reason` is one sentence a stranger understands; `tampered` overrides the status."""

    stage: StageName
    status: Status
    reason: str
    seconds: float | None = Field(default=None, ge=0, description="wall time of the stage's own command")
    tampered: str | None = Field(default=None, description="why the evidence cannot be trusted, or null")
    flags: tuple[str, ...] = Field(default=(), description="evidence shown beside the result, deciding nothing")
    unit: UnitFacts | None = None
    accuracy: AccuracyFacts | None = None
    latency: LatencyFacts | None = None
    coverage: CoverageFacts | None = None
    twin: TwinFacts | None = Field(default=None, description="unit stage: what became of the sabotage twin")


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
