"""One strict application by git, and whether the tree it made is what the patch says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.patch_binary import decoded
from harness.patch_names import as_bytes, as_text, shown, unsafe_path
from harness.patch_replay import images
from harness.patch_result import PatchResult, TouchedPath
from harness.patch_text import Section
from harness.symlinks import escaping_link
from rtb.git_objects import GITLINK, SYMLINK, GitObjects, TreeDifference


@dataclass(frozen=True, slots=True)
class Answer:
    """What git made of a patch: a tree, or what it said; and hunks it found away from their line."""

    tree: str | None
    said: str
    notes: tuple[str, ...]


def git_apply(objects: GitObjects, base_tree: str, patch: bytes) -> Answer:
    """Strict `git apply` to an index that holds the base tree. Raises GitTooSlow when it does not end in time."""
    index = objects.new_index(base_tree)
    done = objects.run(["apply", "--cached", "--verbose", "-"], stdin=patch, index=index, check=False)
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    if done.returncode != 0:
        errors = [line.partition(": ")[2] for line in lines if line.startswith(("error: ", "fatal: "))]
        return Answer(None, "git apply refuses it: " + shown("; ".join(errors[:3]).encode()), ())
    notes: list[str] = []
    path = ""
    for line in lines:
        if line.startswith("Checking patch "):
            path = line.removeprefix("Checking patch ").removesuffix("...")
        elif found := re.match(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)", line):
            notes.append(f"{path}: hunk {found[1]} stands at line {found[2]}, {found[3]} from the line it names")
    return Answer(objects.write_tree(index), "", tuple(notes[:50]))


def unlike_the_patch(
    objects: GitObjects,
    base_tree: str,
    sections: Sequence[Section],
    differences: Sequence[TreeDifference],
    *,
    exact: bool,
) -> str:
    """Why a tree is not what the patch says, or "". Paths are compared, and binary contents decoded by ourselves."""
    changed = {item.path: item for item in differences}
    # Names as git may take them: a name without folders, or with one taken off.
    named = {as_text(path) for section in sections for path in (*section.touched, *section.labels)}
    if sections and (stray := [path for path in changed if path not in named]):
        return f"{stray[0]} would change, which the patch does not name"
    for section in sections:
        taken = (*section.touched, *(() if exact else section.labels))
        if _says_change(section) and not any(as_text(path) in changed for path in taken):
            return f"{shown(section.target)} would stay as it is although the patch changes it"
        if section.binary and (reason := _other_bytes(objects, base_tree, section, changed)):
            return f"{shown(section.target)}: {reason}"
    return ""


def _says_change(section: Section) -> bool:
    modes = None not in (section.old_mode, section.new_mode) and section.old_mode != section.new_mode
    made = section.old is None or section.new is None or bool(section.moved)
    return modes or made or any(old != new for old, new in map(images, section.hunks))


def _other_bytes(objects: GitObjects, base_tree: str, section: Section, changed: Mapping[str, TreeDifference]) -> str:
    """Why a binary file is not what the patch's data give, or "". git may pass over a cut binary patch in silence."""
    if section.new is None:
        return ""
    item = changed.get(as_text(section.target))
    source = section.old if section.moved and section.old is not None else section.target
    if item is None or source != section.target:
        old = objects.listing(base_tree).get(as_text(source))
    else:
        old = item.old
    new = old if item is None else item.new
    blobs = objects.blobs(entry.id for entry in (old, new) if entry is not None)
    data = decoded(section.binary, blobs[old.id] if old else b"")
    if isinstance(data, str):
        return data
    return "" if new is not None and data == blobs[new.id] else "the result is not what the binary data give"


def index_notes(sections: Sequence[Section], differences: Sequence[TreeDifference]) -> list[str]:
    """Files whose text was damaged or edited after the diff was made: the old id is the base's, the new one is not
    the result's. git takes such a patch, and so do we, but a reader should know."""
    changed = {item.path: item for item in differences}
    notes = []
    for section in sections:
        item = changed.get(as_text(section.target))
        if section.index is None or item is None or item.old is None or item.new is None:
            continue
        old, new = section.index
        if len(old) >= 7 and item.old.id.startswith(old) and not item.new.id.startswith(new):
            notes.append(
                f"{item.path}: the result is not what the index line names: the text was changed after the diff"
            )
    return notes[:50]


def applied_result(
    objects: GitObjects,
    base_tree: str,
    tree: str,
    differences: Sequence[TreeDifference],
    methods: tuple[str, ...],
    dropped: tuple[tuple[str, str], ...],
    notes: tuple[str, ...],
) -> PatchResult | str:
    """The value for a tree that was made; unsafe entries in it reject the patch whole."""
    for item in differences:
        if item.new is not None and (why := unsafe_path(as_bytes(item.path))):
            return PatchResult("unsafe_rejected", reason=f"the patch makes {item.path!r}: {why}")
        if GITLINK in (item.old.mode if item.old else 0, item.new.mode if item.new else 0):
            return f"{item.path} is a submodule pointer, which has no bytes to carry"
    if any(item.new is not None and item.new.mode == SYMLINK for item in differences):
        new = [item.path for item in differences if item.new is not None and item.new.mode == SYMLINK]
        if reason := escaping_link(_links(objects, tree), new):
            return PatchResult("unsafe_rejected", reason=reason)
    if not differences:
        notes = (*notes, "the patched tree equals the base tree")
    touched = tuple(
        TouchedPath(item.path, item.old.mode if item.old else None, item.new.mode if item.new else None)
        for item in differences
    )
    change = objects.change(base_tree, tree)
    return PatchResult("applied", "+".join(methods), "", tree, touched, dropped, notes, change)


def _links(objects: GitObjects, tree: str) -> dict[str, bytes]:
    links = {path: entry.id for path, entry in objects.listing(tree).items() if entry.mode == SYMLINK}
    blobs = objects.blobs(links.values())
    return {path: blobs[name] for path, name in links.items()}
