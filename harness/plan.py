"""What is laid into the sandbox for one prediction, decided on the host before any of its code runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.audit import audit
from harness.controls import NO_PATCH
from harness.patch_result import PatchResult
from harness.patching import apply_patch
from harness.trusted_tree import trusted_tree
from harness.twin import plan_twin
from rtb import hydration
from rtb.git_objects import GitObjects, TreeEntry
from rtb.recipe import read_recipe
from rtb.result import AuditFinding, PatchFactsApplied
from rtb.run import TwinPlan
from rtb.sandbox import Change
from rtb.suite import TaskEntry
from rtb.task import Task

_FILES = (0o100644, 0o100755)


@dataclass(frozen=True)
class PatchPlan:
    """`change` turns the base tree into the model's tree with the trusted tests over it; None: nothing to run.

    `trusted` names every path of that tree that the model's patch did not write. `twin_change` makes the tree with
    the targets made wrong (None: nothing could be), and `twin` says what that is.
    """

    facts: PatchFactsApplied
    audit: tuple[AuditFinding, ...]
    change: Change | None
    trusted: frozenset[str]
    twin: TwinPlan | None = None
    twin_change: Change | None = None


def patch_plan(
    entry: TaskEntry, objects: GitObjects, base_tree: str, patch: bytes, *, control: str | None
) -> PatchPlan:
    """Apply a patch on the host, lay the trusted tests over it, and audit it.

    Raises ExpectedError when the task's own test patch does not apply, GitFailed / OutOfSpace for machine faults.
    """
    if control == "base":
        result = PatchResult("applied", method=NO_PATCH, tree=base_tree)
    else:
        result = apply_patch(objects, base_tree, patch)
    if result.tree is None:
        return PatchPlan(_facts(result, patch, ()), (), None, frozenset())
    task = entry.task
    test_files = {*task.patches.test.paths, *(task.unit.files if task.unit else ())}
    laid = trusted_tree(
        objects,
        base_tree=base_tree,
        patched_tree=result.tree,
        test_patch=hydration.patches_of(entry).test,
        test_globs=entry.split_rules.tests,
        not_test_globs=entry.split_rules.not_tests,
        test_files=sorted(test_files),
        import_roots=task.environment.import_roots,
        installed=read_recipe(entry).installed,
    )
    written = {item.path for item in result.touched}
    # A path that was put back from the trusted side is the base's or the test patch's again.
    untrusted = written - set(laid.restored) - set(task.patches.test.paths)
    twin, twin_change = _twin(task, objects, base_tree, laid.tree, written)
    return PatchPlan(
        facts=_facts(result, patch, laid.flags),
        audit=_audit(entry, objects, base_tree, result),
        change=laid.change,
        trusted=frozenset(set(objects.listing(laid.tree)) - untrusted),
        twin=twin,
        twin_change=twin_change,
    )


def _twin(
    task: Task, objects: GitObjects, base_tree: str, tree: str, written: Collection[str]
) -> tuple[TwinPlan, Change | None]:
    """The sabotage twin of a laid tree."""
    listing = objects.listing(tree)
    wanted = {*(target.path for target in task.targets), *(path for path in written if path.endswith(".py"))}
    there = sorted(path for path in wanted if path in listing and listing[path].mode in _FILES)
    contents = objects.blobs(listing[path].id for path in there)
    plan, files = plan_twin(task, {path: contents[listing[path].id] for path in there}, written)
    if not files:
        return plan, None
    names = objects.store(list(files.values()))
    entries = {path: TreeEntry(listing[path].mode, name) for path, name in zip(files, names, strict=True)}
    return plan, objects.change(base_tree, objects.with_entries(tree, entries))


def _facts(result: PatchResult, patch: bytes, flags: tuple[str, ...]) -> PatchFactsApplied:
    reason = result.reason or "; ".join(result.notes)
    return PatchFactsApplied(
        status=result.status,
        method=result.method,
        reason=reason,
        paths=tuple(item.path for item in result.touched),
        dropped=result.dropped,
        sha256=hydration.sha256(patch),
        flags=flags,
    )


def _audit(entry: TaskEntry, objects: GitObjects, base_tree: str, result: PatchResult) -> tuple[AuditFinding, ...]:
    """Findings over the touched files, before and after."""
    assert result.tree is not None
    before, after = objects.listing(base_tree), objects.listing(result.tree)
    paths = [item.path for item in result.touched]
    old = {path: before[path].id for path in paths if path in before}
    new = {path: after[path].id for path in paths if path in after}
    contents = objects.blobs([*old.values(), *new.values()])
    return audit(
        {path: contents[name] for path, name in old.items()},
        {path: contents[name] for path, name in new.items()},
        entry.task.targets,
    )
