"""What a function says, without how it is written: digests of its syntax tree.

Two functions have the same `body` digest when they differ in comments, docstrings, blank lines, line breaks and
redundant brackets only. `alpha` is the same with local names numbered and outside names left out, so that it survives
a rename; `references` then says which outside names were used, in order.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fingerprint:
    """Digests are 16 hex digits. `statements` holds one small number per statement, for likeness."""

    body: str
    signature: str
    plain_signature: str
    alpha: str
    references: tuple[str, ...]
    statements: tuple[int, ...]

    def likeness(self, other: Fingerprint) -> float:
        """Share of statements that two bodies have in common, 0 to 1."""
        left, right = list(self.statements), list(other.statements)
        if not left or not right:
            return 0.0
        counts: dict[int, int] = {}
        for item in left:
            counts[item] = counts.get(item, 0) + 1
        shared = 0
        for item in right:
            if counts.get(item, 0) > 0:
                counts[item] -= 1
                shared += 1
        return 2 * shared / (len(left) + len(right))


def digest(text: str) -> str:
    """16 hex digits that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def of_function(node: FunctionNode) -> Fingerprint:
    """The fingerprint of one function; decorators are not part of it."""
    head = _Writer()
    head.value(node.args)
    head.value(node.returns)
    body = _Writer()
    body.statements(node.body)
    local = head.bound | body.bound
    return Fingerprint(
        body=digest("".join(body.items)),
        signature=digest("".join(head.items)),
        plain_signature=digest(_plain_arguments(node.args)),
        alpha=digest(_renumbered([*head.items, *body.items], local)),
        references=tuple(item[1:-1] for item in body.items if item[0] == _NAME and item[1:-1] not in local),
        statements=tuple(body.marks),
    )


def of_node(node: ast.AST) -> str:
    """The digest of any expression or statement, exact in its names."""
    writer = _Writer(marked=False)
    if isinstance(node, FunctionNode | ast.ClassDef):
        writer.statements([node])
    else:
        writer.value(node)
    return digest("".join(writer.items))


def meaning_of(node: FunctionNode) -> str:
    """A digest of a function's parameters and body: what of `of_function` tells whether it says something else."""
    writer = _Writer(marked=False)
    writer.value(node.args)
    writer.value(node.returns)
    writer.statements(node.body)
    return digest("".join(writer.items))


def _plain_arguments(arguments: ast.arguments) -> str:
    """Names and defaults without annotations."""
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    extra = [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    writer = _Writer()
    for default in (*arguments.defaults, *arguments.kw_defaults):
        writer.value(default)
    return "|".join([*(item.arg for item in every), *extra, *writer.items])


def _renumbered(items: list[str], local: set[str]) -> str:
    """The items with local names numbered in order of appearance and outside names left out."""
    numbers: dict[str, str] = {}
    out = []
    for item in items:
        if item[0] != _NAME:
            out.append(item)
        elif (name := item[1:-1]) in local:
            out.append(numbers.setdefault(name, f"${len(numbers)};"))
        else:
            out.append("@;")
    return "".join(out)


_NAME = "\0"  # begins the item of a name: no other item can, for no source holds it
_LEFT_OUT = frozenset(("ctx", "type_comment", "kind", "type_ignores"))


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that count; there are some 120 kinds."""
    return tuple(name for name in kind._fields if name not in _LEFT_OUT)


class _Writer:
    """Writes a syntax tree as a list of text items that leaves out what does not count.

    `bound` collects the names the tree binds; `marks`, where wanted, a number for each statement.
    """

    def __init__(self, marked: bool = True) -> None:
        self._marked = marked
        self.items: list[str] = []
        self.bound: set[str] = set()
        self.marks: list[int] = []

    def statements(self, body: list[ast.stmt]) -> None:
        """A block without its bare strings (docstrings, strings used as comments) and `pass`."""
        self.items.append("{")
        for statement in body:
            if isinstance(statement, ast.Pass):
                continue
            if isinstance(statement, ast.Expr) and _is_text(statement.value):
                continue
            start = len(self.items)
            self._tree(statement)
            if self._marked:
                self.marks.append(hash_of("".join(self.items[start:])))
        self.items.append("}")

    def value(self, value: object) -> None:
        """Any value of a syntax tree's field."""
        if isinstance(value, ast.AST):
            self._tree(value)
        elif isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                self.statements(value)
                return
            self.items.append("[")
            for item in value:
                self.value(item)
            self.items.append("]")
        else:
            self.items.append(f"{value!r};")

    def _tree(self, node: ast.AST) -> None:
        kind: Any = node.__class__
        if kind is ast.Name:
            assert isinstance(node, ast.Name)
            self.items.append(f"{_NAME}{node.id};")
            if node.ctx.__class__ is ast.Store:
                self.bound.add(node.id)
            return
        if kind is ast.Constant:
            assert isinstance(node, ast.Constant)
            self.items.append(f"{node.value.__class__.__name__}:{node.value!r};")
            return
        self.items.append(f"{kind.__name__}(")
        if isinstance(node, ast.arg):
            self.bound.add(node.arg)
            self.items.append(f"{_NAME}{node.arg};")
            self.value(node.annotation)
        else:
            if isinstance(node, FunctionNode):
                self.bound.add(node.name)
            for name in _fields(kind):
                self.value(getattr(node, name, None))
        self.items.append(")")


def hash_of(text: str) -> int:
    """A 32-bit number for a text, the same in every process (Python's own hash is not)."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
