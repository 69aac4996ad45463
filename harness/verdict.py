"""From stage results to one verdict; and from a stored run to verdicts again. The deciding part is pure."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from harness.model_stages import grade_stored_accuracy, grade_stored_latency
from harness.proven_unit import grade_proven
from rtb.result import Outcome, StageResult, Verdict
from rtb.run import Run, RunRecord, StageTimes, TaskRecord
from rtb.suite import read_model
from rtb.task import StageName

PARALLEL_FROM = 200
CHUNK = 50
Grader = Callable[[TaskRecord, Path], StageResult]


# A stage that the harness learns is one more line here and one more in evaluate.STAGES.
GRADERS: Mapping[StageName, Grader] = {
    "unit": grade_proven,
    "accuracy": grade_stored_accuracy,
    "latency": grade_stored_latency,
}


def decide(record: TaskRecord, stages: Sequence[StageResult]) -> tuple[Outcome, str]:
    """The outcome and its reason in one sentence. Order: patch, tampering, machine fault, failure, undecided."""
    if record.patch.status == "empty_patch":
        return "empty_patch", record.patch.reason
    if record.patch.status != "applied":
        return "apply_failed", record.patch.reason
    for stage in stages:
        if stage.tampered:
            return "tampered", f"{stage.stage}: {stage.tampered}"
    found: tuple[tuple[str, Outcome], ...] = (
        ("error", "error"),
        ("failed", "unresolved"),
        ("inconclusive", "inconclusive"),
    )
    for status, outcome in found:
        for stage in stages:
            if stage.status == status:
                return outcome, f"{stage.stage}: {stage.reason}"
    passed = {stage.stage for stage in stages if stage.status == "passed"}
    if not record.stages or passed != set(record.stages):
        missing = ", ".join(sorted(set(record.stages) - passed)) or "no stage was asked for"
        return "error", f"not every stage has a result ({missing})"
    return "resolved", "; ".join(f"{stage.stage}: {stage.reason}" for stage in stages)


def verdict_of(record: TaskRecord, stages: Sequence[StageResult], seconds: float | None = None) -> Verdict:
    """The verdict that follows from a record and its stage results."""
    outcome, reason = decide(record, stages)
    return Verdict(
        instance_id=record.task.instance_id,
        model_name_or_path=record.model_name_or_path,
        category=record.task.category,
        outcome=outcome,
        reason=reason,
        patch=record.patch,
        stages=tuple(stages),
        audit=record.audit,
        key=record.key,
        cost_usd=record.cost_usd,
        tokens=record.tokens,
        seconds=seconds,
    )


def skipped(stage: StageName, earlier: StageResult) -> StageResult:
    """The result of a stage that was not run because an earlier one did not pass."""
    return StageResult(stage=stage, status="skipped", reason=f"not run: the {earlier.stage} stage {earlier.status}")


def grade_stages(record: TaskRecord, folder: Path) -> tuple[StageResult, ...]:
    """Stage results from the raw files of one task. Raises StoredRunBroken / InvalidFile when they are not whole."""
    results: list[StageResult] = []
    if record.patch.status != "applied":
        return ()
    for name in record.stages:
        stopped = next((item for item in results if item.status != "passed" or item.tampered), None)
        if stopped is not None:
            results.append(skipped(name, stopped))
        else:
            results.append(GRADERS[name](record, folder / name))
    return tuple(results)


def grade_task(run: Run, run_record: RunRecord, instance_id: str) -> Verdict:
    """The verdict of one task of a stored run, from its record and raw files alone."""
    folder = run.task(instance_id)
    record = run.read_task_record(instance_id)
    log = run.read_attempts(instance_id)
    attempts = log.attempts if log else ()
    if log is not None and log.final:
        return _without_result(run_record, instance_id, "error", attempts[-1].error, record, attempts)
    if record is None:
        if not folder.path.is_dir():
            why = run_record.unfinished.get(instance_id, "no prediction for this task")
            return _without_result(run_record, instance_id, "not_submitted", why, None, ())
        return _without_result(run_record, instance_id, "error", _UNFINISHED, None, attempts)
    if not folder.times.is_file():
        return _without_result(run_record, instance_id, "error", _UNFINISHED, record, attempts)
    times = read_model(folder.times, StageTimes)
    verdict = verdict_of(record, grade_stages(record, folder.path), times.total_seconds)
    return verdict.model_copy(update={"attempts": attempts})


_UNFINISHED = "not evaluated to its end; run the same command again to finish it"


def _without_result(
    run_record: RunRecord,
    instance_id: str,
    outcome: Outcome,
    reason: str,
    record: TaskRecord | None,
    attempts: Sequence[object],
) -> Verdict:
    return Verdict.model_validate(
        {
            "instance_id": instance_id,
            "model_name_or_path": record.model_name_or_path if record else ", ".join(run_record.model_names),
            "category": run_record.categories[instance_id],
            "outcome": outcome,
            "reason": reason,
            "patch": record.patch if record else None,
            "audit": record.audit if record else (),
            "key": record.key if record else None,
            "attempts": attempts,
            "cost_usd": record.cost_usd if record else None,
            "tokens": record.tokens if record else None,
        }
    )


def grade_run(run: Run) -> Iterator[Verdict]:
    """Every task's verdict, one at a time, in the run's order. Needs neither Docker nor GPU nor the suite.

    A large run is graded by one process a core.
    """
    record = run.read_record()
    names = record.instance_ids
    processes = os.cpu_count() or 1
    if len(names) < PARALLEL_FROM or processes == 1:
        yield from (grade_task(run, record, name) for name in names)
        return
    # Forked, so that nothing is imported again; no thread of ours is running here.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(partial(grade_task, run, _slim(record)), names, chunksize=CHUNK)


def _slim(record: RunRecord) -> RunRecord:
    """The record without what grading one task does not need: it is sent with every chunk."""
    return record.model_copy(update={"problems": ()})
