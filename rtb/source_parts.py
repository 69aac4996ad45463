"""The top-level parts of a Python file, each with what it says for Triton, worked out once and only when asked.

Versions of one file share the parts that did not change, so walking thousands of versions costs little more than the
parts that did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain

from rtb.python_source import Unreadable, cut, members
from rtb.triton_piece import Piece, read_piece

_IMPORT = re.compile(
    r"[ \t]*(from[ \t]+[\w.]+[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]*(?:\\\n[^\n]*)*)|import[ \t]+[^\n]+)"
)
_INNER_HEAD = re.compile(r"^[ \t]+(?:async[ \t]+)?(?:def[ \t]+)?([A-Za-z_]\w*)[ \t]*(?=[:=(])", re.MULTILINE)
_BLOCKS = ("if ", "try:", "with ", "else:", "for ")
_NOT_VALUES = ("class ", "import ", "from ", "if ", "@")
LONGEST_LAUNCH = 4096  # characters from the bracket of a grid to where it closes
_HEAD = re.compile(r"(?:async\s+)?(?:def\s+)?([A-Za-z_]\w*)\s*(?=[:=(])")


class Part:
    """One top-level statement of a file, as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def holds(self) -> bool:
        """Whether it can hold or name a jitted function or a template."""
        return holds(self.text)

    @cached_property
    def launches(self) -> bool:
        """Whether it has the form of a launch, `name[grid](...)`, of whatever it is."""
        return launches(self.text)

    @cached_property
    def speaks_of_kernel(self) -> bool:
        """Whether a launch in it is one of a kernel by the name alone."""
        return "kernel" in self.text.lower()

    def launches_any(self, names: tuple[str, ...]) -> bool:
        """Whether it can launch a kernel: one of these names, or one that says so itself."""
        return self.launches and (self.speaks_of_kernel or any(name in self.text for name in names))

    @cached_property
    def imports(self) -> Piece | None:
        """What its import statements about Triton or jit bind; None when there are none."""
        if "import" not in self.text or ("triton" not in self.text and "jit" not in self.text):
            return None
        stated = [_imports(item) for item in written_imports(self.text) if "triton" in item or "jit" in item]
        if not stated:
            return None
        return Piece(
            imports=tuple(chain.from_iterable(item.imports for item in stated)),
            stars=tuple(chain.from_iterable(item.stars for item in stated)),
        )

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The top-level names it may define."""
        if self.text.startswith(_BLOCKS):
            return tuple(inner[1] for inner in _INNER_HEAD.finditer(self.text))
        head = None if self.text.startswith(_NOT_VALUES) else _HEAD.match(self.text)
        return (head[1],) if head else ()

    @cached_property
    def is_large_class(self) -> bool:
        """Whether only some of its members are read."""
        return members(self.text) is not None

    @cached_property
    def piece(self) -> Piece | Unreadable:
        """Its facts; of a large class only those of the members that can hold a jitted function."""
        return self.told()

    def told(self, telltales: tuple[str, ...] = (), kernels: tuple[str, ...] = ()) -> Piece | Unreadable:
        """As `piece`, with members of a large class that hold one of `telltales` or may launch one of `kernels`."""
        return _piece(self.text, telltales, kernels)


def parts_of(text: str) -> tuple[Part, ...]:
    """A file's parts."""
    return tuple(map(Part, cut(text)[0]))


def parts_again(before: Sequence[Part], text: str) -> tuple[tuple[Part, ...], int, int]:
    """The parts of another version of a file, sharing those that are the same.

    Returns them with the number of shared parts at the beginning and at the end.
    """
    first = begin = 0
    for part in before:
        if not text.startswith(part.text, begin):
            break
        begin += len(part.text)
        first += 1
    if first == len(before) and begin == len(text):
        return tuple(before), first, 0
    if first:  # whether the last shared part ends there depends on what comes after it
        first -= 1
        begin -= len(before[first].text)
    last, end = len(before), len(text)
    while last > first:
        length = len(before[last - 1].text)
        if end - length < begin or not text.endswith(before[last - 1].text, begin, end):
            break
        end -= length
        last -= 1
    if last < len(before) and end > begin and text[end - 1] != "\n":
        last, end = len(before), len(text)
    fresh, whole = cut(text[begin:end])
    if not whole and last < len(before):
        last = len(before)
        fresh, _ = cut(text[begin:])
    return (*before[:first], *map(Part, fresh), *before[last:]), first, len(before) - last


@lru_cache(maxsize=2048)
def _imports(statement: str) -> Piece:
    """The bindings of one import statement; empty for text that only looks like one."""
    piece = read_piece(statement)
    return Piece() if isinstance(piece, Unreadable) else piece


def written_imports(text: str) -> Iterator[str]:
    """The import statements of a text. The word is sought first, which is faster than trying each line."""
    done = 0
    at = text.find("import")
    while at >= 0:
        begin = text.rfind("\n", 0, at) + 1
        match = _IMPORT.match(text, begin) if begin >= done else None
        if match:
            yield match[1]
            done = match.end()
        at = text.find("import", max(at + 6, done))


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def holds(text: str) -> bool:
    """Whether there is a line with `@...jit`, or the word jit, or a template."""
    at = text.find("jit")
    while at >= 0:
        if not _is_word(text[at - 1 : at]) and not _is_word(text[at + 3 : at + 4]):
            return True
        if text.find("@", text.rfind("\n", 0, at) + 1, at) >= 0:
            return True
        at = text.find("jit", at + 3)
    return "def_kernel" in text


def launches(text: str) -> bool:
    """Whether there is a `name[...](`, with brackets in the brackets at most one deep."""
    at = text.find("](")
    while at >= 0:
        begin = _opening(text, at)
        if begin > 0:
            before = text[max(0, begin - 200) : begin].rstrip()[-1:]
            if before in (")", "]") or _is_word(before):
                return True
        at = text.find("](", at + 2)
    return False


def _opening(text: str, closing: int) -> int:
    """Where the bracket opens that is closed at `closing`; -1 when none near does, or one more level is between."""
    depth, at, near = 0, closing, max(0, closing - LONGEST_LAUNCH)
    while True:
        opened, closed = text.rfind("[", near, at), text.rfind("]", near, at)
        if closed > opened:
            depth += 1
            if depth > 1:
                return -1
            at = closed
        elif opened < 0:
            return -1
        elif depth == 0:
            return opened
        else:
            depth -= 1
            at = opened


@lru_cache(maxsize=1024)
def _piece(text: str, telltales: tuple[str, ...], kernels: tuple[str, ...]) -> Piece | Unreadable:
    found = members(text)
    if found is None:
        return _member(text)
    name, bodies = found
    held = []
    for body in bodies:
        if holds(body) or any(item in body for item in telltales) or Part(body).launches_any(kernels):
            piece = _member(body)
            if isinstance(piece, Unreadable):
                return _member(text)
            held.append(piece)
    return Piece(
        functions=tuple(replace(item, name=f"{name}.{item.name}") for piece in held for item in piece.functions),
        imports=tuple(item for piece in held for item in piece.imports),
        aliases=tuple(item for piece in held for item in piece.aliases),
        jit_wrappers=tuple(item for piece in held for item in piece.jit_wrappers),
        jitted_by_call=tuple(item for piece in held for item in piece.jitted_by_call),
    )


@lru_cache(maxsize=2048)
def _member(text: str) -> Piece | Unreadable:
    return read_piece(text)
