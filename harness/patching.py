"""A model's patch (bytes) onto a tree, provably: strict first, then with transport damage undone, never by guessing.

Works on git objects of the host, so that no work tree, filter or configuration has a say, and a tree is never half
patched: either a whole new tree is made, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.patch_attempt import applied_result, git_apply, index_notes, unlike_the_patch
from harness.patch_binary import swollen, swollen_delta
from harness.patch_names import as_text, shown
from harness.patch_repair import (
    Mended,
    Variant,
    carries_nothing,
    created_without_prefix,
    damaged_headers,
    mended,
    relabelled,
    rendered,
    stray_reason,
    variants,
)
from harness.patch_replay import Misfit
from harness.patch_result import PatchResult, failed, unsafe
from harness.patch_text import ParsedPatch, Section, parse
from harness.symlinks import link_above
from rtb.git_objects import GITLINK, GitObjects, GitTooSlow, TreeEntry

MAX_PATCH_BYTES = 20 * 1024**2
MAX_PATCH_LINES = 600_000
MAX_PATCH_PARTS = 50_000  # files and hunks
MAX_REPAIRED_HUNKS = 20_000


def apply_patch(
    objects: GitObjects, base_tree: str, patch: bytes, *, limit_bytes: int = MAX_PATCH_BYTES
) -> PatchResult:
    """Apply a patch to a tree of `objects`. Raises GitFailed or OutOfSpace for faults of the machine only."""
    if not patch.strip():
        return PatchResult("empty_patch", reason="the patch holds nothing but white space")
    if len(patch) > limit_bytes:
        return failed(f"the patch has {len(patch)} bytes, more than the limit of {limit_bytes}")
    if (lines := patch.count(b"\n")) > MAX_PATCH_LINES:
        return failed(f"the patch has {lines} lines, more than the limit of {MAX_PATCH_LINES}")
    parts = patch.count(b"\ndiff --git ") + patch.count(b"\n@@ -")
    if parts > MAX_PATCH_PARTS:
        return failed(f"the patch has {parts} files and hunks, more than the limit of {MAX_PATCH_PARTS}")
    if reason := swollen(patch):
        return failed(reason)
    try:
        return _applied(objects, base_tree, patch)
    except GitTooSlow as error:
        return failed(f"the patch could not be applied in time ({error})")


def _applied(objects: GitObjects, base_tree: str, patch: bytes) -> PatchResult:
    parsed = parse(patch)
    if reason := unsafe(parsed):
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
    return first or failed(said)


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
        if reason := swollen_delta(section.binary):
            return f"{shown(section.target)}: {reason}"
        foreign = not section.git and section.old is None and not section.labels[1].startswith((b"a/", b"b/"))
        if foreign and created_without_prefix(section, objects.listing(base_tree)):
            return f"{shown(section.labels[1])} is named without the b/ in front"
    answer = git_apply(objects, base_tree, patch)
    if answer.tree is None:
        return answer.said
    differences = objects.differences(base_tree, answer.tree)
    if reason := unlike_the_patch(objects, base_tree, parsed.sections, differences, exact=False):
        return reason
    notes = (*answer.notes, *index_notes(parsed.sections, differences))
    return applied_result(objects, base_tree, answer.tree, differences, ("strict",), (), notes)


def _repaired(objects: GitObjects, base_tree: str, variant: Variant, said: str) -> PatchResult:
    """Undo the damage, apply strictly, and compare the tree with what the hunks give when laid on by ourselves."""
    parsed = parse(variant.text)
    if reason := unsafe(parsed):
        return PatchResult("unsafe_rejected", reason=reason)
    if not parsed.sections:
        return failed(f"no unified diff in the text; {said}" if said else "no unified diff in the text")
    if sum(len(section.hunks) for section in parsed.sections) > MAX_REPAIRED_HUNKS:
        return failed(said or f"the patch has more than {MAX_REPAIRED_HUNKS} hunks and needs repair")
    listing = objects.listing(base_tree)
    if reason := link_above(parsed.sections, listing):
        return PatchResult("unsafe_rejected", reason=reason)
    if reason := stray_reason(parsed) or next(filter(None, (swollen_delta(p.binary) for p in parsed.sections)), ""):
        return failed(reason)
    dropped = tuple((as_text(part.target), why) for part in parsed.sections if (why := carries_nothing(part)))
    kept = [part for part in parsed.sections if not carries_nothing(part)]
    if not kept:
        return failed(f"nothing of the patch can be carried: {dropped[0][0]} is {dropped[0][1]}")
    fitted = _fitted(objects, listing, kept)
    if isinstance(fitted, Misfit):
        return failed(fitted.reason)
    repairs = dict.fromkeys((*variant.repairs, *(name for part in fitted for name in part.repairs)))
    if dropped:
        repairs["dropped-sections"] = None
    answer = git_apply(objects, base_tree, b"".join(rendered(part.section) for part in fitted))
    if answer.tree is None:
        return failed(said or answer.said)
    differences = objects.differences(base_tree, answer.tree)
    sections = [part.section for part in fitted]
    reason = unlike_the_patch(objects, base_tree, sections, differences, exact=True)
    reason = reason or _unproven(objects, listing, fitted, objects.listing(answer.tree))
    if reason:
        return failed(reason)
    methods = tuple(repairs) or ("normalised",)
    result = applied_result(objects, base_tree, answer.tree, differences, methods, dropped, answer.notes)
    return result if isinstance(result, PatchResult) else failed(result)


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
