"""What a function says, without how it is written: digests of its syntax tree.

Two functions have the same `body` digest when they differ in comments, docstrings, blank lines, line breaks and
redundant brackets only. `alpha` is the same with local names numbered and outside names left out, so that it survives
a rename; `references` then says which outside names were used, in order.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from hashlib import blake2b

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
    writer = _Writer(_local_names(node))
    writer.statements(node.body)
    body = "".join(writer.exact)
    arguments = _Writer(writer.local)
    arguments.node(node.args)
    arguments.node(node.returns)
    return Fingerprint(
        body=digest(body),
        signature=digest("".join(arguments.exact)),
        plain_signature=digest(_plain_arguments(node.args)),
        alpha=digest("".join(_renumbered(node, writer.local))),
        references=tuple(writer.loaded),
        statements=tuple(writer.marks),
    )


def of_node(node: ast.AST) -> str:
    """The digest of any expression or statement, exact in its names."""
    writer = _Writer(frozenset())
    if isinstance(node, FunctionNode | ast.ClassDef):
        writer.statements([node])
    else:
        writer.node(node)
    return digest("".join(writer.exact))


def _plain_arguments(arguments: ast.arguments) -> str:
    """Names and defaults without annotations."""
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    extra = [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    writer = _Writer(frozenset())
    for default in (*arguments.defaults, *arguments.kw_defaults):
        writer.node(default)
    return "|".join([*(item.arg for item in every), *extra, *writer.exact])


def _local_names(function: FunctionNode) -> frozenset[str]:
    """Parameters and every name the function binds."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, FunctionNode) and node is not function:
            found.add(node.name)
    return frozenset(found)


def _renumbered(function: FunctionNode, local: frozenset[str]) -> list[str]:
    writer = _Writer(local, numbered=True)
    writer.node(function.args)
    writer.statements(function.body)
    return writer.exact


class _Writer:
    """Writes a syntax tree as text pieces that leave out what does not count."""

    def __init__(self, local: frozenset[str], numbered: bool = False) -> None:
        self.local = local
        self.exact: list[str] = []
        self.loaded: list[str] = []
        self.marks: list[int] = []
        self._numbers: dict[str, str] | None = {} if numbered else None

    def statements(self, body: list[ast.stmt]) -> None:
        """A block without its bare strings (docstrings, strings used as comments) and `pass`."""
        self.exact.append("{")
        for statement in body:
            if isinstance(statement, ast.Pass):
                continue
            if isinstance(statement, ast.Expr) and _is_text(statement.value):
                continue
            start = len(self.exact)
            self.node(statement)
            if self._numbers is None:
                self.marks.append(hash_of("".join(self.exact[start:])))
        self.exact.append("}")

    def node(self, node: object) -> None:
        """Any value of a syntax tree's field."""
        if isinstance(node, ast.AST):
            self._tree(node)
        elif isinstance(node, list):
            if node and isinstance(node[0], ast.stmt):
                self.statements(node)
                return
            self.exact.append("[")
            for item in node:
                self.node(item)
            self.exact.append("]")
        else:
            self.exact.append(f"{node!r};")

    def _tree(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self._name(node.id)
            return
        if isinstance(node, ast.Constant):
            self.exact.append(f"{type(node.value).__name__}:{node.value!r};")
            return
        self.exact.append(f"{type(node).__name__}(")
        for field in node._fields:
            if field in ("ctx", "type_comment", "kind", "type_ignores"):
                continue
            value = getattr(node, field, None)
            if isinstance(value, str):
                self._text(node, field, value)
            else:
                self.node(value)
        self.exact.append(")")

    def _text(self, node: ast.AST, field: str, value: str) -> None:
        names_something = (isinstance(node, ast.arg) and field == "arg") or (
            isinstance(node, FunctionNode) and field == "name"
        )
        if names_something and self._numbers is not None:
            self._name(value)
        else:
            self.exact.append(f"{value!r};")

    def _name(self, name: str) -> None:
        if name not in self.local:
            self.loaded.append(name)
            self.exact.append("@;" if self._numbers is not None else f"{name};")
            return
        if self._numbers is not None:
            name = self._numbers.setdefault(name, f"${len(self._numbers)}")
        self.exact.append(f"{name};")


def hash_of(text: str) -> int:
    """A 32-bit number for a text, the same in every process (Python's own hash is not)."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
