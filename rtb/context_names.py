"""Names around a target: what it uses of its repository, and what uses it there. Pure, names only."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rtb.fingerprint import FunctionNode
from rtb.kernels import FunctionChange
from rtb.python_source import Unreadable, cut, decode, members, parse
from rtb.source_parts import written_imports
from rtb.syntax import nodes
from rtb.task import ContextReference

_DEFINED = re.compile(r"^(?:async[ \t]+)?(?P<what>def|class)[ \t]+(?P<name>\w+)", re.MULTILINE)


@dataclass
class _Found:
    functions: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)


def context_of_targets(
    targets: Collection[FunctionChange],
    sources: Mapping[str, bytes],
    exists: Callable[[str], bool] = lambda _: False,
) -> tuple[ContextReference, ...] | Unreadable:
    """Functions and classes that the targets use or that use them.

    `sources` (path -> content after the change) are the files looked at: those of the change, and others that name a
    target. A name that a target's file imports from elsewhere is listed under the first path it could come from for
    which `exists` is true. Returns Unreadable when a target's own file does not parse.
    """
    found: dict[str, _Found] = {}
    own = {item.path for item in targets}
    names = {_last(item.name) for item in targets}
    for path, data in sources.items():
        text = decode(data)
        uses = {name for item in targets if item.path == path for name in item.uses}
        broken = text if isinstance(text, Unreadable) else _definitions(text, path, uses - names, names, found)
        if broken is not None and path in own and path.endswith(".py"):
            return broken
        if path in own and isinstance(text, str):
            _imported(text, path, uses, exists, found)
    return tuple(
        ContextReference(path=path, functions=tuple(sorted(item.functions)), classes=tuple(sorted(item.classes)))
        for path, item in sorted(found.items())
        if item.functions or item.classes
    )


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _definitions(
    text: str, path: str, used: Collection[str], targets: Collection[str], found: dict[str, _Found]
) -> Unreadable | None:
    """Top-level functions and classes of one file that are used by, or use, a target.

    Only parts that hold a target's name are parsed: a comment that names it is no use of it.
    """
    if not used and not any(name in text for name in targets):
        return None  # most of the files that a large change touches
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(targets)))})\b")
    for part in cut(text)[0]:
        head = _DEFINED.search(part)
        if head is None or head["name"] in targets:
            continue
        if head["name"] not in used:
            if not any(name in part for name in targets) or not words.search(part):
                continue  # a name is sought first, which is faster than the expression
            mentioned = _mentioned_in(part, words)
            if isinstance(mentioned, Unreadable):
                tree = parse(text)
                if isinstance(tree, Unreadable):
                    return tree
                same = (item for item in tree.body if _name_of(item) == head["name"])
                mentioned = {name for item in same for name in _mentioned(item)}
            if not mentioned & set(targets):
                continue
        place = found.setdefault(path, _Found())
        (place.classes if head["what"] == "class" else place.functions).add(head["name"])
    return None


def _mentioned_in(part: str, words: re.Pattern[str]) -> set[str] | Unreadable:
    """Names in a part; of a large class only in the members that hold one of these words."""
    held = members(part)
    found: set[str] = set()
    for text in held[1] if held is not None else [part]:
        if words.search(text):
            tree = parse(text)
            if isinstance(tree, Unreadable):
                return tree
            found |= _mentioned(tree)
    return found


def _name_of(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, FunctionNode | ast.ClassDef) else None


def _mentioned(node: ast.AST) -> set[str]:
    return {
        item.id if isinstance(item, ast.Name) else item.attr
        for item in nodes(node)
        if isinstance(item, ast.Name | ast.Attribute)
    }


def _imported(
    text: str, path: str, uses: Collection[str], exists: Callable[[str], bool], found: dict[str, _Found]
) -> None:
    """Names a target uses that its file imports from another file of the repository."""
    for statement in written_imports(text):
        if not statement.startswith("from") or not any(name in statement for name in uses):
            continue
        tree = parse(statement)
        if isinstance(tree, Unreadable):
            continue  # words in a text that look like an import
        for node in tree.body:
            if not isinstance(node, ast.ImportFrom):
                continue
            wanted = [item.name for item in node.names if (item.asname or item.name) in uses]
            home = next(filter(exists, module_paths(path, node.level, node.module or "")), None) if wanted else None
            if home is not None:
                place = found.setdefault(home, _Found())
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


_TOO_COMMON = frozenset(("forward", "backward", "apply", "kernel", "_kernel", "matmul", "softmax", "attention"))


def telling_names(targets: Collection[FunctionChange]) -> tuple[str, ...]:
    """Names of targets by which their users can be searched for: no methods, no new ones, no everyday words."""
    names = {item.name for item in targets if item.label != "added" and "." not in item.name}
    return tuple(sorted(name for name in names if len(name) > 5 and name not in _TOO_COMMON))
