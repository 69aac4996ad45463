"""Which Triton functions a change touches, and how: pure, from the bytes of both sides.

Functions are compared, not lines. What is only said differently (comments, docstrings, layout, imports), only renamed
or only moved is no change of a kernel, and is labelled as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from rtb.python_source import Unreadable
from rtb.triton_source import EMPTY, JITTED, Role, TritonFunction, TritonSource, read_source

Label = Literal[
    "added",
    "body",
    "signature",
    "constants",
    "moved_modified",
    "config",
    "text",
    "renamed",
    "moved",
    "copied",
    "removed",
]
EDITS: frozenset[Label] = frozenset(("added", "body", "signature", "constants", "moved_modified"))

MOVED_LIKENESS = 0.5  # share of equal statements from which a function of one name counts as the moved one
RENAMED_LIKENESS = 0.7  # stricter where the name differs too


@dataclass(frozen=True)
class FunctionChange:
    """One function and what happened to it. `also` holds lesser labels (a body change may also change the signature).

    `path`, `name` and `index` are those after the change; of a removed function those before. `beside`: a launcher in
    the file of a kernel that it launches.
    """

    path: str
    name: str
    index: int
    role: Role
    label: Label
    signature: str
    signature_before: str = ""
    also: tuple[Label, ...] = ()
    origin: str = ""
    uses: frozenset[str] = frozenset()
    beside: bool = False

    @property
    def is_kernel(self) -> bool:
        """A jitted function or a template, not host code."""
        return self.role in JITTED

    @property
    def is_edit(self) -> bool:
        """The function does something else afterwards, as far as syntax can tell."""
        return self.label in EDITS


@dataclass(frozen=True)
class Comparison:
    """All changed functions of one change, and the files that could not be read."""

    changes: tuple[FunctionChange, ...] = ()
    unreadable: tuple[tuple[str, Unreadable], ...] = ()
    dialects: tuple[str, ...] = ()

    @property
    def kernel_edits(self) -> tuple[FunctionChange, ...]:
        """Kernels, device helpers and templates that were added or do something else."""
        return tuple(item for item in self.changes if item.is_kernel and item.is_edit)

    @property
    def configurations(self) -> tuple[FunctionChange, ...]:
        """Kernels of which only decorators or autotune lists changed."""
        return tuple(item for item in self.changes if item.is_kernel and item.label == "config")

    @property
    def launcher_edits(self) -> tuple[FunctionChange, ...]:
        """Host functions that launch kernels, or call a Triton library, and changed."""
        return tuple(item for item in self.changes if not item.is_kernel and item.is_edit)


@dataclass
class _Side:
    """The functions of one side, by path and name."""

    functions: dict[tuple[str, str], list[TritonFunction]] = field(default_factory=dict)
    unreadable: list[tuple[str, Unreadable]] = field(default_factory=list)
    dialects: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, sources: Mapping[str, TritonSource | Unreadable]) -> _Side:
        side = cls()
        for path, source in sources.items():
            if isinstance(source, Unreadable):
                side.unreadable.append((path, source))
                continue
            side.dialects.update(source.dialects)
            for item in source.functions:
                side.functions.setdefault((path, item.name), []).append(item)
        return side


@dataclass(frozen=True)
class _Loose:
    """A function that has no counterpart of the same path and name on the other side."""

    path: str
    function: TritonFunction


def compare(
    before: Mapping[str, bytes], after: Mapping[str, bytes], wrappers: frozenset[str] = frozenset()
) -> Comparison:
    """Compare two versions of some files (path -> content; a path absent on one side did not exist there)."""

    def read(side: Mapping[str, bytes]) -> dict[str, TritonSource | Unreadable]:
        return {path: read_source(data, path, wrappers) for path, data in side.items()}

    return compare_sources(read(before), read(after))


def compare_sources(
    before: Mapping[str, TritonSource | Unreadable], after: Mapping[str, TritonSource | Unreadable]
) -> Comparison:
    """Compare sources that were read already. A file unreadable on one side is left out on both."""
    if after.keys() == before.keys() and all(source is before[path] for path, source in after.items()):
        readable = [source for source in after.values() if isinstance(source, TritonSource)]
        if len(readable) == len(after):
            return Comparison(dialects=tuple(sorted({name for source in readable for name in source.dialects})))
    broken = [path for side in (before, after) for path, source in side.items() if isinstance(source, Unreadable)]
    old = _Side.of({path: source if path not in broken else _hide(source) for path, source in before.items()})
    new = _Side.of({path: source if path not in broken else _hide(source) for path, source in after.items()})
    pairs: list[tuple[_Loose, TritonFunction]] = []
    removed: list[_Loose] = []
    added: list[_Loose] = []
    for key in dict.fromkeys((*old.functions, *new.functions)):
        left, right = old.functions.get(key, []), new.functions.get(key, [])
        if left and right and _same(left, right):
            continue
        matched, gone, fresh = _pair(left, right)
        pairs += [(_Loose(key[0], function), other) for function, other in matched]
        removed += [_Loose(key[0], function) for function in gone]
        added += [_Loose(key[0], function) for function in fresh]
    changes = _label_all(pairs, removed, added, old)
    unreadable = tuple(dict(old.unreadable + new.unreadable).items())
    return Comparison(tuple(changes), unreadable, tuple(sorted(new.dialects | old.dialects)))


def _hide(source: TritonSource | Unreadable) -> TritonSource | Unreadable:
    return source if isinstance(source, Unreadable) else EMPTY


def _same(left: list[TritonFunction], right: list[TritonFunction]) -> bool:
    return len(left) == len(right) and all(
        a.text == b.text and a.config == b.config and a.constants == b.constants and a.role == b.role
        for a, b in zip(left, right, strict=True)
    )


def _pair(
    left: list[TritonFunction], right: list[TritonFunction]
) -> tuple[list[tuple[TritonFunction, TritonFunction]], list[TritonFunction], list[TritonFunction]]:
    """Pair functions of one path and name: equal bodies first, then in order."""
    pairs: list[tuple[TritonFunction, TritonFunction]] = []
    rest_left, rest_right = list(left), list(right)
    for item in left:
        twin = next((other for other in rest_right if other.shape.body == item.shape.body), None)
        if twin is not None:
            pairs.append((item, twin))
            rest_left.remove(item)
            rest_right.remove(twin)
    shared = min(len(rest_left), len(rest_right))
    pairs += list(zip(rest_left[:shared], rest_right[:shared], strict=True))
    return pairs, rest_left[shared:], rest_right[shared:]


def _label_all(
    pairs: list[tuple[_Loose, TritonFunction]], removed: list[_Loose], added: list[_Loose], old: _Side
) -> Iterable[FunctionChange]:
    renames = _renames(removed, added)
    for loose, function in pairs:
        yield from _changed_in_place(loose, function, renames)
    taken: set[int] = set()
    for fresh in added:
        origin = _origin(fresh, removed, taken, renames)
        if origin is not None:
            taken.add(origin)
            yield _relocated(removed[origin], fresh, renames)
        elif (twin := _copy_of(fresh, old)) is not None:
            yield _change(fresh.path, fresh.function, "copied", origin=twin)
        else:
            yield _change(fresh.path, fresh.function, "added")
    for index, gone in enumerate(removed):
        if index not in taken:
            before = gone.function.signature
            yield replace(_change(gone.path, gone.function, "removed"), signature_before=before)


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _renames(removed: list[_Loose], added: list[_Loose]) -> dict[str, str]:
    """Old name -> new name where an added function is a removed one under another name."""
    found: dict[str, str] = {}
    for fresh in added:
        for gone in removed:
            same = gone.function.shape.alpha == fresh.function.shape.alpha
            if same and gone.function.role in JITTED and fresh.function.role in JITTED:
                found.setdefault(_last(gone.function.name), _last(fresh.function.name))
    for fresh in added:
        if fresh.function.role not in JITTED:
            for gone in removed:
                if gone.function.role not in JITTED and gone.function.shape.alpha == fresh.function.shape.alpha:
                    found.setdefault(_last(gone.function.name), _last(fresh.function.name))
    return {old: new for old, new in found.items() if old != new}


def _only_renamed(left: TritonFunction, right: TritonFunction, renames: Mapping[str, str]) -> bool:
    """Equal but for names: local ones, or names of functions that this change renames."""
    if left.shape.alpha != right.shape.alpha or left.constants != right.constants:
        return False
    if len(left.shape.references) != len(right.shape.references):
        return False
    changed = {(a, b) for a, b in zip(left.shape.references, right.shape.references, strict=True) if a != b}
    return all(renames.get(a) == b for a, b in changed)


def _changed_in_place(loose: _Loose, right: TritonFunction, renames: Mapping[str, str]) -> Iterable[FunctionChange]:
    left = loose.function
    was, now = left.role in JITTED, right.role in JITTED
    if was and not now:
        yield _change(loose.path, left, "removed")
    labels: list[Label] = []
    if now and not was:
        labels = ["added"]
    else:
        labels = _differences(left, right, now)
        if any(item in EDITS for item in labels) and _only_renamed(left, right, renames):
            labels = ["renamed", *(item for item in labels if item not in EDITS)]
    if not labels:
        return
    change = _change(loose.path, right, labels[0], also=tuple(labels[1:]))
    yield replace(change, signature_before=left.signature)


def _differences(left: TritonFunction, right: TritonFunction, jitted: bool) -> list[Label]:
    """Every way in which two versions of a function differ, the weightiest first."""
    labels: list[Label] = []
    if left.shape.body != right.shape.body:
        labels.append("body")
    if jitted:
        if left.shape.signature != right.shape.signature:
            labels.append("signature")
        if left.constants != right.constants:
            labels.append("constants")
        if left.config != right.config:
            labels.append("config")
    elif left.shape.plain_signature != right.shape.plain_signature:
        labels.append("signature")
    if not labels and left.text != right.text:
        labels.append("text")
    return labels


def _origin(fresh: _Loose, removed: list[_Loose], taken: set[int], renames: Mapping[str, str]) -> int | None:
    """Which removed function an added one was before: same body, else same name and alike, else very alike."""
    name = _last(fresh.function.name)
    jitted = fresh.function.role in JITTED
    free = {
        index: item.function
        for index, item in enumerate(removed)
        if index not in taken and (item.function.role in JITTED) == jitted
    }
    namesakes = [index for index, function in free.items() if _last(function.name) == name]
    exact = [index for index, function in free.items() if _only_renamed(function, fresh.function, renames)]
    if exact:
        return next((index for index in namesakes if index in exact), exact[0])
    scores = {index: function.shape.likeness(fresh.function.shape) for index, function in free.items()}
    good = [index for index in namesakes if scores[index] >= MOVED_LIKENESS]
    good = good or [index for index in free if scores[index] >= RENAMED_LIKENESS]
    return max(good, key=lambda index: scores[index]) if good else None


def _relocated(origin: _Loose, fresh: _Loose, renames: Mapping[str, str]) -> FunctionChange:
    """A function found again under another path or name."""
    left, right = origin.function, fresh.function
    place = f"{origin.path}:{left.name}"
    if not _only_renamed(left, right, renames):
        label: Label = "moved_modified"
    else:
        label = "moved" if origin.path != fresh.path else "renamed"
    also: tuple[Label, ...] = ("config",) if right.role in JITTED and left.config != right.config else ()
    change = _change(fresh.path, right, label, also=also, origin=place)
    return replace(change, signature_before=left.signature)


def _copy_of(fresh: _Loose, old: _Side) -> str | None:
    """Where an equal function stood before the change, in the files of the change."""
    if fresh.function.role not in JITTED:
        return None
    for (path, name), functions in old.functions.items():
        for item in functions:
            same = (
                item.shape.alpha == fresh.function.shape.alpha
                and item.shape.references == fresh.function.shape.references
            )
            if same and item.role in JITTED and item.constants == fresh.function.constants:
                return f"{path}:{name}"
    return None


def _change(
    path: str, function: TritonFunction, label: Label, also: tuple[Label, ...] = (), origin: str = ""
) -> FunctionChange:
    return FunctionChange(
        path=path,
        name=function.name,
        index=function.index,
        role=function.role,
        label=label,
        signature=function.signature,
        also=also,
        origin=origin,
        uses=function.uses,
        beside=function.beside,
    )
