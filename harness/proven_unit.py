"""The unit stage as an evaluation calls it: the tests, traced where the task is about kernels; then, when they
passed, the same tests on the sabotage twin. Graded from the stored files alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.coverage import decide_coverage
from harness.evidence import UnitEvidence
from harness.opened_sides import Place
from harness.plan import PatchPlan
from harness.stages.unit import execute_unit, grade_unit, read_evidence
from harness.trace import lay_tracer, read_trace
from harness.twin import decide_twin, not_reached, wanted, with_twin
from rtb.result import StageResult
from rtb.run import TaskRecord, broken
from rtb.sandbox import Change, Sandbox
from rtb.task import Task

_LAUNCHES = "launches.jsonl"
# A twin whose process dies in a test is started again for the rest, so often in all.
ROUNDS = 4


def twin_folder(raw: Path, number: int = 1) -> Path:
    """Where the raw files of the twin's run are kept; more than one when its process died in a test."""
    return raw / ("twin" if number == 1 else f"twin-{number}")


def run_proven(record: TaskRecord, plan: PatchPlan, place: Place, sandbox: Sandbox, raw: Path) -> StageResult:
    """Run the tests, then the twin's when they passed; grade both. Raises what the sandbox raises."""
    assert record.tests is not None
    with _opening(place, plan.twin_change) as twin:
        _execute(record.task, plan, sandbox, raw)
        result = grade_unit(record.task, record.tests, raw)
        if result.status == "passed" and not result.tampered and plan.twin_change is not None:
            run_twin(record.task, plan, twin(), raw, wanted(record.tests))
    return _with_proof(record, raw, result)


@contextmanager
def _opening(place: Place, change: Change | None) -> Iterator[Callable[[], Sandbox]]:
    """Opens the twin's sandbox while the tests run: what is given waits for it, and raises what opening it raised."""
    with ExitStack() as stack:

        def opened() -> Sandbox:
            assert change is not None
            sandbox = stack.enter_context(
                place.session.open_sandbox(place.prepared, run=place.run, devices=place.devices)
            )
            sandbox.write(sandbox.tree, change)
            return sandbox

        # Left before the stack is closed: nothing can be opened after that.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="twin") as pool:
            future = pool.submit(opened) if change is not None else None

            def wait() -> Sandbox:
                assert future is not None
                return future.result()

            yield wait


def run_twin(task: Task, plan: PatchPlan, sandbox: Sandbox, raw: Path, only: Collection[str] | None) -> None:
    """Run the tests on a twin that is laid already. `only`: the ids that matter; None stops at the first failure."""
    left = only
    for number in range(1, ROUNDS + 1):
        folder = twin_folder(raw, number)
        _execute(task, plan, sandbox, folder, stop=only is None, only=left)
        if left is None:
            return
        left = not_reached(left, read_evidence(folder))
        if not left:
            return


def twin_evidence(raw: Path) -> tuple[UnitEvidence, ...]:
    """The stored rounds of a twin. Raises StoredRunBroken when the first is missing or one is not as it was kept."""
    more = [twin_folder(raw, number) for number in range(2, ROUNDS + 1)]
    return (read_evidence(twin_folder(raw)), *(read_evidence(folder) for folder in more if folder.is_dir()))


def _execute(
    task: Task,
    plan: PatchPlan,
    sandbox: Sandbox,
    raw: Path,
    *,
    stop: bool = False,
    only: Collection[str] | None = None,
) -> None:
    """One run. Both runs of a pair are traced, so that the twin looks like the other."""
    if not _about_kernels(task):
        execute_unit(task, sandbox, raw, trusted=plan.trusted, stop_at_failure=stop, only=only)
        return
    trace = lay_tracer(sandbox)
    execute_unit(trace.task(task), sandbox, raw, trusted=plan.trusted, stop_at_failure=stop, only=only)
    trace.collect(raw / _LAUNCHES)


def _about_kernels(task: Task) -> bool:
    return any(target.kind == "triton_kernel" for target in task.targets)


def grade_proven(record: TaskRecord, raw: Path) -> StageResult:
    """Grade a stored unit stage with its twin. Raises StoredRunBroken."""
    if record.tests is None:
        raise broken(raw.parent, "its record holds no test ids")
    return _with_proof(record, raw, grade_unit(record.task, record.tests, raw))


def _with_proof(record: TaskRecord, raw: Path, result: StageResult) -> StageResult:
    """A graded run of the tests with what the stored twin and the launches say."""
    if result.status != "passed" or result.tampered or record.twin is None:
        return result
    assert record.tests is not None
    twin = decide_twin(record.twin, record.tests, twin_evidence(raw) if record.twin.sabotaged else ())
    if twin is None:
        return result.model_copy(
            update={"status": "error", "reason": "the sabotage twin's tests could not be started"}
        )
    trace = read_trace(raw / _LAUNCHES)
    coverage = decide_coverage(record.task.targets, trace) if _about_kernels(record.task) else None
    return with_twin(result, twin, coverage, record.tests)
