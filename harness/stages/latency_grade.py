"""Latency stage, the deciding part: every number again from the stored requests. Pure but for reading the files."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from harness.coverage import decide_coverage
from harness.decisions import Decision, Ratio, Schedule, combine, decide_ratio, paper_latency
from harness.request import read_records
from harness.stages.sides import ServerFacts, Side
from harness.statistics import median
from harness.timing import LaunchTimes, summarise
from harness.trace import REQUESTS, read_trace
from rtb.baseline import Baseline, MetricName
from rtb.errors import StoredRunBroken
from rtb.result import LatencyFacts, RatioFacts, StageResult
from rtb.storage import write_atomic
from rtb.task import Frozen, LatencyStage, Task

BATCH, SINGLE = "batch", "single"
METRICS: tuple[MetricName, ...] = ("s_ttft", "s_tpot")


class Launch(Frozen):
    """One launch of one side: a line of blocks.jsonl."""

    pair: int
    side: Side
    position: int
    ready_seconds: float
    warmup_rounds: int
    steady: bool
    device_before: dict[str, str]
    device_after: dict[str, str]


class LatencyRecord(Frozen):
    """latency.json: what the requests do not say themselves."""

    model: ServerFacts
    words: int
    looks: tuple[int, ...]
    alpha: float
    known: Baseline
    seconds: float


@dataclass(frozen=True)
class LatencyFolder:
    """The raw files of one latency stage."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "latency.json"

    @property
    def launches(self) -> Path:
        return self.path / "blocks.jsonl"

    @property
    def trace(self) -> Path:
        return self.path / "launches.jsonl"

    def log(self, side: Side, pair: int | None) -> Path:
        return self.path / "logs" / f"{'untimed' if pair is None else f'{pair:03d}'}-{side}.log"

    def requests(self, pair: int, side: Side, workload: str) -> Path:
        return self.path / "requests" / f"{pair:03d}-{side}-{workload}.jsonl"

    def clear(self) -> None:
        """An empty folder with its sub-folders."""
        shutil.rmtree(self.path, ignore_errors=True)
        for name in ("logs", "requests"):
            (self.path / name).mkdir(parents=True)

    def begin(self) -> list[Launch]:
        """The launches of whole pairs that a stage left which was interrupted; an empty folder when there are none.

        A pair is a ratio of two launches that followed one another, so it stands for itself whenever it was measured.
        """
        if self.launches.is_file() and not self.record.is_file():
            try:
                kept = list(read_launches(self.launches))
                read_times(self, kept)
            except StoredRunBroken:
                kept = []
            if kept:
                return kept
        self.clear()
        return []


def stage_of(task: Task) -> LatencyStage:
    """The task's latency stage. Raises ValueError when it has none."""
    if task.latency is None:
        raise ValueError(f"{task.instance_id} has no latency stage")
    return task.latency


def write_launches(path: Path, launches: Sequence[Launch]) -> None:
    """blocks.jsonl."""
    write_atomic(path, "".join(launch.model_dump_json() + "\n" for launch in launches).encode())


def read_launches(path: Path) -> tuple[Launch, ...]:
    """Stored launches. Raises StoredRunBroken."""
    try:
        return tuple(Launch.model_validate_json(line) for line in path.read_bytes().splitlines())
    except (OSError, ValidationError) as error:
        raise StoredRunBroken(f"{path}: cannot be read ({error}); run the task again") from error


Times = dict[tuple[int, Side, str], LaunchTimes]
# Equal prompts and equal counts of tokens: texts may part ways, but not be half as long in the median.
SHORT_SHARE = 0.5


def read_times(folder: LatencyFolder, launches: Sequence[Launch], batch_only: bool = False) -> Times:
    """Each launch's requests in numbers. Raises StoredRunBroken."""
    found: Times = {}
    for launch in launches:
        for workload in (BATCH,) if batch_only else (BATCH, SINGLE):
            path = folder.requests(launch.pair, launch.side, workload)
            if workload == BATCH or path.is_file():
                found[launch.pair, launch.side, workload] = summarise(list(read_records(path)))
    return found


def _value(times: LaunchTimes, metric: MetricName, *, mean: bool = False) -> float | None:
    if mean:
        return times.ttft_mean if metric == "s_ttft" else times.tpot_mean
    return times.ttft_median if metric == "s_ttft" else times.tpot_median


def pair_values(times: Times, workload: str, metric: MetricName, *, mean: bool = False) -> list[tuple[float, float]]:
    """(gold, model) of each whole pair in order; ends at the first pair with a missing value."""
    found: list[tuple[float, float]] = []
    for pair in range(len(times)):
        sides = [times.get((pair, side, workload)) for side in ("gold", "model")]
        values = [None if item is None else _value(item, metric, mean=mean) for item in sides]
        gold, model = values
        if gold is None or model is None or gold <= 0 or model <= 0:
            break
        found.append((gold, model))
    return found


def logs_of(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """y = ln(gold / model) of each pair."""
    return [math.log(gold / model) for gold, model in pairs]


def invalid_requests(times: Times, side: Side) -> dict[str, int]:
    """Invalid requests of a side by reason. The model's are invalid, too, where they say as many tokens as gold's and
    bring less than SHORT_SHARE of their text: a server may say what it likes about its tokens."""
    found: dict[str, int] = {}
    for (_, owner, _), item in times.items():
        for reason, count in item.invalid.items() if owner == side else ():
            found[reason] = found.get(reason, 0) + count
    if side == "model":
        for (pair, owner, workload), item in times.items():
            gold = times.get((pair, "gold", workload))
            theirs, ours = item.characters_median, gold.characters_median if gold is not None else None
            if owner == "model" and theirs is not None and ours and theirs < SHORT_SHARE * ours:
                reason = f"as many tokens as gold's, but {theirs:.0f} characters and not {ours:.0f}"
                found[reason] = found.get(reason, 0) + item.requests
    return found


def is_decided(task: Task, folder: LatencyFolder, launches: Sequence[Launch], schedule: Schedule) -> bool:
    """Whether no further block can change the verdict."""
    times = read_times(folder, launches, batch_only=True)
    if invalid_requests(times, "model"):
        return True
    ratios = _ratios(stage_of(task), times, BATCH, schedule)
    if len(ratios) < len(METRICS):
        return True
    return "failed" in [item.decision for item in ratios.values()] or all(item.final for item in ratios.values())


def _ratios(stage: LatencyStage, times: Times, workload: str, schedule: Schedule) -> dict[MetricName, Ratio]:
    found: dict[MetricName, Ratio] = {}
    for metric in METRICS:
        logs = logs_of(pair_values(times, workload, metric))
        ratio = decide_ratio(logs, stage.thresholds.get(metric, 0.98), schedule)
        if ratio is not None:
            found[metric] = ratio
    return found


def grade_latency(task: Task, raw: Path, profile: str = "robust") -> StageResult:
    """Grade stored requests. Raises StoredRunBroken."""
    stage = stage_of(task)
    folder = LatencyFolder(raw)
    try:
        record = LatencyRecord.model_validate_json(folder.record.read_bytes())
    except (OSError, ValidationError) as error:
        raise StoredRunBroken(f"{raw}: the latency stage cannot be graded again: {error}; run it again") from error
    coverage = decide_coverage(task.targets, read_trace(folder.trace), REQUESTS)
    fault = record.model.not_ready or record.model.died
    if fault is not None:
        how = "does not come up" if record.model.not_ready else "fails"
        return StageResult(
            stage="latency", status="failed", reason=f"gold's server works, the patch's {how}: {fault}",
            seconds=record.seconds, coverage=coverage,
        )  # fmt: skip
    launches = read_launches(folder.launches)
    facts = latency_facts(stage, read_times(folder, launches), record)
    status, reason = _verdict(facts, profile)
    flags = [coverage.reason] if coverage.state == "uncovered" else []
    if unsteady := sum(not launch.steady for launch in launches):
        flags.append(f"{unsteady} of {len(launches)} launches were not steady after warm-up")
    flags += [
        f"one request at a time: {name} {item.estimate:.3f}"
        for name, item in facts.single.items()
        if item.decision == "failed" and status == "passed"
    ]
    return StageResult(
        stage="latency", status=status, reason=reason, seconds=record.seconds, flags=tuple(flags), latency=facts,
        coverage=coverage,
    )  # fmt: skip


def latency_facts(stage: LatencyStage, times: Times, record: LatencyRecord) -> LatencyFacts:
    """Everything the requests say. Pure."""
    schedule = Schedule(record.looks, record.alpha)
    invalid = invalid_requests(times, "model")
    batch = _facts(stage, times, BATCH, schedule, record.known)
    robust: Decision = "inconclusive"
    if invalid or len(batch) < len(METRICS):
        robust = "failed" if invalid or _only_the_model_lacks(times) else "inconclusive"
    else:
        robust = combine([item.decision for item in batch.values()])
    papers = [item.paper for item in batch.values()]
    paper = None if len(papers) < len(METRICS) or None in papers else all(papers) and not invalid
    return LatencyFacts(
        ratios=batch,
        single=_facts(stage, times, SINGLE, schedule, record.known),
        requests=sum(item.requests - sum(item.invalid.values()) for item in times.values()),
        invalid=invalid,
        looks=record.looks,
        unmeasurable=record.known.unmeasurable,
        robust=robust,
        paper=paper,
    )


def _only_the_model_lacks(times: Times) -> bool:
    """Whether gold has every value and the model does not."""
    values = {
        side: [
            _value(item, metric)
            for (_, owner, workload), item in times.items()
            if owner == side and workload == BATCH
            for metric in METRICS
        ]
        for side in ("gold", "model")
    }
    return None not in values["gold"] and None in values["model"]


def _facts(
    stage: LatencyStage, times: Times, workload: str, schedule: Schedule, known: Baseline
) -> dict[MetricName, RatioFacts]:
    found: dict[MetricName, RatioFacts] = {}
    for metric, ratio in _ratios(stage, times, workload, schedule).items():
        threshold = stage.thresholds.get(metric, 0.98)
        pairs = pair_values(times, workload, metric)[: ratio.pairs]
        means = [gold / model for gold, model in pair_values(times, workload, metric, mean=True)]
        gold, model = (median([pair[side] for pair in pairs]) or 0.0 for side in (0, 1))
        base = known.gold_over_base.get(metric)
        found[metric] = RatioFacts(
            pairs=ratio.pairs,
            estimate=ratio.estimate,
            low=ratio.low,
            high=ratio.high,
            deviation=ratio.deviation,
            threshold=threshold,
            decision=ratio.decision,
            gold_seconds=gold,
            model_seconds=model,
            paper_ratio=math.fsum(means[:3]) / 3 if len(means) >= 3 else None,
            paper=paper_latency(means, threshold),
            gain_over_base=None if base is None or workload != BATCH else base * ratio.estimate,
        )
    return found


def _verdict(facts: LatencyFacts, profile: str) -> tuple[Literal["passed", "failed", "inconclusive"], str]:
    text = "; ".join(
        f"{name} {item.estimate:.3f} ({item.low:.3f} to {item.high:.3f}, {item.pairs} block pairs)"
        for name, item in facts.ratios.items()
    )
    if facts.invalid:
        reason, count = max(facts.invalid.items(), key=lambda item: item[1])
        total = sum(facts.invalid.values())
        return "failed", f"{total} requests of the patch's server are invalid, {count} of them: {reason}"
    if len(facts.ratios) < len(METRICS):
        if facts.robust == "failed":
            return "failed", "the patch's server gives no time to first token or per token where gold's does"
        return "inconclusive", "too few block pairs for a first look"
    if facts.unmeasurable:
        return "inconclusive", f"unmeasurable on this machine: {facts.unmeasurable}; {text}"
    if profile == "paper":
        means = "; ".join(f"{name} {item.paper_ratio:.3f}" for name, item in facts.ratios.items() if item.paper_ratio)
        if facts.paper is None:
            return "inconclusive", f"the paper's rule needs three runs; {text}"
        return ("passed" if facts.paper else "failed"), f"means of three runs: {means}"
    limits = " and ".join(f"{item.threshold:g}" for item in facts.ratios.values())
    if facts.robust == "inconclusive":
        return "inconclusive", f"undecided after the last look: {text}; thresholds {limits}"
    return facts.robust, f"{text}; thresholds {limits}"
