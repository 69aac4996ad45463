"""The sabotage twin: a prediction's own tree with its targets made wrong. Tests that pass there too prove nothing.

It finds what no look at the tests' own process can: results that do not come from the target (a library's function,
a table, a copy of the reference, a kernel launched beside a fallback), values that compare equal to anything, and
reports or records that were forged. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.evidence import UnitEvidence
from harness.grading import machine_fault
from rtb.result import CoverageFacts, StageResult, TwinFacts
from rtb.run import TwinPlan
from rtb.sabotage import CannotSabotage, Sabotage, sabotage_files
from rtb.task import Target, Task, TestIds
from rtb.triton_source import JITTED, TritonSource, read_source

KIND: Sabotage = "scale"


def plan_twin(task: Task, files: Mapping[str, bytes], touched: Collection[str]) -> tuple[TwinPlan, dict[str, bytes]]:
    """What to make wrong in a patched tree, and the changed files.

    `files` holds the target files and the touched Python files of the tree; `touched` names the latter. A task about
    kernels has its kernels made wrong, never their launchers: a fallback in the launcher would be spoiled with them.
    Where no target kernel is left or can be changed, every kernel of those files is taken.
    """
    kernels = [target for target in task.targets if target.kind == "triton_kernel"]
    try:
        made = sabotage_files(files, kernels or task.targets, KIND)
        return TwinPlan(sabotaged=made.done, impossible=made.impossible), made.files
    except CannotSabotage as error:
        named = "; ".join(f"{target.path}::{target.name}" for target in kernels or task.targets)
        impossible = {named: str(error)}
    others = _kernels_of(files, {*touched, *(target.path for target in kernels)}) if kernels else []
    if not others:
        return TwinPlan(sabotaged=(), impossible=impossible), {}
    try:
        made = sabotage_files(files, others, KIND)
    except CannotSabotage as error:
        return TwinPlan(sabotaged=(), impossible={**impossible, "other kernels": str(error)}), {}
    return TwinPlan(sabotaged=made.done, impossible={**impossible, **made.impossible}), made.files


def _kernels_of(files: Mapping[str, bytes], paths: Collection[str]) -> list[Target]:
    found = []
    for path in sorted(paths):
        source = read_source(files[path], path) if path in files else None
        if isinstance(source, TritonSource):
            found += [
                Target(path=path, name=item.name, index=item.index, kind="triton_kernel", change="modified")
                for item in source.functions
                if item.role in JITTED
            ]
    return found


def decide_twin(plan: TwinPlan, tests: TestIds, evidence: UnitEvidence | None) -> TwinFacts | None:
    """What the twin's run shows; `evidence` is None when nothing could be made wrong. None: the machine failed."""
    if evidence is None:
        return TwinFacts(state="impossible", reason="; ".join(plan.impossible.values()) or "no target")
    if machine_fault(evidence) is not None:
        return None
    records, expected = evidence.records, set(tests.expected)
    what = ", ".join(plan.sabotaged)
    failed = next(
        (name for name, status in records.statuses.items() if name in expected and status != "PASSED"), None
    )
    failed = failed or (records.running if records.running in expected else None)
    if failed is not None:
        reason, state = f"with {what} made wrong, {failed} fails", "noticed"
    elif not records.tests:
        reason, state = f"with {what} made wrong, no test was even begun", "unnoticed"
    else:
        reason, state = f"with {what} made wrong on purpose, the tests pass all the same", "unnoticed"
    return TwinFacts.model_validate({"state": state, "reason": reason, "sabotaged": plan.sabotaged})


def with_twin(unit: StageResult, twin: TwinFacts, coverage: CoverageFacts | None, tests: TestIds) -> StageResult:
    """A passed unit stage with what its twin and its launches say.

    They decide only where gold itself was seen to be noticed (`tests.twin`): elsewhere the tests may be blind to the
    target, which is the task's fault. What is not proven is said in the reason, never silently passed.
    """
    facts = unit.model_copy(update={"twin": twin, "coverage": coverage})
    uncovered = coverage.reason if coverage is not None and coverage.state == "uncovered" else None
    if twin.state == "noticed":
        return facts
    doubt = "; ".join(text for text in (uncovered, twin.reason) if text)
    # Gold's kernels could be made wrong: kernels of which none stores a result are no answer to the same task.
    idle = twin.state == "impossible" and coverage is not None
    if (twin.state == "unnoticed" or uncovered or idle) and tests.twin == "noticed":
        reason = f"the passes do not come from the target: {doubt}"
        return facts.model_copy(update={"status": "failed", "reason": reason})
    return facts.model_copy(
        update={"reason": f"{unit.reason}; not proven: {doubt}", "flags": (*unit.flags, f"not_proven: {doubt}")}
    )
