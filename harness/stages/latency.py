"""Latency stage, the doing part: interleaved launches of both sides, every request kept. Grades: latency_grade."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import workload
from harness.client import measure, perform
from harness.decisions import STANDARD, Schedule
from harness.device_state import device_state
from harness.request import PATHS, Plan, Question, RequestRecord, completion_body
from harness.server import NotReady, Ready, health, serving
from harness.stages.latency_grade import (
    BATCH,
    SINGLE,
    LatencyFolder,
    LatencyRecord,
    Launch,
    grade_latency,
    is_decided,
    stage_of,
    write_launches,
)
from harness.stages.sides import GoldCannotServe, ServerFacts, Side, Sides, not_ready
from harness.timing import fault_of, summarise
from harness.trace import REQUESTS, Trace, lay_tracer
from rtb.errors import MachineError
from rtb.result import StageResult
from rtb.sandbox import Sandbox
from rtb.storage import write_model
from rtb.task import LatencyStage, Serve, Task

REQUEST_SECONDS = 600.0
SINGLE_REQUESTS = 48  # at most, one at a time
MIN_WARMUP = 4  # requests of one round
WARMUP_ROUNDS = (2, 6)  # at least, at most
STEADY = 0.05  # two rounds whose medians differ by less are steady
LAUNCH_TRIES = 3
TRACED_REQUESTS = 8


class TransportFailed(MachineError):
    """Connections to a living server that broke again and again."""


@dataclass(frozen=True)
class _Died:
    """A server that no longer answered in the middle of a launch."""

    what: str


def run_latency(
    task: Task, sides: Sides, raw: Path, profile: str = "robust", schedule: Schedule = STANDARD
) -> StageResult:
    """Run and grade the latency stage. See `execute_latency` and `grade_latency`."""
    execute_latency(task, sides, raw, schedule)
    return grade_latency(task, raw, profile)


def execute_latency(task: Task, sides: Sides, raw: Path, schedule: Schedule = STANDARD) -> None:
    """Measure block pairs until both ratios are decided or the last look is over. Pairs that an interrupted stage
    left in `raw` are kept.

    Leaves requests of each launch, blocks.jsonl (launches), launches.jsonl (Triton's), logs and latency.json there.
    Raises GoldCannotServe, TransportFailed and what sandbox and client raise.
    """
    stage_of(task)
    folder = LatencyFolder(raw)
    kept = folder.begin()
    started = time.monotonic()
    with sides.gold() as gold:
        measuring = _Measuring(task, {"gold": gold, "model": sides.model}, folder)
        model = measuring.prepare()
        if model.not_ready is None and model.died is None:
            model = measuring.blocks(schedule, kept) or model
    write_model(
        folder.record,
        LatencyRecord(
            model=model,
            words=measuring.words,
            looks=schedule.looks,
            alpha=schedule.alpha,
            known=sides.known,
            seconds=time.monotonic() - started,
        ),
    )


class _Measuring:
    """Both sides of one stage."""

    def __init__(self, task: Task, boxes: dict[Side, Sandbox], folder: LatencyFolder) -> None:
        self._task = task
        self._stage: LatencyStage = stage_of(task)
        self._boxes = boxes
        self._folder = folder
        self.words = 0

    def prepare(self) -> ServerFacts:
        """An untimed launch of each side: fills its compile caches, finds the prompt length, traces the model's."""
        self._untimed("gold", self._stage.serve, None)
        trace = lay_tracer(self._boxes["model"])
        facts = self._untimed("model", trace.serve(self._stage.serve), trace)
        trace.collect(self._folder.trace)
        return facts

    def _untimed(self, side: Side, serve: Serve, trace: Trace | None) -> ServerFacts:
        with serving(self._boxes[side], serve, self._folder.log(side, None)) as found:
            if isinstance(found, NotReady):
                if side == "gold":
                    raise GoldCannotServe(f"gold's server cannot be measured: {found}")
                return not_ready(found)
            if trace is not None:
                trace.enter(REQUESTS)
            if self.words == 0:
                self.words = self._length(found)
            load = self._stage.workload
            count = min(max(load.concurrency, TRACED_REQUESTS), load.prompts)
            records = self._perform(found, "fill", 0, count, load.concurrency, None)
            fault = next((fault for record in records if (fault := fault_of(record))), None)
            if fault is not None and side == "gold":
                raise GoldCannotServe(f"gold's server does not answer as the workload needs: {fault}")
            if fault is not None:
                return ServerFacts(ready_seconds=found.seconds, died=fault)
            return ServerFacts(ready_seconds=found.seconds)

    def _length(self, server: Ready) -> int:
        """Words that make the workload's input length, from the server's own count of two prompts."""
        serve = self._stage.serve
        counts: list[tuple[int, int]] = []
        for words in workload.PROBE_WORDS:
            body = completion_body(
                workload.text(words, "probe"), 2, model=serve.model, endpoint=serve.endpoint, **serve.request
            )
            record = self._measure(server, (Question(index=0, body=body),), 1, None)[0]
            if record.error is not None or record.prompt_tokens is None:
                raise GoldCannotServe(f"gold's server does not count prompt tokens: {record.error or 'no usage'}")
            counts.append((words, record.prompt_tokens))
        return workload.words_for(self._stage.workload.input_len, (counts[0], counts[1]))

    def blocks(self, schedule: Schedule, launches: list[Launch]) -> ServerFacts | None:
        """Block pairs after those of `launches`, gold first and model first in turn. Facts when the model's server
        fails, else None."""
        pairs = len(launches) // 2
        if pairs in schedule.looks and is_decided(self._task, self._folder, launches, schedule):
            return None
        for pair in range(pairs, schedule.last):
            order: tuple[Side, Side] = ("gold", "model") if pair % 2 == 0 else ("model", "gold")
            for position, side in enumerate(order):
                found = self._launch(pair, side, position)
                if isinstance(found, ServerFacts):
                    return found
                launches.append(found)
            write_launches(self._folder.launches, launches)
            if pair + 1 in schedule.looks and is_decided(self._task, self._folder, launches, schedule):
                break
        return None

    def _launch(self, pair: int, side: Side, position: int) -> Launch | ServerFacts:
        """One server from start to stop. Transport faults of a living server cost the launch, not the patch."""
        for _ in range(LAUNCH_TRIES):
            before = device_state()
            with serving(self._boxes[side], self._stage.serve, self._folder.log(side, pair)) as found:
                if isinstance(found, NotReady):
                    if side == "gold":
                        raise GoldCannotServe(f"gold's server came up before and does not now: {found}")
                    return not_ready(found)
                rounds, steady = self._warm_up(found, pair)
                outcome = self._measure_launch(found, pair, side)
            if isinstance(outcome, _Died):
                if side == "gold":
                    raise GoldCannotServe(f"gold's server died while it was measured: {outcome.what}")
                return ServerFacts(ready_seconds=found.seconds, died=outcome.what)
            if outcome:
                return Launch(
                    pair=pair, side=side, position=position, ready_seconds=found.seconds, warmup_rounds=rounds,
                    steady=steady, device_before=before, device_after=device_state(),
                )  # fmt: skip
        what = (
            f"in {LAUNCH_TRIES} launches connections broke, or all tokens of an answer came at once, though it lives"
        )
        if side == "model" and position == 1:  # gold was measured soundly just before
            return ServerFacts(died=what)
        raise TransportFailed(f"{side}'s server cannot be measured: {what}")

    def _warm_up(self, server: Ready, pair: int) -> tuple[int, bool]:
        """Rounds at the measured concurrency on prompts of their own until two follow each other steadily."""
        load = self._stage.workload
        count = max(load.concurrency, MIN_WARMUP)
        last: tuple[float | None, float | None] | None = None
        for number in range(1, WARMUP_ROUNDS[1] + 1):
            records = self._perform(server, "warm-up", pair * 100 + number, count, load.concurrency, None)
            times = summarise(records)
            now = (times.ttft_median, times.tpot_median)
            if number >= WARMUP_ROUNDS[0] and last is not None and _close(last, now):
                return number, True
            last = now
        return WARMUP_ROUNDS[1], False

    def _measure_launch(self, server: Ready, pair: int, side: Side) -> bool | _Died:
        """The workloads of one launch. False when transport broke though the server lives: measure again."""
        load = self._stage.workload
        parts = [(BATCH, load.prompts, load.concurrency)]
        if load.concurrency > 1:
            parts.append((SINGLE, min(load.prompts, SINGLE_REQUESTS), 1))
        for name, count, concurrency in parts:
            out = self._folder.requests(pair, side, name)
            records = self._perform(server, name, pair, count, concurrency, out)
            broken = [record for record in records if record.status is None or not record.chunks]
            state = health(Path(server.address.removeprefix("unix:")))
            if state != "health 200":
                return _Died(f"{state} after block {pair}'s {name} requests")
            if any(record.status is None for record in broken):
                return False
            times = summarise(records)
            if not times.invalid and not times.tpot_median:
                return False  # all tokens at once: this machine stalled, or the server holds them back
            fault = next((fault for record in records if (fault := fault_of(record))), None)
            if fault is not None and side == "gold":
                raise GoldCannotServe(f"a request to gold's server is invalid: {fault}")
        return True

    def _perform(
        self, server: Ready, purpose: str, block: int, count: int, concurrency: int, out: Path | None
    ) -> list[RequestRecord]:
        questions = workload.requests(self._stage, self._task.instance_id, self.words, purpose, block, count)
        rate = self._stage.workload.rate if purpose == BATCH else None
        return self._measure(server, questions, concurrency, out, rate)

    def _measure(
        self,
        server: Ready,
        questions: Sequence[Question],
        concurrency: int,
        out: Path | None,
        rate: float | None = None,
    ) -> list[RequestRecord]:
        """With `out` in the client's own process, kept; without in this one, for requests that are not measured."""
        plan = Plan(
            address=server.address,
            path=PATHS[self._stage.serve.endpoint],
            questions=tuple(questions),
            concurrency=concurrency,
            rate=rate,
            timeout_seconds=REQUEST_SECONDS,
        )
        return perform(plan) if out is None else measure(plan, out)


def _close(last: tuple[float | None, float | None], now: tuple[float | None, float | None]) -> bool:
    return all(
        bool(old and new) and abs((new or 0.0) / (old or 1.0) - 1) < STEADY
        for old, new in zip(last, now, strict=True)
    )
