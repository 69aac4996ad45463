"""Names around a target: what it uses of its repository, and what uses it there. Pure, names only."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rtb.fingerprint import FunctionNode
from rtb.kernels import FunctionChange
from rtb.python_source import Unreadable, decode, parse
from rtb.task import ContextReference


@dataclass
class _Found:
    functions: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)


def context_of_targets(
    targets: Collection[FunctionChange], sources: dict[str, bytes], known_paths: Collection[str] = ()
) -> tuple[ContextReference, ...] | Unreadable:
    """Functions and classes that the targets use or that use them, in these files (path -> content after).

    Names imported from elsewhere in the repository are listed under the path they come from when it is among
    `known_paths`. Returns Unreadable when a target's own file does not parse.
    """
    found: dict[str, _Found] = {}
    own = {item.path for item in targets}
    names = {_last(item.name) for item in targets}
    for path, data in sources.items():
        text = decode(data)
        tree = parse(text) if not isinstance(text, Unreadable) else text
        if isinstance(tree, Unreadable):
            if path in own and path.endswith(".py"):
                return tree
            continue
        uses = {name for item in targets if item.path == path for name in item.uses}
        _definitions(tree, path, uses - names, names, found)
        if path in own:
            _imported(tree, path, uses, known_paths, found)
    return tuple(
        ContextReference(path=path, functions=tuple(sorted(item.functions)), classes=tuple(sorted(item.classes)))
        for path, item in sorted(found.items())
        if item.functions or item.classes
    )


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _definitions(tree: ast.Module, path: str, used: set[str], targets: set[str], found: dict[str, _Found]) -> None:
    """Top-level functions and classes of one file that are used by, or use, a target."""
    for node in tree.body:
        if not isinstance(node, FunctionNode | ast.ClassDef):
            continue
        mentions = _mentioned(node)
        if node.name not in targets and (node.name in used or mentions & targets):
            place = found.setdefault(path, _Found())
            (place.classes if isinstance(node, ast.ClassDef) else place.functions).add(node.name)


def _mentioned(node: ast.AST) -> set[str]:
    return {
        item.id if isinstance(item, ast.Name) else item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Name | ast.Attribute)
    }


def _imported(
    tree: ast.Module, path: str, uses: set[str], known_paths: Collection[str], found: dict[str, _Found]
) -> None:
    """Names a target uses that its file imports from another file of the repository."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        names = {item.asname or item.name: item.name for item in node.names}
        wanted = [original for name, original in names.items() if name in uses]
        if not wanted:
            continue
        for candidate in module_paths(path, node.level, node.module or ""):
            if candidate in known_paths:
                place = found.setdefault(candidate, _Found())
                for name in wanted:
                    (place.classes if name[:1].isupper() and not name.isupper() else place.functions).add(name)


def module_paths(path: str, level: int, module: str) -> Iterable[str]:
    """Paths that an import in `path` could mean, e.g. python/sglang/srt/utils.py for sglang.srt.utils."""
    folders = path.split("/")[:-1]
    inner = [part for part in module.split(".") if part]
    if level:
        roots = [folders[: len(folders) - level + 1]]
    else:
        roots = [folders[:depth] for depth in range(len(folders) + 1)]
        roots = [root for root in roots if not inner or folders[len(root) : len(root) + 1] == inner[:1]]
    for root in roots:
        stem = "/".join([*root, *inner])
        if stem:
            yield f"{stem}.py"
            yield f"{stem}/__init__.py"
