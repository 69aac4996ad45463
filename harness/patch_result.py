"""What became of a patch, and what is refused before any tool runs. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.patch_names import shown, unsafe_path
from harness.patch_text import ParsedPatch
from rtb.sandbox import Change

PatchStatus = Literal["applied", "apply_failed", "empty_patch", "unsafe_rejected"]


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


def failed(reason: str) -> PatchResult:
    """A patch that was not applied, and why."""
    return PatchResult("apply_failed", reason=reason)


def unsafe(parsed: ParsedPatch) -> str:
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
