"""Accuracy stage: GSM8K over HTTP, both sides on the same questions, graded from the stored answers alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness import gsm8k
from harness.client import measure
from harness.coverage import decide_coverage
from harness.decisions import Difference, combine, decide_difference, paper_accuracy, question_looks
from harness.gsm8k import Answer, QuestionSet, read_answers, write_answers
from harness.request import PATHS, Plan, RequestRecord
from harness.server import NotReady, Ready, health, serving
from harness.stages.sides import GoldCannotServe, ServerFacts, Side, Sides, not_ready
from harness.statistics import Pairs, mcnemar, pair_up, provable_margin
from harness.trace import REQUESTS, lay_tracer, read_trace
from rtb.errors import MachineError, StoredRunBroken
from rtb.result import AccuracyFacts, FilterFacts, StageResult
from rtb.sandbox import Sandbox
from rtb.storage import write_model
from rtb.task import AccuracyStage, Frozen, Task

TRIES = 3  # of a request that fails
REQUEST_SECONDS = 600.0
NO_ANSWER_POINTS = 2.0  # so many more answers without a number than gold are named


class RequestsFailed(MachineError):
    """Requests that failed again and again on a server that lives. Never wrong answers."""


class AccuracyRecord(Frozen):
    """accuracy.json: what the answers do not say themselves."""

    questions: int = Field(description="asked of both sides")
    available: int
    gold: ServerFacts
    model: ServerFacts
    gold_from_cache: bool = False
    flip_rate: float | None = None
    retried: int = 0
    seconds: float


@dataclass(frozen=True)
class AccuracyFolder:
    """The raw files of one accuracy stage."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "accuracy.json"

    @property
    def launches(self) -> Path:
        return self.path / "launches.jsonl"

    def answers(self, side: Side) -> Path:
        return self.path / f"answers-{side}.jsonl"

    def log(self, side: Side) -> Path:
        return self.path / f"server-{side}.log"

    def requests(self, side: Side) -> Path:
        return self.path / f"requests-{side}.jsonl"


def run_accuracy(task: Task, questions: QuestionSet, sides: Sides, raw: Path, profile: str = "robust") -> StageResult:
    """Run and grade the accuracy stage. See `execute_accuracy` and `grade_accuracy`."""
    execute_accuracy(task, questions, sides, raw)
    return grade_accuracy(task, raw, profile)


def execute_accuracy(task: Task, questions: QuestionSet, sides: Sides, raw: Path) -> None:
    """Ask gold every question (or read what it said before), then the model's side until it is decided.

    Leaves answers, server logs, launches and accuracy.json in `raw`. Raises GoldCannotServe, RequestsFailed and what
    sandbox and client raise.
    """
    stage = stage_of(task)
    folder = AccuracyFolder(raw)
    raw.mkdir(parents=True, exist_ok=True)
    for stale in raw.iterdir():
        if stale.is_file():
            stale.unlink()
    started = time.monotonic()
    total = min(stage.limit or len(questions.test), len(questions.test))
    gold_answers, gold_facts, cached, retried = _gold(stage, questions, sides, folder, total)
    asked = _Asking(stage, questions, folder, "model", sides.concurrency)
    trace = lay_tracer(sides.model)
    facts = asked.serve(
        sides.model, total, trace_serve=trace.serve(stage.serve), enter=lambda: trace.enter(REQUESTS),
        enough=lambda answers: _decided(answers, gold_answers, stage, total),
    )  # fmt: skip
    trace.collect(folder.launches)
    record = AccuracyRecord(
        questions=len(asked.answers),
        available=total,
        gold=gold_facts,
        model=facts,
        gold_from_cache=cached,
        flip_rate=sides.known.flip_rate,
        retried=retried + asked.retried,
        seconds=time.monotonic() - started,
    )
    write_answers(folder.answers("gold"), gold_answers)
    write_answers(folder.answers("model"), list(asked.answers.values()))
    write_model(folder.record, record)


def stage_of(task: Task) -> AccuracyStage:
    """The task's accuracy stage. Raises ValueError when it has none."""
    if task.accuracy is None:
        raise ValueError(f"{task.instance_id} has no accuracy stage")
    return task.accuracy


def _gold(
    stage: AccuracyStage, questions: QuestionSet, sides: Sides, folder: AccuracyFolder, total: int
) -> tuple[list[Answer], ServerFacts, bool, int]:
    """Gold's answers to all questions: from the cache where it has been asked in this environment before."""
    cached = sides.gold_cache / "answers.jsonl" if sides.gold_cache is not None else None
    if cached is not None and cached.is_file():
        known = [answer for answer in read_answers(cached) if answer.index < total]
        if len(known) == total:
            return known, ServerFacts(), True, 0
    asked = _Asking(stage, questions, folder, "gold", sides.concurrency)
    with sides.gold() as sandbox:
        facts = asked.serve(sandbox, total)
    if facts.not_ready or facts.died:
        raise GoldCannotServe(f"gold's server cannot be measured: {facts.not_ready or facts.died}")
    answers = list(asked.answers.values())
    if cached is not None:
        write_answers(cached, answers)
    return answers, facts, False, asked.retried


class _Asking:
    """One side being asked, look by look."""

    def __init__(
        self, stage: AccuracyStage, questions: QuestionSet, folder: AccuracyFolder, side: Side, concurrency: int
    ) -> None:
        self._stage = stage
        self._questions = questions
        self._folder = folder
        self._side: Side = side
        self._concurrency = concurrency
        self.answers: dict[int, Answer] = {}
        self.retried = 0

    def serve(
        self,
        sandbox: Sandbox,
        total: int,
        *,
        trace_serve: object = None,
        enter: Callable[[], None] = lambda: None,
        enough: Callable[[Sequence[Answer]], bool] = lambda _: False,
    ) -> ServerFacts:
        """Start the side's server and ask until every question is answered or `enough` says so."""
        serve = trace_serve or self._stage.serve
        with serving(sandbox, serve, self._folder.log(self._side)) as found:  # type: ignore[arg-type]
            if isinstance(found, NotReady):
                return not_ready(found)
            enter()
            for look in question_looks(total):
                died = self._ask(found, [index for index in range(look) if index not in self.answers])
                if died:
                    return ServerFacts(ready_seconds=found.seconds, died=died)
                if enough(list(self.answers.values())):
                    break
            return ServerFacts(ready_seconds=found.seconds)

    def _ask(self, server: Ready, indices: Sequence[int]) -> str | None:
        """Answers to these questions; failed requests are tried again. What the server died of, or None."""
        left = list(indices)
        for attempt in range(TRIES):
            failed: dict[int, str] = {}
            for record in self._measure(server, left):
                answer = gsm8k.score(record, self._questions.test[record.index])
                if answer.error is None:
                    self.answers[record.index] = answer
                else:
                    failed[record.index] = answer.error
            if not failed:
                return None
            if (state := health(Path(server.address.removeprefix("unix:")))) != "health 200":
                return (
                    f"{state} after {len(self.answers)} answers; a request failed with: {next(iter(failed.values()))}"
                )
            left = sorted(failed)
            if attempt + 1 < TRIES:
                self.retried += len(left)
        raise RequestsFailed(
            f"{len(left)} requests to {self._side}'s server failed {TRIES} times, which is no answer and no score; "
            f"question {left[0]}: {failed[left[0]]}"
        )

    def _measure(self, server: Ready, indices: Sequence[int]) -> list[RequestRecord]:
        plan = Plan(
            address=server.address,
            path=PATHS[self._stage.serve.endpoint],
            questions=gsm8k.requests(self._questions, self._stage, indices),
            concurrency=self._concurrency,
            timeout_seconds=REQUEST_SECONDS,
            keep_text=True,
        )
        return measure(plan, self._folder.requests(self._side))


def _decided(answers: Sequence[Answer], gold: Sequence[Answer], stage: AccuracyStage, total: int) -> bool:
    decided = [item for _, item in _differences(answers, gold, stage.margin, used_up=len(answers) == total)]
    return combine([item.decision for item in decided]) != "inconclusive"


def _differences(
    answers: Sequence[Answer], gold: Sequence[Answer], margin: float, *, used_up: bool
) -> list[tuple[Pairs, Difference]]:
    """Strict, then flexible, over the questions that both sides answered."""
    by_index = {answer.index: answer for answer in gold}
    both = [(by_index[answer.index], answer) for answer in answers if answer.index in by_index]
    strict = pair_up([old.strict_right for old, _ in both], [new.strict_right for _, new in both])
    flexible = pair_up([old.flexible_right for old, _ in both], [new.flexible_right for _, new in both])
    return [(pairs, decide_difference(pairs, margin, used_up=used_up)) for pairs in (strict, flexible)]


def grade_accuracy(task: Task, raw: Path, profile: str = "robust") -> StageResult:
    """Grade stored answers. Pure but for reading the files. Raises StoredRunBroken."""
    stage = stage_of(task)
    folder = AccuracyFolder(raw)
    try:
        record = AccuracyRecord.model_validate_json(folder.record.read_bytes())
    except (OSError, ValidationError) as error:
        raise StoredRunBroken(f"{raw}: the accuracy stage cannot be graded again: {error}; run it again") from error
    coverage = decide_coverage(task.targets, read_trace(folder.launches), REQUESTS)
    fault = record.model.not_ready or record.model.died
    if fault is not None:
        how = "does not come up" if record.model.not_ready else "died"
        return StageResult(
            stage="accuracy", status="failed", reason=f"gold's server works, the patch's {how}: {fault}",
            seconds=record.seconds, coverage=coverage,
        )  # fmt: skip
    gold, model = read_answers(folder.answers("gold")), read_answers(folder.answers("model"))
    if len(model) != record.questions:
        raise StoredRunBroken(f"{raw}: {len(model)} answers are stored, {record.questions} were given; run it again")
    facts = accuracy_facts(stage, gold, model, record)
    status = facts.robust if profile == "robust" else ("passed" if facts.paper else "failed")
    return StageResult(
        stage="accuracy",
        status=status,
        reason=_reason(facts, profile),
        seconds=record.seconds,
        flags=_flags(facts, record, coverage.state == "uncovered", coverage.reason),
        accuracy=facts,
        coverage=coverage,
    )


def accuracy_facts(
    stage: AccuracyStage, gold: Sequence[Answer], model: Sequence[Answer], record: AccuracyRecord
) -> AccuracyFacts:
    """Everything the answers say. Pure."""
    found = _differences(model, gold, stage.margin, used_up=len(model) == record.available)
    asked = {answer.index for answer in model}
    filters = {
        name: FilterFacts(
            gold_right=pairs.reference_right,
            model_right=pairs.new_right,
            lost=pairs.lost,
            won=pairs.won,
            difference_points=difference.bounds.estimate,
            low_points=difference.bounds.low,
            high_points=difference.bounds.high,
            mcnemar_p=mcnemar(pairs),
            decision=difference.decision,
        )
        for name, (pairs, difference) in zip(("strict-match", "flexible-extract"), found, strict=True)
    }
    worst = max(pairs.discordant for pairs, _ in found)
    return AccuracyFacts.model_validate(
        {
            "questions": len(model),
            "available": record.available,
            "filters": filters,
            "margin_points": stage.margin,
            "provable_margin_points": 100 * provable_margin(worst, len(model)),
            "flip_rate": record.flip_rate,
            "no_answer": (
                sum(answer.flexible is None for answer in gold if answer.index in asked),
                sum(answer.flexible is None for answer in model),
            ),
            "retried_requests": record.retried,
            "robust": combine([difference.decision for _, difference in found]),
            "paper": paper_accuracy([difference.bounds.estimate for _, difference in found]),
        }
    )


def _reason(facts: AccuracyFacts, profile: str) -> str:
    worst = min(facts.filters.values(), key=lambda item: item.low_points)
    name = next(key for key, item in facts.filters.items() if item is worst)
    text = (
        f"{name} {worst.model_right}/{facts.questions}, gold {worst.gold_right}/{facts.questions}: "
        f"{worst.difference_points:+.2f} points (at least {worst.low_points:+.2f}, margin {facts.margin_points:g})"
    )
    if profile == "paper":
        return f"{text}; by the paper's rule {'not below gold' if facts.paper else 'below gold'}"
    if facts.robust == "inconclusive":
        text += f"; {facts.questions} questions show no less than {facts.provable_margin_points:.1f} points"
    return text


def _flags(facts: AccuracyFacts, record: AccuracyRecord, uncovered: bool, coverage: str) -> tuple[str, ...]:
    flags: list[str] = []
    if uncovered:
        flags.append(coverage)
    gold, model = facts.no_answer
    if 100 * (model - gold) / max(facts.questions, 1) > NO_ANSWER_POINTS:
        flags.append(f"answers without a number: {model}, gold {gold}")
    if facts.retried_requests:
        flags.append(f"{facts.retried_requests} failed requests were made again")
    if record.gold_from_cache:
        flags.append("gold's answers are those of an earlier run in this environment")
    return tuple(flags)
