"""A model's patch (bytes) onto a tree, provably: strict first, then with transport damage undone, never by guessing.

Works on git objects of the host, so that no work tree, filter or configuration has a say, and a tree is never half
patched: either a whole new tree is made, or none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.patch_binary import decoded
from harness.patch_names import as_bytes, as_text, shown, unsafe_path
from harness.patch_repair import (
    Mended,
    Variant,
    carries_nothing,
    damaged_headers,
    mended,
    relabelled,
    rendered,
    stray_reason,
    variants,
)
from harness.patch_replay import Misfit
from harness.patch_text import ParsedPatch, Section, parse
from harness.symlinks import escaping_link, link_above
from rtb.git_objects import GITLINK, SYMLINK, GitObjects, GitTooSlow, TreeDifference, TreeEntry
from rtb.sandbox import Change

PatchStatus = Literal["applied", "apply_failed", "empty_patch", "unsafe_rejected"]
MAX_PATCH_BYTES = 20 * 1024**2
MAX_REPAIRED_HUNKS = 20_000


@dataclass(frozen=True, slots=True)
class TouchedPath:
    """A path the patch changed. Modes as git has them (0o100644, 0o100755, 0o120000); None: not there."""

    path: str
    old_mode: int | None
    new_mode: int | None


@dataclass(frozen=True, slots=True)
class PatchResult:
    """What became of a patch. A bad patch is a value.

    `method`: "strict", or the repairs joined by "+" ("final-newline", "blank-context", "recount", "crlf",
    "crlf-headers", "missing-cr", "colour", "paths", "dropped-sections"); "" when not applied. `reason`: one sentence
    that names file, hunk and line when not applied, else "". `tree`: the tree's id, readable while the objects are
    borrowed, when applied. `dropped`: (path, why) of sections that carry nothing. `notes`: what a reader should know
    of a patch that was applied, such as hunks found away from the line they name. `change`: base tree to `tree`.
    """

    status: PatchStatus
    method: str = ""
    reason: str = ""
    tree: str | None = None
    touched: tuple[TouchedPath, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    change: Change | None = None


def apply_patch(
    objects: GitObjects, base_tree: str, patch: bytes, *, limit_bytes: int = MAX_PATCH_BYTES
) -> PatchResult:
    """Apply a patch to a tree of `objects`. Raises GitFailed or OutOfSpace for faults of the machine only."""
    if not patch.strip():
        return PatchResult("empty_patch", reason="the patch holds nothing but white space")
    if len(patch) > limit_bytes:
        return _failed(f"the patch has {len(patch)} bytes, more than the limit of {limit_bytes}")
    try:
        return _applied(objects, base_tree, patch)
    except GitTooSlow as error:
        return _failed(f"the patch could not be applied in time ({error})")


def _failed(reason: str) -> PatchResult:
    return PatchResult("apply_failed", reason=reason)


def _applied(objects: GitObjects, base_tree: str, patch: bytes) -> PatchResult:
    parsed = parse(patch)
    if reason := _unsafe(parsed):
        return PatchResult("unsafe_rejected", reason=reason)
    said = ""
    if not damaged_headers(patch):
        strict = _strict(objects, base_tree, patch, parsed)
        if isinstance(strict, PatchResult):
            return strict
        said = strict
    first: PatchResult | None = None
    for variant in variants(patch):
        result = _repaired(objects, base_tree, variant, said)
        if result.status in ("applied", "unsafe_rejected"):
            return result
        first = first or result
    return first or _failed(said)


def _unsafe(parsed: ParsedPatch) -> str:
    """Why a patch is refused before any tool runs, or ""."""
    for section in parsed.sections:
        for path in {section.target, *section.touched, *((section.old,) if section.git and section.old else ())}:
            # Without `diff --git` the name as written counts too: it may be taken as it stands.
            names = (path,) if section.git else (path, section.labels[0 if section.new is None else 1])
            for name in names:
                if name != b"/dev/null" and (why := unsafe_path(name)):
                    return f"line {section.line} of the patch names '{shown(name)}': {why}"
        mode = section.new_mode
        if mode is not None and (mode & 0o7000 or mode >> 12 not in (0o10, 0o12, 0o16)):
            return f"line {section.line} of the patch gives '{shown(section.target)}' the mode {mode:o}"
    return ""


def _strict(objects: GitObjects, base_tree: str, patch: bytes, parsed: ParsedPatch) -> PatchResult | str:
    """Apply the text as it is. A string says why that is no result to trust."""
    held_back = next((why for section in parsed.sections if (why := carries_nothing(section))), "")
    if held_back:
        return held_back
    if reason := stray_reason(parsed):
        return reason
    for section in parsed.sections:
        if any(hunk.fault == "long" for hunk in section.hunks):
            return f"a hunk of {shown(section.target)} has more lines than its header says"
    answer = _git_apply(objects, base_tree, patch)
    if answer.tree is None:
        return answer.said
    differences = objects.differences(base_tree, answer.tree)
    if reason := _unlike_the_patch(objects, parsed.sections, differences, exact=False):
        return reason
    notes = (*answer.notes, *_index_notes(parsed.sections, differences))
    return _result(objects, base_tree, answer.tree, differences, ("strict",), (), notes)


@dataclass(frozen=True, slots=True)
class _Answer:
    tree: str | None
    said: str
    notes: tuple[str, ...]


def _git_apply(objects: GitObjects, base_tree: str, patch: bytes) -> _Answer:
    index = objects.new_index(base_tree)
    done = objects.run(["apply", "--cached", "--verbose", "-"], stdin=patch, index=index, check=False)
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    if done.returncode != 0:
        errors = [line.partition(": ")[2] for line in lines if line.startswith(("error: ", "fatal: "))]
        return _Answer(None, "git apply refuses it: " + shown("; ".join(errors[:3]).encode()), ())
    notes: list[str] = []
    path = ""
    for line in lines:
        if line.startswith("Checking patch "):
            path = line.removeprefix("Checking patch ").removesuffix("...")
        elif found := re.match(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)", line):
            notes.append(f"{path}: hunk {found[1]} stands at line {found[2]}, {found[3]} from the line it names")
    return _Answer(objects.write_tree(index), "", tuple(notes[:50]))


def _unlike_the_patch(
    objects: GitObjects, sections: Sequence[Section], differences: Sequence[TreeDifference], *, exact: bool
) -> str:
    """Why a tree is not what the patch says, or "". Paths are compared, and binary contents decoded by ourselves."""
    changed = {item.path: item for item in differences}
    # Names as git may take them: a name without folders, or with one taken off.
    named = {as_text(path) for section in sections for path in (*section.touched, *section.labels)}
    if sections and (stray := [path for path in changed if path not in named]):
        return f"{stray[0]} would change, which the patch does not name"
    for section in sections:
        added = sum(line[:1] == b"+" for hunk in section.hunks for line in hunk.body)
        removed = sum(line[:1] == b"-" for hunk in section.hunks for line in hunk.body)
        taken = (*section.touched, *(() if exact else section.labels))
        if added != removed and not any(as_text(path) in changed for path in taken):
            return f"{shown(section.target)} would stay as it is although the patch changes it"
        if section.binary:
            item = changed.get(as_text(section.target))
            if item is None or item.new is None:
                continue
            ids = [item.new.id, *([item.old.id] if item.old else [])]
            blobs = objects.blobs(ids)
            data = decoded(section.binary, blobs[item.old.id] if item.old else b"")
            if data != blobs[item.new.id]:
                why = data if isinstance(data, str) else "its data are not what its header names"
                return f"{shown(section.target)}: {why}"
    return ""


def _index_notes(sections: Sequence[Section], differences: Sequence[TreeDifference]) -> list[str]:
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


def _result(
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


def _repaired(objects: GitObjects, base_tree: str, variant: Variant, said: str) -> PatchResult:
    """Undo the damage, apply strictly, and compare the tree with what the hunks give when laid on by ourselves."""
    parsed = parse(variant.text)
    if reason := _unsafe(parsed):
        return PatchResult("unsafe_rejected", reason=reason)
    if not parsed.sections:
        return _failed(f"no unified diff in the text; {said}" if said else "no unified diff in the text")
    if sum(len(section.hunks) for section in parsed.sections) > MAX_REPAIRED_HUNKS:
        return _failed(said or f"the patch has more than {MAX_REPAIRED_HUNKS} hunks and needs repair")
    listing = objects.listing(base_tree)
    if reason := link_above(parsed.sections, listing):
        return PatchResult("unsafe_rejected", reason=reason)
    if reason := stray_reason(parsed):
        return _failed(reason)
    dropped = tuple((as_text(part.target), why) for part in parsed.sections if (why := carries_nothing(part)))
    kept = [part for part in parsed.sections if not carries_nothing(part)]
    if not kept:
        return _failed(f"nothing of the patch can be carried: {dropped[0][0]} is {dropped[0][1]}")
    fitted = _fitted(objects, listing, kept)
    if isinstance(fitted, Misfit):
        return _failed(fitted.reason)
    repairs = dict.fromkeys((*variant.repairs, *(name for part in fitted for name in part.repairs)))
    if dropped:
        repairs["dropped-sections"] = None
    answer = _git_apply(objects, base_tree, b"".join(rendered(part.section) for part in fitted))
    if answer.tree is None:
        return _failed(said or answer.said)
    differences = objects.differences(base_tree, answer.tree)
    sections = [part.section for part in fitted]
    reason = _unlike_the_patch(objects, sections, differences, exact=True)
    reason = reason or _unproven(objects, listing, fitted, objects.listing(answer.tree))
    if reason:
        return _failed(reason)
    methods = tuple(repairs) or ("normalised",)
    result = _result(objects, base_tree, answer.tree, differences, methods, dropped, answer.notes)
    return result if isinstance(result, PatchResult) else _failed(result)


def _fitted(
    objects: GitObjects, listing: Mapping[str, TreeEntry], sections: Sequence[Section]
) -> list[Mended] | Misfit:
    """Every section with names, line ends and counts that fit the base tree, or the first that cannot be made to."""
    renamed = [relabelled(section, listing) for section in sections]
    entries = [
        listing.get(as_text(part.old)) if part.old is not None else listing.get(as_text(part.target))
        for part, _ in renamed
    ]
    blobs = objects.blobs(entry.id for entry in entries if entry is not None and entry.mode != GITLINK)
    fitted: list[Mended] = []
    seen: set[bytes] = set()
    for (section, names), entry in zip(renamed, entries, strict=True):
        if seen.intersection(section.touched):
            return Misfit(f"{shown(section.target)} has more than one section in the patch, which needs repair")
        seen.update(section.touched)
        if section.binary:
            fitted.append(Mended(section, None, names))
            continue
        base = blobs.get(entry.id) if entry is not None else None
        answer = mended(section, base, entry.mode if entry is not None else None)
        if isinstance(answer, Misfit):
            return answer
        fitted.append(Mended(answer.section, answer.expected, (*names, *answer.repairs)))
    return fitted


def _unproven(
    objects: GitObjects,
    base: Mapping[str, TreeEntry],
    fitted: Sequence[Mended],
    made: Mapping[str, TreeEntry],
) -> str:
    """Why git's tree is not the proven one, or "". A header whose old id is the base's must tell the new id too."""
    results = {part.section.target: made.get(as_text(part.section.target)) for part in fitted}
    blobs = objects.blobs(entry.id for entry in results.values() if entry is not None)
    for part in fitted:
        section, path = part.section, shown(part.section.target)
        entry = results[section.target]
        if section.new is None:
            if entry is not None:
                return f"{path} would still be there although the patch deletes it"
            continue
        if entry is None or (part.expected is not None and blobs[entry.id] != part.expected):
            return f"{path}: git and our own reading of the patch give different bytes"
        old = base.get(as_text(section.old)) if section.old is not None else None
        known = section.index and old and len(section.index[0]) >= 7 and old.id.startswith(section.index[0])
        if known and section.index and not entry.id.startswith(section.index[1]):
            return f"{path}: the repaired patch gives other bytes than its index line names"
    return ""
