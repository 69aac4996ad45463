"""Names in a patch, and which of them may not be touched. Pure, bytes in."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_TIMESTAMP = re.compile(rb"[ \t]+\d{4}-\d\d-\d\d[ \t]\d\d:\d\d.*$")
# Code points HFS+ ignores in names: `.g<U+200C>it` is .git there.
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 4000


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The two names of a `diff --git` line: as paths of the tree, and as written."""

    old: bytes | None
    new: bytes | None
    labels: tuple[bytes, bytes]


def unquoted(text: bytes) -> bytes:
    """A name as written in a header: C-quoted, or up to a tab."""
    if found := _QUOTED.match(text):
        return _unescape(found[1])
    name = text.partition(b"\t")[0]
    return _TIMESTAMP.sub(b"", name).rstrip(b"\r")


def _unescape(text: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        if found[1].isdigit():
            return bytes([int(found[1], 8) & 0xFF])
        return _ESCAPES.get(found[1], found[1])

    return re.sub(rb"\\([0-7]{3}|.)", one, text, flags=re.DOTALL)


def quoted(path: bytes) -> bytes:
    """A name as git writes it in a header: C-quoted when it holds a quote, a backslash or a control character."""
    if not re.search(rb'[\x00-\x1f"\\\x7f]', path):
        return path
    return b'"' + re.sub(rb'[\x00-\x1f"\\\x7f]', lambda found: b"\\%03o" % found[0][0], path) + b'"'


def label_path(label: bytes, *, git: bool) -> bytes | None:
    """The path behind a `---` or `+++` name: one leading folder taken off; None for /dev/null.

    Without `diff --git`, a name that has no folder stands for itself, as git guesses too.
    """
    if label == b"/dev/null":
        return None
    head, slash, rest = label.partition(b"/")
    if not slash:
        return b"" if git else head
    return rest


def header_names(text: bytes) -> HeaderNames:
    """The names of a `diff --git` line. Unquoted names with spaces are told apart by both halves being equal."""
    text = text.rstrip(b"\r")
    for left, right in _splits(text):
        if left and left == right:
            return HeaderNames(left, right, (left, right))
        old, new = label_path(left, git=True), label_path(right, git=True)
        if old and old == new:
            return HeaderNames(old, new, (left, right))
    left, _, right = text.partition(b" ")
    labels = (unquoted(left), unquoted(right))
    return HeaderNames(label_path(labels[0], git=True), label_path(labels[1], git=True), labels)


def _splits(text: bytes) -> list[tuple[bytes, bytes]]:
    if found := _QUOTED.match(text):
        return [(_unescape(found[1]), unquoted(text[found.end() :].lstrip(b" ")))]
    if text.endswith(b'"') and (at := text.find(b' "')) >= 0:
        return [(text[:at], unquoted(text[at + 1 :]))]
    # Equal halves after a prefix each: the space is near the middle, and a long line is no name at all.
    spots = [at for at in range(len(text)) if text[at : at + 1] == b" "] if len(text) < 3 * MAX_PATH_BYTES else []
    spots.sort(key=lambda at: abs(2 * at + 1 - len(text)))
    return [(text[:at], text[at + 1 :]) for at in spots[:64]]


def unsafe_path(path: bytes) -> str:
    """Why a patch must not touch this path, or "". A component equal to .git on any file system counts."""
    if path.startswith(b"/") or re.match(rb"[A-Za-z]:[/\\]", path):
        return "an absolute path"
    if b"\0" in path:
        return "a NUL byte in a name"
    if len(path) > MAX_PATH_BYTES:
        return f"a path of {len(path)} bytes"
    for part in path.split(b"/"):
        if part in (b"..", b"."):
            return f"a path with '{part.decode()}'"
        if len(part) > MAX_COMPONENT_BYTES:
            return f"a name of {len(part)} bytes"
        if any(_is_dot_git(piece) for piece in part.split(b"\\")):
            return "a path inside .git"
        if b".." in part.split(b"\\"):
            return "a path with '..'"
    return ""


def _is_dot_git(part: bytes) -> bool:
    text = _HFS_IGNORED.sub("", part.decode("utf-8", "surrogateescape")).casefold()
    text = text.partition(":")[0].rstrip(". ")  # NTFS drops these, and a stream's name after the colon
    return text in (".git", "git~1")


def shown(path: bytes) -> str:
    """A path or line of a patch for a message: printable, at most 120 characters."""
    text = path.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return text if len(text) <= 120 else text[:117] + "..."


def as_text(path: bytes) -> str:
    """A path as `rtb.sandbox.Change` has it."""
    return path.decode("utf-8", "surrogateescape")


def as_bytes(path: str) -> bytes:
    """The bytes of a path of `rtb.sandbox.Change`."""
    return path.encode("utf-8", "surrogateescape")
