"""Transport damage of a patch text, undone. Every repair is line by line and keeps what the patch says: none of them
looks for a likely place, and what they give is applied strictly and proven afterwards. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.patch_names import as_text, quoted, shown
from harness.patch_replay import Misfit, Replay, replay
from harness.patch_text import HUNK, Hunk, ParsedPatch, Section

SGR = rb"\x1b\[[0-9;]*m"
_COLOURED_HEADER = re.compile(rb"(?m)^(?:" + SGR + rb")+(?:diff --git |@@ -|--- )")
_TRAILING_BLANKS = re.compile(SGR + rb"(?:" + SGR + rb")?([ \t\r]+)" + SGR + rb"$")
_COLOURED_LINE = re.compile(rb"(?:" + SGR + rb")*([ +-]?)(?:" + SGR + rb")*(.*?)(?:" + SGR + rb")*(\r?)$", re.DOTALL)
_HEADER_LINE = re.compile(rb"diff --git |--- |\+\+\+ |@@ -|index [0-9a-f]|new file mode |deleted file mode |rename ")


@dataclass(frozen=True, slots=True)
class Variant:
    """A patch text without some damage; `repairs` names what was done."""

    text: bytes
    repairs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mended:
    """A section that fits the base: what git is to apply, and the bytes it must give (None: left to git)."""

    section: Section
    expected: bytes | None
    repairs: tuple[str, ...]


def variants(patch: bytes) -> tuple[Variant, ...]:
    """The readings of a patch text, the likeliest first. Only the first, without repairs, may be applied as it is;
    it is left out when the text's headers show damage that git would pass over."""
    text = patch
    repairs: tuple[str, ...] = ()
    if _COLOURED_HEADER.search(patch):
        text, repairs = _without_colour(patch), ("colour",)
    if text and not text.endswith(b"\n"):
        repairs = (*repairs, "final-newline")
        text += b"\n"
    if not _headers_end_in_cr(text):
        return (Variant(text, repairs),)
    lines = text.split(b"\n")
    found = []
    body = lines[:-2] if "final-newline" in repairs else lines[:-1]
    if all(line.endswith(b"\r") for line in body if line):
        found.append(Variant(b"\n".join(line.removesuffix(b"\r") for line in lines), (*repairs, "crlf")))
    found.append(Variant(_headers_without_cr(lines), (*repairs, "crlf-headers")))
    return tuple(found)


def damaged_headers(patch: bytes) -> bool:
    """Whether the headers themselves show damage, so that strict application could succeed with wrong bytes."""
    return bool(_COLOURED_HEADER.search(patch)) or _headers_end_in_cr(patch)


def _headers_end_in_cr(text: bytes) -> bool:
    heads = [line for line in text.split(b"\n") if HUNK.match(line) or line.startswith((b"diff --git ", b"+++ "))]
    return any(line.startswith(b"@@") for line in heads) and all(line.endswith(b"\r") for line in heads)


def _headers_without_cr(lines: list[bytes]) -> bytes:
    return b"\n".join(line.removesuffix(b"\r") if _HEADER_LINE.match(line) else line for line in lines)


def _without_colour(text: bytes) -> bytes:
    """Take off the codes git puts round a line, after its marker and round trailing blanks; others stay."""

    def plain(line: bytes) -> bytes:
        line = _TRAILING_BLANKS.sub(rb"\1", line)
        found = _COLOURED_LINE.match(line)
        return found[1] + found[2] + found[3] if found else line

    lines = [plain(line) for line in text.split(b"\n")]
    # A hunk header has its own codes between the ranges and the function's name.
    return b"\n".join(re.sub(SGR, b"", line) if line.startswith(b"@@ ") else line for line in lines)


def carries_nothing(section: Section) -> str:
    """Why a section cannot be carried and says nothing about the text, or ""."""
    if section.gitlink:
        return "a submodule pointer without the submodule's files"
    if section.stub:
        return "'Binary files differ' without the data (make the patch with git diff --binary)"
    return ""


def stray_reason(parsed: ParsedPatch) -> str:
    """Why lines outside the hunks forbid the patch, or ""."""
    if not parsed.stray:
        return ""
    number, line = parsed.stray[0]
    if line.startswith((b"diff --cc", b"diff --combined", b"@@@")):
        return (
            f"line {number} of the patch starts a merge diff, which cannot be applied: send a diff against the base"
        )
    if line.startswith(b"@@ -"):
        return f"line {number} of the patch is a hunk without a file header above it"
    return f"line {number} of the patch ('{shown(line)}') belongs to no hunk: the hunk above is shorter than meant"


def mended(section: Section, base: bytes | None, base_mode: int | None) -> Mended | Misfit:
    """A text section whose hunks fit the base's bytes exactly, with the least repair. `base` None: no such file."""
    path = section.target
    if section.old is not None and base is None:
        return Misfit(f"{shown(section.old)} is not in the base tree (line {section.line} of the patch)")
    if section.old is None and base is not None:
        return Misfit(f"{shown(path)} is to be created (line {section.line} of the patch) but is there already")
    whole = replace(section, old_mode=base_mode if base_mode is not None else section.old_mode)
    if not section.hunks:
        return Mended(whole, base or b"", ())
    misfit: Misfit | None = None
    for hunks, repairs in _readings(section.hunks, base or b""):
        if isinstance(hunks, Misfit):
            misfit = misfit or Misfit(f"{shown(path)}, {hunks.reason}")
            continue
        laid = replay(hunks, base or b"", path)
        if isinstance(laid, Replay) and (section.new is not None or not laid.data):
            return Mended(replace(whole, hunks=laid.hunks), laid.data, repairs)
        left = Misfit(f"{shown(path)} is to be deleted (line {section.line} of the patch) but lines of it would stay")
        misfit = misfit or (laid if isinstance(laid, Misfit) else left)
    return misfit or Misfit(f"{shown(path)}: its hunks do not fit")


def _readings(hunks: tuple[Hunk, ...], base: bytes) -> list[tuple[tuple[Hunk, ...] | Misfit, tuple[str, ...]]]:
    """The hunks with counts put right, in the order to try; each also with CRs when the file is CRLF throughout."""
    found: list[tuple[tuple[Hunk, ...] | Misfit, tuple[str, ...]]] = []
    for restore in (True, False):
        counted: list[Hunk] = []
        repairs: dict[str, None] = {}
        fault: Misfit | None = None
        for number, hunk in enumerate(hunks, 1):
            answer = _counted(hunk, restore)
            if isinstance(answer, str):
                fault = Misfit(f"hunk {number} ({hunk.header}, line {hunk.line} of the patch): {answer}")
                break
            counted.append(answer[0])
            repairs |= dict.fromkeys(answer[1])
        if fault is not None:
            found.append((fault, ()))
            continue
        found.append((tuple(counted), tuple(repairs)))
        if _all_crlf(base) and _lost_crs(counted):
            found.append((tuple(_with_cr(hunk) for hunk in counted), (*repairs, "missing-cr")))
        if not any(hunk.fault for hunk in hunks):
            break
    return found


def _counted(hunk: Hunk, restore: bool) -> tuple[Hunk, tuple[str, ...]] | str:
    """The hunk with body and header in agreement, and the repair's name; or why they cannot be brought into it.

    A body longer than its header loses nothing by counting again. A shorter one may have been cut: it is taken only
    when as many old as new lines are missing and they are blank context, or more of the patch follows it.
    """
    old, new = hunk.counts
    if hunk.fault == "":
        return hunk, ()
    if hunk.fault == "long":
        return hunk, ("recount",)
    missing = hunk.old_count - old
    said = f"its header says {hunk.old_count} old and {hunk.new_count} new lines, its body has {old} and {new}"
    if hunk.fault == "mixed" or missing != hunk.new_count - new or missing <= 0:
        return said + ": lines were lost or the text is cut"
    if restore:
        return replace(hunk, body=hunk.body + (b" ",) * missing), ("blank-context",)
    return (hunk, ("recount",)) if hunk.closed else said + ": the text is cut"


def _all_crlf(data: bytes) -> bool:
    return b"\n" in data and data.count(b"\n") == data.count(b"\r\n") == data.count(b"\r")


def _lost_crs(hunks: list[Hunk]) -> bool:
    """Whether no line has its CR, or only the last one and blank ones after it, as when the text was stripped."""
    lines = [line for hunk in hunks for line in hunk.body if not line.startswith(b"\\")]
    last = len(lines)
    while last and lines[last - 1] == b" ":
        last -= 1
    return bool(lines) and (
        not any(line.endswith(b"\r") for line in lines)
        or (
            (last < len(lines) or not lines[-1].endswith(b"\r"))
            and all(line.endswith(b"\r") for line in lines[: last - 1])
        )
    )


def _with_cr(hunk: Hunk) -> Hunk:
    body = list(hunk.body)
    for at, line in enumerate(body):
        ends_file = at + 1 < len(body) and body[at + 1].startswith(b"\\")
        if not line.startswith(b"\\") and not ends_file and not line.endswith(b"\r"):
            body[at] = line + b"\r"
    return replace(hunk, body=tuple(body))


def relabelled(section: Section, base_paths: Mapping[str, object]) -> tuple[Section, tuple[str, ...]]:
    """The section with names that are in the base tree: written without the a/ and b/, or against a backup copy."""
    old, new = section.old, section.new
    if section.bare:
        return section, ("paths",)
    if section.moved or (old is not None and as_text(old) in base_paths):
        return section, ()
    labels = tuple(re.sub(rb"^\./", b"", label) for label in section.labels)
    if new is not None:
        for name in (labels[1], new):
            if name and as_text(name) in base_paths and section.old is not None:
                return replace(section, old=name, new=name), ("paths",)
    elif as_text(labels[0]) in base_paths:
        return replace(section, old=labels[0]), ("paths",)
    if created_without_prefix(section, base_paths):
        return replace(section, new=labels[1]), ("paths",)
    return section, ()


def created_without_prefix(section: Section, base_paths: Mapping[str, object]) -> bool:
    """Whether a new file is named, without `diff --git`, by a path whose first folder is one of the tree. git would
    take that folder for the customary prefix and make the file one level up."""
    label = re.sub(rb"^\./", b"", section.labels[1])
    head, slash, _ = label.partition(b"/")
    if section.git or section.old is not None or not slash or head in (b"", b"a", b"b"):
        return False
    folder = as_text(head) + "/"
    return any(path.startswith(folder) for path in base_paths)


def rendered(section: Section) -> bytes:
    """The section as git writes it, so that strict application reads exactly what was proven."""
    old = section.old if section.old is not None else section.target
    new = section.target
    lines = [b"diff --git " + quoted(b"a/" + old) + b" " + quoted(b"b/" + new)]
    if section.old is None:
        lines.append(b"new file mode %06o" % (section.new_mode or 0o100644))
    elif section.new is None:
        lines.append(b"deleted file mode %06o" % (section.old_mode or 0o100644))
    elif section.new_mode is not None and section.old_mode is not None and section.new_mode != section.old_mode:
        lines += [b"old mode %06o" % section.old_mode, b"new mode %06o" % section.new_mode]
    if section.moved:
        lines += [section.moved.encode() + b" from " + quoted(old), section.moved.encode() + b" to " + quoted(new)]
    if section.binary and section.index is not None:
        lines.append(b"index " + "..".join(section.index).encode())
        lines += [line.rstrip(b"\r") for line in section.binary]
        if lines[-1]:
            lines.append(b"")  # the data's end, which git insists on
    if section.hunks:
        lines.append(b"--- " + (b"/dev/null" if section.old is None else _label(b"a/" + old)))
        lines.append(b"+++ " + (b"/dev/null" if section.new is None else _label(b"b/" + new)))
    for hunk in section.hunks:
        numbers = (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count)
        lines.append(b"@@ -%d,%d +%d,%d @@" % numbers)
        lines += hunk.body
    return b"\n".join(lines) + b"\n"


def _label(name: bytes) -> bytes:
    # git ends a name with a tab when it has a space, so that a timestamp cannot be meant.
    return quoted(name) if quoted(name) != name else name + (b"\t" if b" " in name else b"")
