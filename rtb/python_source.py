"""A Python file as text that can be read in pieces: decoding, and cutting at top-level statements.

Nothing here imports or runs the file. A file that cannot be read is a value (`Unreadable`), because one broken file
in thousands of commits must be counted and passed over, never end a walk.
"""

from __future__ import annotations

import ast
import codecs
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rtb import syntax

MAX_SOURCE_BYTES = 1_048_576  # generated files; the largest hand-written kernel file seen has 0.2 MiB

UnreadableReason = Literal["huge", "binary", "not_text", "syntax_error"]

_STATEMENT_START = re.compile(r"\n(?=[A-Za-z_@])")  # faster than `^`: the first character is found at once
_CLASS = re.compile(
    r"(?:@[^\n]*\n)*class\s+(?P<name>\w+)\s*(?:\([^()]*\))?\s*:[^\n]*\n(?:\s*\n)*(?=(?P<indent>[ \t]+)\S)"
)
_WHOLE_CLASS = 1500  # characters; a small class is as well parsed whole
_CONTINUES = re.compile(r"(?:else|elif|except|finally)\b")
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


@dataclass(frozen=True)
class Unreadable:
    """Why a file was passed over."""

    reason: UnreadableReason
    detail: str = ""


def decode(data: bytes) -> str | Unreadable:
    """The text of a source file with `\\n` line ends: UTF-8 (BOM or not) or the encoding its cookie names."""
    if len(data) > MAX_SOURCE_BYTES:
        return Unreadable("huge", f"{len(data)} bytes")
    if b"\0" in data:
        return Unreadable("binary")
    encoding = "utf-8-sig"
    if not data.startswith(codecs.BOM_UTF8) and b"coding" in data[:400]:
        for line in data.split(b"\n", 2)[:2]:
            if cookie := _CODING.match(line):
                encoding = cookie[1].decode("ascii")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        return Unreadable("not_text", f"byte {error.start} is not {encoding}")
    except LookupError:
        return Unreadable("not_text", f"unknown encoding {encoding}")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def parse(text: str) -> ast.Module | Unreadable:
    """The syntax tree, or why there is none (Python 2, merge conflict markers, newer syntax than ours)."""
    try:
        return syntax.parse(text)
    except SyntaxError as error:
        return Unreadable("syntax_error", f"line {error.lineno}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Unreadable("syntax_error", type(error).__name__)


def parts(text: str) -> list[str]:
    """The file cut at its top-level statements; decorators stay with their function, `else:` with its `if`.

    The cut looks at column 0 only, so text inside a triple-quoted string can be taken for a statement: parts with an
    open triple quote are joined up to the one that closes it. Whoever parses a part falls back to the whole file when
    it does not parse.
    """
    return cut(text)[0]


def cut(text: str) -> tuple[list[str], bool]:
    """The parts of a text, and whether it ends where a part ends whatever comes next (but `else:` and the like)."""
    if not text:
        return [], True
    marks = [0, *(match.end() for match in _STATEMENT_START.finditer(text))]
    decorated = text[marks[-1]] == "@"
    marks.append(len(text))
    found = list(_joined(text[begin:end] for begin, end in itertools.pairwise(marks)))
    return found, not decorated and not _odd_quotes(found[-1])


def members(text: str) -> tuple[str, list[str]] | None:
    """A class's name and its members, unindented; None for a part that is no class or too small to be worth it."""
    head = _CLASS.match(text) if len(text) > _WHOLE_CLASS else None
    if head is None:
        return None
    indent = head["indent"]
    body = text[head.end() :].removeprefix(indent).replace(f"\n{indent}", "\n")
    return head["name"], parts(body)


def _joined(raw: Iterator[str]) -> Iterator[str]:
    """Pieces that belong together, put together."""
    held = ""
    decorated = False
    double = single = 0
    for piece in raw:
        if not (double or single):
            if held and not decorated and not _CONTINUES.match(piece):
                yield held
                held = ""
            decorated = piece.startswith("@")
        held += piece
        double = (double + piece.count('"""')) % 2
        single = (single + piece.count("'''")) % 2
    if held:
        yield held


def _odd_quotes(text: str) -> bool:
    return text.count('"""') % 2 == 1 or text.count("'''") % 2 == 1
