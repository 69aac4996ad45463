"""Controls: predictions whose answer is known. gold must pass; base (no patch) and sabotage must not."""

from __future__ import annotations

from rtb import hydration, sabotage
from rtb.base_tree import BaseTree
from rtb.errors import ExpectedError
from rtb.git_objects import GitObjects, TreeEntry, borrow_objects
from rtb.prediction import Prediction
from rtb.suite import TaskEntry

NO_PATCH = "none: the base control has no patch"


def control(name: str, entry: TaskEntry, base: BaseTree) -> Prediction:
    """The prediction of a control for one task. Raises ExpectedError when the task allows no sabotage."""
    if name == "base":
        return _prediction(name, entry, b"")
    if name == "gold":
        return _prediction(name, entry, hydration.patches_of(entry).gold)
    return sabotaged(entry, base, "scale")


def sabotaged(
    entry: TaskEntry, base: BaseTree, kind: sabotage.Sabotage, effort: sabotage.Effort = sabotage.CPU_EFFORT
) -> Prediction:
    """The sabotage of one kind. Raises CannotSabotage when no target allows it."""
    gold = hydration.patches_of(entry).gold
    with borrow_objects(base.path) as objects:
        return _prediction("sabotage", entry, _sabotage(objects, entry, base, gold, kind, effort))


def _prediction(name: str, entry: TaskEntry, patch: bytes) -> Prediction:
    text = patch.decode("utf-8", "surrogateescape")
    return Prediction(instance_id=entry.instance_id, model_name_or_path=name, model_patch=text)


def _sabotage(
    objects: GitObjects,
    entry: TaskEntry,
    base: BaseTree,
    gold: bytes,
    kind: sabotage.Sabotage,
    effort: sabotage.Effort,
) -> bytes:
    """The gold patch with every target's results made wrong, as one patch against base."""
    index = objects.new_index(base.tree)
    objects.run(["apply", "--cached", "-"], stdin=gold, index=index)
    tree = objects.write_tree(index)
    listing = objects.listing(tree)
    paths = sorted({target.path for target in entry.task.targets})
    if missing := [path for path in paths if path not in listing]:
        raise ExpectedError(f"{entry.instance_id}: target file {missing[0]} is not in the gold tree; mend task.json")
    contents = objects.blobs(listing[path].id for path in paths)
    files = {path: contents[listing[path].id] for path in paths}
    made = sabotage.sabotage_files(files, entry.task.targets, kind, effort)
    ids = objects.store(list(made.files.values()))
    changed = {path: TreeEntry(listing[path].mode, name) for path, name in zip(made.files, ids, strict=True)}
    wrong = objects.with_entries(tree, changed)
    arguments = ["diff-tree", "-p", "-r", "--binary", "--full-index", "--no-color", "--no-renames", base.tree, wrong]
    return objects.run(arguments).stdout
