"""One prediction on one task: patch, sandbox, stages. Leaves raw files; the verdict is graded from them."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import model_stages
from harness.opened_sides import Place
from harness.plan import PatchPlan, patch_plan
from harness.proven_unit import run_proven
from harness.resumption import interrupted, is_finished
from harness.verdict import GRADERS
from rtb import __version__, environment, hydration
from rtb.base_tree import BaseTree, base_repository
from rtb.console import Progress
from rtb.devices import lease
from rtb.errors import (
    BuildFailed,
    ExpectedError,
    MachineError,
    StageBroken,
    known_fault,
)
from rtb.git_objects import borrow_objects
from rtb.prediction import Prediction
from rtb.result import Attempt, ResumeKey, StageResult
from rtb.run import AttemptLog, RunRecord, StageTimes, TaskRecord, TaskRun
from rtb.sabotage import CannotSabotage
from rtb.sandbox import Sandbox
from rtb.storage import write_atomic, write_model
from rtb.suite import TaskEntry
from rtb.task import StageName

StageRunner = Callable[[TaskRecord, PatchPlan, Place, Sandbox, Path], StageResult]


# A stage that the harness learns is one more line here and one more in verdict.GRADERS.
STAGE_RUNNERS: Mapping[StageName, StageRunner] = {
    "unit": run_proven,
    "accuracy": lambda record, _, place, sandbox, raw: model_stages.accuracy(record, place, sandbox, raw),
    "latency": lambda record, _, place, sandbox, raw: model_stages.latency(record, place, sandbox, raw),
}
# Stages that go on from what an interruption left in their folder; others begin with an empty one.
GO_ON: frozenset[StageName] = frozenset({"latency"})


@dataclass(frozen=True)
class Job:
    """One unit of work for the pool. `load` reads the prediction when its turn comes, so that memory stays flat.

    `gpus`: how many devices are leased for it; 0 means that kernels run on the CPU.
    """

    entry: TaskEntry
    load: Callable[[BaseTree], Prediction]
    folder: TaskRun
    record: RunRecord
    task_digest: str
    retries: int
    control: str | None
    stop: threading.Event
    session: environment.Session
    gpus: int


def evaluate_one(job: Job, shown: Progress) -> bool:
    """Evaluate one prediction, leaving its files in `job.folder`. True when a finished result was found and kept.

    A machine fault is retried, each try kept; what is left after the last one is the outcome `error`. This is one of
    the two places that catch everything: a fault of ours ends one task, not the run, and its traceback is kept.
    """
    name = job.entry.instance_id
    try:
        return _with_retries(job, shown)
    except (KeyboardInterrupt, ExpectedError):
        raise
    except Exception as error:  # noqa: BLE001 - see the docstring
        job.folder.path.mkdir(parents=True, exist_ok=True)
        write_atomic(job.folder.fault, traceback.format_exc().encode())
        what = f"a fault of rtb itself ({type(error).__name__}: {error}); see {job.folder.fault.name}"
        only = _attempt(1, what, type(error).__name__, 0.0)
        write_model(job.folder.attempts, AttemptLog(attempts=(only,), final=True))
        shown.note(f"{name}: {what}")
        return False


def _with_retries(job: Job, shown: Progress) -> bool:
    tries: list[Attempt] = []
    while True:
        started = time.monotonic()
        number = len(tries) + 1
        try:
            return _evaluate(job, shown, tries)
        except (MachineError, OSError, MemoryError, RuntimeError) as error:
            fault = known_fault(error)
            if not isinstance(fault, MachineError):
                raise
            if job.session.interrupted:
                return False
            _keep_raw(job.folder, number)
            seconds = time.monotonic() - started
            tries.append(_attempt(number, str(fault), type(fault).__name__, seconds))
            final = number > job.retries or isinstance(fault, BuildFailed)
            write_model(job.folder.attempts, AttemptLog(attempts=tuple(tries), final=final))
            if final:
                return False
            shown.note(f"{job.entry.instance_id}: {fault}; try {number + 1} of {job.retries + 1}")
            if job.stop.wait(min(2.0**number, 30.0)) and job.session.interrupted:
                return False


def _attempt(number: int, error: str, kind: str, seconds: float) -> Attempt:
    return Attempt(number=number, error=error, kind=kind, seconds=seconds)


def _keep_raw(folder: TaskRun, number: int) -> None:
    """Move the raw files of a broken try aside: they are evidence, and no later try may be graded from them."""
    kept = folder.failed_attempt(number)
    shutil.rmtree(kept, ignore_errors=True)
    folder.finished_stages.unlink(missing_ok=True)
    for stage in STAGE_RUNNERS:
        if folder.stage(stage).is_dir():
            kept.mkdir(parents=True, exist_ok=True)
            folder.stage(stage).rename(kept / stage)


def _evaluate(job: Job, shown: Progress, tries: list[Attempt]) -> bool:
    """One try. Leaves record.json, raw files, and times.json last."""
    entry, name, started = job.entry, job.entry.instance_id, time.monotonic()
    shown.step(name, "environment")
    prepared = environment.prepare(entry, job.record.sandbox, progress=shown.note)
    base = base_repository(entry)
    try:
        prediction = job.load(base)
    except CannotSabotage as error:
        shown.note(f"{name}: no such control: {error}")
        shutil.rmtree(job.folder.path, ignore_errors=True)
        return False
    key = _key(job, prediction, prepared.digest)
    if not tries and is_finished(job.folder, key):
        return True
    done = None if tries else interrupted(job.folder, key)
    if done is None and not tries:
        shutil.rmtree(job.folder.path, ignore_errors=True)
    job.folder.path.mkdir(parents=True, exist_ok=True)
    write_atomic(job.folder.patch_diff, prediction.patch_bytes)
    shown.step(name, "patch")
    with borrow_objects(base.path) as objects:
        plan = patch_plan(entry, objects, base.tree, prediction.patch_bytes, control=job.control)
    record = TaskRecord(
        task=entry.task,
        tests=entry.tests,
        model_name_or_path=prediction.model_name_or_path,
        patch=plan.facts,
        audit=plan.audit,
        key=key,
        twin=plan.twin,
        stages=tuple(stage for stage in job.record.stages if stage in entry.task.stages),
        cost_usd=prediction.cost_usd,
        tokens=prediction.tokens,
    )
    write_model(job.folder.record, record)
    stage_seconds = dict(done.stage_seconds) if done is not None else {}
    if plan.change is not None:
        with (
            lease(job.gpus) as devices,
            job.session.open_sandbox(prepared, run=job.record.run_id, devices=devices) as sandbox,
        ):
            sandbox.write(sandbox.tree, plan.change)
            place = Place(entry, prepared, job.session, job.record.run_id, devices, job.record.device_class)
            _stages(job, record, plan, place, sandbox, shown, stage_seconds)
    earlier = done.total_seconds if done is not None else 0.0
    times = StageTimes(total_seconds=earlier + time.monotonic() - started, stage_seconds=stage_seconds)
    write_model(job.folder.times, times)
    job.folder.finished_stages.unlink(missing_ok=True)
    return False


def _stages(
    job: Job,
    record: TaskRecord,
    plan: PatchPlan,
    place: Place,
    sandbox: Sandbox,
    shown: Progress,
    seconds: dict[StageName, float],
) -> None:
    """Run the stages in order; the first that does not pass is the last that runs. Those in `seconds` came to their
    end before an interruption: their raw files are graded."""
    for stage in record.stages:
        raw = job.folder.stage(stage)
        if stage in seconds:
            shown.step(record.task.instance_id, f"{stage} (kept from before)")
            result = GRADERS[stage](record, raw)
        else:
            if stage not in GO_ON:
                shutil.rmtree(raw, ignore_errors=True)
            shown.step(record.task.instance_id, stage)
            begun = time.monotonic()
            result = STAGE_RUNNERS[stage](record, plan, place, sandbox, raw)
            seconds[stage] = time.monotonic() - begun
        if result.status == "error" and not result.tampered:
            raise StageBroken(f"{stage}: {result.reason}")
        so_far = StageTimes(total_seconds=sum(seconds.values()), stage_seconds=seconds)
        write_model(job.folder.finished_stages, so_far)
        if result.status != "passed" or result.tampered:
            return


def _key(job: Job, prediction: Prediction, environment_digest: str) -> ResumeKey:
    return ResumeKey(
        patch_sha256=hydration.sha256(prediction.patch_bytes),
        task_digest=job.task_digest,
        environment_digest=environment_digest,
        harness_version=__version__,
        device_class=job.record.device_class,
        stages=job.record.stages,
        profile=job.record.profile,
    )
