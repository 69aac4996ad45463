"""The unit stage as an evaluation calls it: the tests, traced where the task is about kernels; then, when they
passed, the same tests on the sabotage twin. Graded from the stored files alone."""

from __future__ import annotations

from pathlib import Path

from harness.coverage import decide_coverage
from harness.opened_sides import Place
from harness.plan import PatchPlan
from harness.stages.unit import execute_unit, grade_unit, read_evidence
from harness.trace import lay_tracer, read_trace
from harness.twin import decide_twin, with_twin
from rtb.result import StageResult
from rtb.run import TaskRecord, broken
from rtb.sandbox import Sandbox
from rtb.task import Task

_LAUNCHES = "launches.jsonl"


def twin_folder(raw: Path) -> Path:
    """Where the raw files of the twin's run are kept."""
    return raw / "twin"


def run_proven(record: TaskRecord, plan: PatchPlan, place: Place, sandbox: Sandbox, raw: Path) -> StageResult:
    """Run the tests, then the twin's when they passed; grade both. Raises what the sandbox raises."""
    assert record.tests is not None
    _execute(record.task, plan, sandbox, raw)
    result = grade_unit(record.task, record.tests, raw)
    if result.status != "passed" or result.tampered:
        return result
    if plan.twin_change is not None:
        with place.session.open_sandbox(place.prepared, run=place.run, devices=place.devices) as other:
            other.write(other.tree, plan.twin_change)
            _execute(record.task, plan, other, twin_folder(raw), stop=True)
    return grade_proven(record, raw)


def _execute(task: Task, plan: PatchPlan, sandbox: Sandbox, raw: Path, stop: bool = False) -> None:
    """One run. Both runs of a pair are traced, so that the twin looks like the other."""
    if not _about_kernels(task):
        execute_unit(task, sandbox, raw, trusted=plan.trusted, stop_at_failure=stop)
        return
    trace = lay_tracer(sandbox)
    execute_unit(trace.task(task), sandbox, raw, trusted=plan.trusted, stop_at_failure=stop)
    trace.collect(raw / _LAUNCHES)


def _about_kernels(task: Task) -> bool:
    return any(target.kind == "triton_kernel" for target in task.targets)


def grade_proven(record: TaskRecord, raw: Path) -> StageResult:
    """Grade a stored unit stage with its twin. Raises StoredRunBroken."""
    if record.tests is None:
        raise broken(raw.parent, "its record holds no test ids")
    result = grade_unit(record.task, record.tests, raw)
    if result.status != "passed" or result.tampered or record.twin is None:
        return result
    evidence = read_evidence(twin_folder(raw)) if record.twin.sabotaged else None
    twin = decide_twin(record.twin, record.tests, evidence)
    if twin is None:
        return result.model_copy(
            update={"status": "error", "reason": "the sabotage twin's tests could not be started"}
        )
    trace = read_trace(raw / _LAUNCHES)
    coverage = decide_coverage(record.task.targets, trace) if _about_kernels(record.task) else None
    return with_twin(result, twin, coverage, record.tests)
