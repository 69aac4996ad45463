"""The sabotage twin: a prediction's own tree with its targets made wrong. Tests that pass there too prove nothing.

It finds what no look at the tests' own process can: results that do not come from the target (a library's function,
a table, a copy of the reference, a kernel launched beside a fallback), values that compare equal to anything, and
reports or records that were forged. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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


def wanted(tests: TestIds) -> frozenset[str] | None:
    """The tests that a prediction's twin must fail, one and all; None where that was not measured with gold."""
    return frozenset(tests.twin_noticed_by) or None


def noticed_by(rounds: Sequence[UnitEvidence]) -> frozenset[str]:
    """Ids that failed on a twin, or in which its process died. A test that was skipped noticed nothing."""
    found = set()
    for evidence in rounds:
        records = evidence.records
        found |= {name for name, status in records.statuses.items() if status in ("FAILED", "ERROR")}
        found |= {records.running} if records.running is not None else set()
    return frozenset(found)


def not_reached(asked: Collection[str], evidence: UnitEvidence) -> frozenset[str]:
    """Of the tests that a round was to run, those that never began because its process died. Empty: it ended well."""
    records = evidence.records
    ended_well = records.finished and records.stopped_by is None
    if ended_well or (not records.tests and records.running is None):
        return frozenset()
    return frozenset(asked) - set(records.statuses) - {records.running}


def with_noticed(tests: TestIds, rounds: Sequence[UnitEvidence]) -> TestIds:
    """tests.json with what gold's own twin showed. Unchanged when the machine failed."""
    if any(machine_fault(evidence) is not None for evidence in rounds):
        return tests
    failed = noticed_by(rounds)
    ids = tuple(name for name in tests.expected if name in failed)
    return tests.model_copy(update={"twin": "noticed" if ids else "unnoticed", "twin_noticed_by": ids})


def decide_twin(plan: TwinPlan, tests: TestIds, rounds: Sequence[UnitEvidence]) -> TwinFacts | None:
    """What the twin's runs show; `rounds` is empty when nothing could be made wrong. None: the machine failed.

    Where it is known which tests notice gold's twin, each of them must notice this one: a test that passes although
    the target is wrong does not look at what the target gives, whatever other tests do.
    """
    if not rounds:
        return TwinFacts(state="impossible", reason="; ".join(plan.impossible.values()) or "no target")
    if any(machine_fault(evidence) is not None for evidence in rounds):
        return None
    what = ", ".join(plan.sabotaged)
    must = wanted(tests)
    failed = noticed_by(rounds) & set(tests.expected)
    if must is None:
        state, reason = _any_noticed(failed, tests, rounds)
    else:
        state, reason = _all_noticed(must, failed, rounds)
    return TwinFacts.model_validate(
        {"state": state, "reason": f"with {what} made wrong{reason}", "sabotaged": plan.sabotaged}
    )


def _any_noticed(failed: Collection[str], tests: TestIds, rounds: Sequence[UnitEvidence]) -> tuple[str, str]:
    if failed:
        return "noticed", f", {next(name for name in tests.expected if name in failed)} fails"
    if not any(evidence.records.tests for evidence in rounds):
        return "unnoticed", ", no test was even begun"
    return "unnoticed", " on purpose, the tests pass all the same"


def _all_noticed(must: Collection[str], failed: Collection[str], rounds: Sequence[UnitEvidence]) -> tuple[str, str]:
    seen = {name for evidence in rounds for name in evidence.records.statuses}
    blind, unseen = sorted((seen & set(must)) - set(failed)), sorted(set(must) - seen - set(failed))
    if blind:
        of_all = "the tests" if len(blind) == len(must) else f"{len(blind)} of {len(must)} tests that must notice it"
        return "unnoticed", f" on purpose, {of_all} pass all the same, first {blind[0]}"
    if unseen and not seen and not failed:
        return "unnoticed", ", no test was even begun"
    if unseen:
        return "unnoticed", f", the tests ended before {unseen[0]} ({len(unseen)} of {len(must)} were not run)"
    return "noticed", f", all {len(must)} tests fail that fail with gold made wrong"


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
