"""Which tests a pull request really changes: pure, from the bytes of a test file on both sides."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeGuard

from rtb.fingerprint import FunctionNode, meaning_of, of_node
from rtb.python_source import Unreadable, decode, parse, parts
from rtb.syntax import nodes
from rtb.triton_piece import dotted

_TEST = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+test", re.MULTILINE)


@dataclass(frozen=True)
class ChangedTests:
    """What happened in one test file. `functions` are test functions that are new or say something else."""

    path: str
    state: Literal["added", "modified", "same", "no_tests", "unreadable", "unchanged_file"]
    functions: tuple[str, ...] = ()
    elsewhere: bool = False
    names: frozenset[str] = frozenset()
    detail: str = ""

    @property
    def counts(self) -> bool:
        """The file can be run and says something that it did not say before."""
        return self.state in ("added", "modified")


def compare_tests(path: str, before: bytes | None, after: bytes) -> ChangedTests:
    """Compare a test file with the one before it (None: there was none). Parts that are equal are not parsed."""
    text, old_text = decode(after), decode(before) if before is not None else None
    if isinstance(text, Unreadable):
        return ChangedTests(path, "unreadable", detail=f"{text.reason} {text.detail}")
    if old_text is None or isinstance(old_text, Unreadable):
        tree = parse(text)
        if isinstance(tree, Unreadable):
            return ChangedTests(path, "unreadable", detail=f"{tree.reason} {tree.detail}")
        names = _tests(tree)
        return ChangedTests(path, "added" if names else "no_tests", names)
    theirs, ours = Counter(parts(old_text)), Counter(parts(text))
    new, old = _read_parts(ours - theirs, text), _read_parts(theirs - ours, old_text)
    if isinstance(new, Unreadable):
        return ChangedTests(path, "unreadable", detail=f"{new.reason} {new.detail}")
    if not new.tests and not any(_TEST.search(part) for part in ours & theirs):
        return ChangedTests(path, "no_tests")
    if isinstance(old, Unreadable):
        return ChangedTests(path, "added", tuple(new.tests))
    changed = tuple(name for name, said in new.tests.items() if old.tests.get(name) != said)
    elsewhere = new.rest != old.rest
    return ChangedTests(path, "modified" if changed or elsewhere else "same", changed, elsewhere)


def _read_parts(some: Iterable[str], text: str) -> _TestFile | Unreadable:
    """What some parts of a file hold; the whole file's where the cut does not fit it."""
    found = _TestFile({}, [])
    for part in some:
        tree = parse(part)
        if isinstance(tree, Unreadable):
            return _read(text)
        _collect(tree.body, found)
    return found


def is_test_file(data: bytes) -> ChangedTests:
    """What a test file that did not change holds."""
    text = decode(data)
    tree = parse(text) if isinstance(text, str) else text
    if isinstance(tree, Unreadable):
        return ChangedTests("", "unreadable", detail=tree.reason)
    found = _tests(tree)
    return ChangedTests("", "unchanged_file" if found else "no_tests", found, names=_names(tree))


@dataclass
class _TestFile:
    tests: dict[str, str]
    rest: list[str]


def _read(text: str) -> _TestFile | Unreadable:
    tree = parse(text)
    if isinstance(tree, Unreadable):
        return tree
    found = _TestFile({}, [])
    _collect(tree.body, found)
    return found


def _statements(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Statements of a file, with those of classes and conditions behind theirs; each with its class as `Name.`"""
    for node in body:
        yield prefix, node
        if isinstance(node, ast.ClassDef):
            yield from _statements(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(
                (item for item in ast.iter_child_nodes(node) if isinstance(item, ast.stmt)), prefix
            )


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, FunctionNode) and node.name.startswith("test")


def _tests(tree: ast.Module) -> tuple[str, ...]:
    """The names of a file's test functions."""
    return tuple(dict.fromkeys(f"{prefix}{node.name}" for prefix, node in _statements(tree.body) if _is_test(node)))


def _collect(body: Iterable[ast.stmt], found: _TestFile) -> None:
    """What tests say, and what else of a file has a say."""
    for prefix, node in _statements(body):
        if isinstance(node, FunctionNode):
            digest = meaning_of(node) + "".join(of_node(item) for item in node.decorator_list if not _is_gate(item))
            if _is_test(node):
                found.tests[f"{prefix}{node.name}"] = digest
            else:
                found.rest.append(digest)
        elif isinstance(node, ast.ClassDef):
            found.rest += [of_node(item) for item in (*node.bases, *node.decorator_list) if not _is_gate(item)]
        elif isinstance(node, ast.If):
            found.rest.append(of_node(node.test))
        elif not isinstance(node, ast.Try | ast.With | ast.Import | ast.ImportFrom | ast.Pass) and not _is_text(node):
            found.rest.append(of_node(node))


def _is_gate(node: ast.expr) -> bool:
    """Whether a decorator says only where a test is run: it judges nothing."""
    name = dotted(node.func if isinstance(node, ast.Call) else node) or ""
    return name.rsplit(".", 1)[-1].lower() in ("skip", "skipif", "skipunless", "xfail")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names(tree: ast.Module) -> frozenset[str]:
    """Every name a test file uses or imports from, for whether it knows a target."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names.update(item.name for item in node.names)
            names.update(_ends(module), *(_ends(f"{module}.{item.name}") for item in node.names))
        elif isinstance(node, ast.Import):
            names.update(*(_ends(item.name) for item in node.names))
    return frozenset(names)


def _ends(module: str) -> tuple[str, ...]:
    """`own:awq` of `own.ops.awq`: a module's last name alone could be another package's."""
    first, _, rest = module.partition(".")
    return (f"{first}:{rest.rpartition('.')[2]}",) if rest else ()
