"""What a patch text says: sections, hunks and what stands outside them. Pure, bytes in, never raises on bad text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.patch_names import header_names, label_path, unquoted

HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)", re.DOTALL)
# Lines git reads as part of the header of a `diff --git` section.
EXTENDED = re.compile(
    rb"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|rename old|"
    rb"rename new|similarity index|dissimilarity index|index) (.*)",
    re.DOTALL,
)
INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{1,7}))?")
MAIL = re.compile(rb"From [0-9a-f]{40} ")

Fault = Literal["", "long", "short", "mixed"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk. `body` lines keep their marker and have no newline; `fault` says how the body's length differs from
    the header's counts; `closed` is true when more of the patch follows, so that the text is not cut here."""

    line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    tail: bytes
    body: tuple[bytes, ...]
    fault: Fault = ""
    closed: bool = True

    @property
    def header(self) -> str:
        return f"@@ -{self.old_start},{self.old_count} +{self.new_start},{self.new_count} @@"

    @property
    def counts(self) -> tuple[int, int]:
        """Lines of the pre-image and of the post-image in the body."""
        old = sum(line[:1] in (b" ", b"-") for line in self.body)
        new = sum(line[:1] in (b" ", b"+") for line in self.body)
        return old, new


@dataclass(frozen=True, slots=True)
class Section:
    """What the patch says about one file. Names as in the tree; None stands for no such file (/dev/null)."""

    line: int
    git: bool
    old: bytes | None
    new: bytes | None
    labels: tuple[bytes, bytes] = (b"", b"")
    bare: bool = False  # a `diff --git` line whose names are equal: written without the a/ and b/
    old_mode: int | None = None
    new_mode: int | None = None
    moved: Literal["", "rename", "copy"] = ""
    index: tuple[str, str] | None = None
    hunks: tuple[Hunk, ...] = ()
    binary: tuple[bytes, ...] = ()
    stub: bool = False

    @property
    def target(self) -> bytes:
        """The path that the section is about: the new one, or the old one of a removal."""
        return self.new if self.new is not None else self.old or b""

    @property
    def touched(self) -> tuple[bytes, ...]:
        """Paths whose entry the section may change."""
        if self.moved == "rename" and self.old is not None:
            return (self.target, self.old)
        return (self.target,)

    @property
    def gitlink(self) -> bool:
        """Whether it moves, makes or removes a submodule pointer."""
        if 0o160000 in (self.old_mode, self.new_mode):
            return True
        # A pointer's diff is one hunk of at most two lines.
        body = self.hunks[0].body if len(self.hunks) == 1 else ()
        return 0 < len(body) <= 2 and all(line[1:].startswith(b"Subproject commit ") for line in body)


@dataclass(frozen=True, slots=True)
class ParsedPatch:
    """`stray` are lines that look like a patch's but belong to no hunk: (line number, text)."""

    sections: tuple[Section, ...]
    stray: tuple[tuple[int, bytes], ...]


def parse(text: bytes) -> ParsedPatch:
    """Read a patch as git does, and beyond that note every line git would pass over in silence."""
    lines = text.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return _Reader(lines).read()


def _is_blank(line: bytes) -> bool:
    return not line.strip(b" \t\r\f\v")


def _looks_like_body(line: bytes) -> bool:
    return line[:1] in (b"+", b"-") or (line[:1] in (b" ", b"\\") and not _is_blank(line))


class _Reader:
    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.at = 0
        self.sections: list[Section] = []
        self.hunks: list[list[Hunk]] = []
        self.stray: list[tuple[int, bytes]] = []
        self.prose = True  # nothing here can be a left-over body line
        self.texts = False  # the section has --- and +++, so that hunks are to follow
        self.words = False  # a line of prose has been seen since a whole hunk: lists may follow

    def read(self) -> ParsedPatch:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"diff --git "):
                self._git_section()
            elif self._traditional_header(self.at):
                self._traditional_section()
            elif line.startswith(b"@@ -") and self.sections:
                self._hunk()
            else:
                self._outside(line)
        whole = (replace(part, hunks=tuple(hunks)) for part, hunks in zip(self.sections, self.hunks, strict=True))
        return ParsedPatch(tuple(whole), tuple(self.stray))

    def _add(self, section: Section) -> None:
        self.sections.append(section)
        self.hunks.append([])

    def _outside(self, line: bytes) -> None:
        if line.startswith((b"diff --cc ", b"diff --combined ", b"@@@ ", b"@@ -")):
            self.prose = False
            self.stray.append((self.at + 1, line))
        elif self._ends_text(self.at):
            # A fence or a mail signature closes the text only where the hunk before it is whole.
            last = self.hunks[-1][-1:] if self.hunks else []
            self.prose = not last or last[0].fault in ("", "long")
        elif not self.prose and _looks_like_body(line):
            if not (self.words and re.match(rb" |- \S", line)):
                self.stray.append((self.at + 1, line))
        elif not _is_blank(line):
            last = self.hunks[-1][-1:] if self.hunks else []
            self.words = last[0].fault == "" if last else not self.texts
        self.at += 1

    def _ends_text(self, at: int) -> bool:
        line = self.lines[at]
        signature = line.rstrip(b"\r") in (b"-- ", b"--") and at + 3 >= len(self.lines)
        return line.startswith(b"```") or signature or bool(MAIL.match(line)) or self._mail_signature(at)

    def _mail_signature(self, at: int) -> bool:
        """`-- ` and a git version, as format-patch ends every mail."""
        following = self.lines[at + 1] if at + 1 < len(self.lines) else b""
        return self.lines[at] == b"-- " and bool(re.match(rb"\d+\.\d+", following))

    def _traditional_header(self, at: int) -> bool:
        three = self.lines[at : at + 3]
        return (
            len(three) == 3
            and three[0].startswith(b"--- ")
            and three[1].startswith(b"+++ ")
            and HUNK.match(three[2]) is not None
        )

    def _boundary(self, at: int) -> bool:
        """Whether a hunk cannot go on at this line, whatever its counts say."""
        line = self.lines[at]
        if line and line[:1] not in (b" ", b"+", b"-", b"\\") and line != b"\r":
            return True
        return self._traditional_header(at) or self._ends_text(at)

    def _traditional_section(self) -> None:
        labels = (unquoted(self.lines[self.at][4:]), unquoted(self.lines[self.at + 1][4:]))
        old, new = (label_path(label, git=False) for label in labels)
        self._add(Section(self.at + 1, False, old, new, labels))
        self.at += 2
        self.prose, self.words, self.texts = False, False, True

    def _git_section(self) -> None:
        start = self.at
        names = header_names(self.lines[start][len(b"diff --git ") :])
        bare = names.labels[0] == names.labels[1]
        section = Section(start + 1, True, names.old, names.new, names.labels, bare)
        self.at += 1
        self.texts = False
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if found := EXTENDED.fullmatch(line):
                section = _with_header(section, found[1], found[2])
            elif line.startswith((b"--- ", b"+++ ")):
                label = unquoted(line[4:])
                self.texts = True
                bare = bare and label in (names.labels[0], b"/dev/null")
                path = label if bare and label != b"/dev/null" else label_path(label, git=True)
                if line.startswith(b"--- "):
                    section = replace(section, old=path, labels=(label, section.labels[1]))
                else:
                    section = replace(section, new=path, labels=(section.labels[0], label))
            else:
                break
            self.at += 1
        section = replace(section, bare=bare)
        self.prose = self.words = False
        if self.at < len(self.lines):
            section = self._binary_part(section)
        self._add(section)

    def _binary_part(self, section: Section) -> Section:
        line = self.lines[self.at]
        if re.match(rb"(Binary files|Files) .* differ\r?$", line):
            self.at += 1
            return replace(section, stub=True)
        if line.rstrip(b"\r") != b"GIT binary patch":
            return section
        end = self.at + 1
        while end < len(self.lines) and re.fullmatch(rb"(literal|delta) \d+\r?", self.lines[end]):
            end += 1
            while end < len(self.lines) and self.lines[end].rstrip(b"\r"):
                end += 1
            end += 1
        data = tuple(self.lines[self.at : end])
        self.at = min(end, len(self.lines))
        return replace(section, binary=data)

    def _hunk(self) -> None:
        found = HUNK.match(self.lines[self.at])
        if found is None:
            self._outside(self.lines[self.at])
            return
        old, new = (int(count) if count is not None else 1 for count in (found[2], found[4]))
        start = self.at + 1
        whole, end = self._counted(start, old, new)
        fault: Fault = ""
        if whole:
            more = self._extent(end)
            if any(_looks_like_body(line) for line in self.lines[end:more]):
                end, fault = more, "long"
        else:
            end = self._extent(start)
        hunk = Hunk(self.at + 1, int(found[1]), old, int(found[3]), new, found[5], self._body(start, end), fault)
        if not whole:
            hunk = replace(hunk, fault=_fault(hunk), closed=self._closed(end))
        self.hunks[-1].append(hunk)
        self.at, self.prose, self.words = end, False, False

    def _counted(self, at: int, old: int, new: int) -> tuple[bool, int]:
        while (old or new) and at < len(self.lines):
            kind = self.lines[at][:1]
            if kind in (b" ", b"") and old and new:
                old, new = old - 1, new - 1
            elif kind == b"-" and old:
                old -= 1
            elif kind == b"+" and new:
                new -= 1
            elif kind != b"\\":
                break
            at += 1
        if not (old or new) and at < len(self.lines) and self.lines[at][:1] == b"\\":
            at += 1
        return not (old or new), at

    def _extent(self, at: int) -> int:
        """Where the body ends when counts are not believed: at a boundary, without blank lines before it."""
        start = at
        while at < len(self.lines) and not self._boundary(at):
            at += 1
        while at > start and self.lines[at - 1] in (b"", b"\r"):
            at -= 1
        return at

    def _body(self, start: int, end: int) -> tuple[bytes, ...]:
        return tuple(b" " + line if line in (b"", b"\r") else line for line in self.lines[start:end])

    def _closed(self, at: int) -> bool:
        while at < len(self.lines) and _is_blank(self.lines[at]):
            at += 1
        return at < len(self.lines) and (
            self.lines[at].startswith((b"diff ", b"@@ -", b"Index: ", b"```"))
            or self._traditional_header(at)
            or self._ends_text(at)
        )


def _fault(hunk: Hunk) -> Fault:
    old, new = hunk.counts
    if old >= hunk.old_count and new >= hunk.new_count:
        return "long"
    return "short" if old <= hunk.old_count and new <= hunk.new_count else "mixed"


def _mode(text: bytes) -> int | None:
    text = text.strip()
    return int(text, 8) if re.fullmatch(rb"[0-7]{1,7}", text) else None


def _with_header(section: Section, key: bytes, value: bytes) -> Section:
    if key == b"index":
        found = INDEX.match(value)
        if found is None:
            return section
        section = replace(section, index=(found[1].decode(), found[2].decode()))
        if found[3] is None:
            return section
        # The mode here repeats the tree's; only a submodule's tells us something.
        gitlink = _mode(found[3]) == 0o160000
        return replace(section, old_mode=0o160000, new_mode=0o160000) if gitlink else section
    if key == b"old mode":
        return replace(section, old_mode=_mode(value))
    if key == b"new mode":
        return replace(section, new_mode=_mode(value))
    if key == b"deleted file mode":
        return replace(section, old_mode=_mode(value), new=None, old=section.old)
    if key == b"new file mode":
        return replace(section, new_mode=_mode(value), old=None, new=section.new)
    if key in (b"rename from", b"rename old"):
        return replace(section, old=unquoted(value), moved="rename")
    if key in (b"rename to", b"rename new"):
        return replace(section, new=unquoted(value), moved="rename")
    if key == b"copy from":
        return replace(section, old=unquoted(value), moved="copy")
    if key == b"copy to":
        return replace(section, new=unquoted(value), moved="copy")
    return section


def body_lines(hunks: Sequence[Hunk]) -> int:
    """How many added and removed lines the hunks hold."""
    return sum(line[:1] in (b"+", b"-") for hunk in hunks for line in hunk.body)
