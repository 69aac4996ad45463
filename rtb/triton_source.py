"""The Triton functions of one source file: kernels, device helpers, launchers and templates, by syntax alone.

A file is read part by part (see `rtb.source_parts`), and of a further version only the parts that changed. What a
part says by itself is in `rtb.triton_piece`; this module puts the parts of one file together: it resolves which
decorators are `triton.jit` through the file's imports and aliases, and finds the constants and configuration lists
that the kernels depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from rtb.fingerprint import Fingerprint, digest
from rtb.python_source import Unreadable, decode
from rtb.relevance import Irrelevant, irrelevant
from rtb.source_parts import Part, parts_again, parts_of
from rtb.triton_piece import Decorator, Piece, RawFunction, read_jinja, read_piece

Role = Literal["kernel", "device", "launcher", "host", "template"]
JITTED: frozenset[Role] = frozenset(("kernel", "device", "template"))


@dataclass(frozen=True)
class TritonFunction:
    """One function of a file with the role the file gives it. `index` counts functions of one name, from 0.

    `beside` says that a launcher stands in the file of a kernel that it launches.
    """

    name: str
    index: int
    role: Role
    signature: str
    text: str
    shape: Fingerprint
    config: str
    constants: str
    uses: frozenset[str]
    beside: bool = False


@dataclass(frozen=True)
class TritonSource:
    """What a file holds. `dialects` names kernels of other languages that were seen and left out."""

    functions: tuple[TritonFunction, ...] = ()
    dialects: tuple[str, ...] = ()
    imports: frozenset[str] = frozenset()

    @property
    def kernels(self) -> tuple[TritonFunction, ...]:
        """The jitted functions and templates."""
        return tuple(item for item in self.functions if item.role in JITTED)


EMPTY = TritonSource()


@dataclass(frozen=True)
class Reading:
    """One version of a file as read: its parts, what came of them, and what makes a change of a part count.

    `telltales` are texts, `kernels` names that could be launched, `asked` top-level names that were looked up: a part
    with none of them, and nothing of Triton in it, has no say. A file that was not read in parts has none.
    `irrelevant` is the version when it need not be read.
    """

    source: TritonSource | Unreadable
    parts: tuple[Part, ...] = ()
    telltales: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()
    irrelevant: Irrelevant | None = None

    def has_say(self, part: Part) -> bool:
        """Whether this part coming or going can change what was found."""
        if part.holds or part.imports is not None or part.launches_any(self.kernels):
            return True
        return any(item in part.text for item in self.telltales) or not self.asked.isdisjoint(part.heads)


def read_source(data: bytes, path: str, wrappers: frozenset[str] = frozenset()) -> TritonSource | Unreadable:
    """The Triton functions of a file.

    `wrappers` are dotted names of a project's own decorators that stand for `triton.jit`. Returns `Unreadable` for
    a file that does not parse where it would matter.
    """
    return read(data, path, wrappers).source


def read(
    data: bytes,
    path: str,
    wrappers: frozenset[str] = frozenset(),
    before: Reading | None = None,
    passed_over: Irrelevant | None = None,
) -> Reading:
    """As `read_source`; `before` and `passed_over` are other versions of the same file, one that was read and one
    that was not: what is equal is not read again."""
    if (found := irrelevant(data, path, wrappers, passed_over)) is not None:
        return Reading(EMPTY, irrelevant=found)
    text = decode(data)
    if isinstance(text, Unreadable):
        return Reading(text)
    if path.endswith((".jinja", ".jinja2", ".j2")):
        return Reading(_of_template(text, path))
    if before is None or not before.parts:
        return _assemble(text, parts_of(text), path, wrappers)
    whole, first, last = parts_again(before.parts, text)
    changed = chain(before.parts[first : len(before.parts) - last], whole[first : len(whole) - last])
    if not any(map(before.has_say, changed)):
        return replace(before, parts=whole)
    return _assemble(text, whole, path, wrappers)


def _of_template(text: str, path: str) -> TritonSource:
    stem = path.rsplit("/", 1)[-1].split(".", 1)[0]
    found = read_jinja(stem, text)
    if found is None:
        return EMPTY
    return TritonSource(functions=(_function(found, "template", 0, "", ""),))


def _assemble(text: str, whole: tuple[Part, ...], path: str, wrappers: frozenset[str]) -> Reading:
    found = {number: part.piece for number, part in enumerate(whole) if part.holds}
    pieces = [piece for piece in found.values() if isinstance(piece, Piece)]
    if len(pieces) < len(found):
        return _whole(text, path, wrappers)
    names = _Names.of(_stated(whole), pieces, path, wrappers)
    called = {name for piece in pieces for ref, name in piece.jitted_by_call if names.is_jit(ref)}
    telltales = (*names.telltales, *(f"def {name}(" for name in sorted(called)))
    jitted = {_last(item.name) for piece in pieces for item in piece.functions if _is_jitted(item, names, called)}
    kernels = tuple(sorted(jitted | called | {name for name, origin in names.imports.items() if "triton" in origin}))
    for number, part in enumerate(whole):
        spoken = any(item in part.text for item in telltales) or part.launches_any(kernels)
        if spoken and (number not in found or part.is_large_class):
            piece = part.told(telltales, kernels)
            if isinstance(piece, Unreadable):
                return _whole(text, path, wrappers)
            found[number] = piece
    held = [piece for number in sorted(found) if isinstance(piece := found[number], Piece)]
    definitions = _Definitions(whole)
    source = _resolve(held, names, definitions)
    return Reading(source, whole, telltales, kernels, frozenset(definitions.asked))


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _stated(whole: Iterable[Part]) -> list[Piece]:
    return [part.imports for part in whole if part.imports is not None]


def _whole(text: str, path: str, wrappers: frozenset[str]) -> Reading:
    """The file as one piece, for files that the cut by indentation does not fit."""
    piece = read_piece(text)
    if isinstance(piece, Unreadable):
        return Reading(piece)
    whole = parts_of(text)
    return Reading(_resolve([piece], _Names.of(_stated(whole), [piece], path, wrappers), _Definitions(whole)))


class _Definitions:
    """Digests of top-level names, for the constants and configuration lists that kernels refer to.

    `asked` collects the names that were looked up.
    """

    def __init__(self, whole: Iterable[Part]) -> None:
        self.asked: set[str] = set()
        self._heads: dict[str, list[Part]] = {}
        for part in whole:
            for name in part.heads:
                self._heads.setdefault(name, []).append(part)

    def _defining(self, name: str) -> Iterable[Piece]:
        self.asked.add(name)
        pieces = (part.piece for part in dict.fromkeys(self._heads.get(name, ())))
        return (piece for piece in pieces if isinstance(piece, Piece))

    def constants(self, names: Iterable[str]) -> str:
        """One digest over the top-level values (not functions) among `names`; empty when there are none."""
        found = [
            f"{name}={piece.values[name]}"
            for name in sorted(set(names))
            for piece in self._defining(name)
            if name in piece.values
        ]
        return digest("".join(found)) if found else ""

    def helpers(self, names: Iterable[str], depth: int = 2) -> str:
        """One digest over values, functions and classes among `names`, and what those refer to; of a block that
        defines more (an `if`), the rest has no part in it."""
        found = []
        for name in sorted(set(names)):
            for piece in self._defining(name):
                own = [item for item in piece.functions if item.name.split(".", 1)[0] == name]
                below = {other for item in own for other in item.shape.references}
                below |= piece.value_names if name in piece.values else frozenset()
                deeper = self.helpers(below - {name}, depth - 1) if depth else ""
                bodies = "".join(item.shape.body for item in own if item.name == name)
                found.append(f"{name}={piece.values.get(name, '')}{bodies}{deeper}")
        return digest("".join(found)) if found else ""


@dataclass(frozen=True)
class _Names:
    """What the names of a file mean."""

    imports: Mapping[str, str]
    jit: frozenset[str]
    wrappers: frozenset[str]
    in_triton: bool
    stars: tuple[str, ...]

    @classmethod
    def of(cls, stated: Sequence[Piece], pieces: Iterable[Piece], path: str, wrappers: frozenset[str]) -> _Names:
        """Imports of the whole file, then aliases of jit until no new one is found."""
        held = list(pieces)
        imports = {name: origin for piece in (*stated, *held) for name, origin in piece.imports}
        stars = tuple(origin for piece in stated for origin in piece.stars)
        names = cls(imports, frozenset(), wrappers, "triton" in path.split("/")[:-1], stars)
        for _ in range(4):
            more = {name for piece in held for name, refs in piece.aliases if any(map(names.is_jit, refs))}
            more |= {name for piece in held for name, ref in piece.jit_wrappers if names.is_jit(ref)}
            if more <= names.jit:
                break
            names = cls(imports, names.jit | more, wrappers, names.in_triton, stars)
        return names

    @property
    def telltales(self) -> tuple[str, ...]:
        """Text that marks a piece as one to read although it names neither Triton nor jit."""
        likely = (name for name, origin in self.imports.items() if "jit" in origin or self.wrappers)
        spoken = (name for name in (*self.jit, *likely) if "jit" not in name and self.is_jit(name))
        aliases = (f"@{name}" for name in spoken)
        library = (name for name, origin in self.imports.items() if _is_library(origin))
        return (*aliases, *library)

    def resolve(self, dotted: str) -> str:
        """A dotted name with its first part replaced by where it was imported from."""
        root, _, rest = dotted.partition(".")
        origin = self.imports.get(root)
        if origin is None:
            return dotted
        return f"{origin}.{rest}" if rest else origin

    def is_jit(self, dotted: str) -> bool:
        """Whether a dotted name stands for `triton.jit`."""
        if dotted in self.jit:
            return True
        full = self.resolve(dotted)
        if full in self.wrappers or any(full.endswith(f".{name}") for name in self.wrappers):
            return True
        if full == "triton.jit" or full.endswith((".triton.jit", "runtime.jit.jit")):
            return True
        if full == "jit":
            return any(star.split(".")[0] == "triton" for star in self.stars)
        return self.in_triton and full.startswith(".") and full.endswith(".jit")

    def dialect(self, dotted: str) -> str | None:
        """The full name of a `.jit` of some other language, or None."""
        full = self.resolve(dotted)
        last = full.rsplit(".", 1)[-1]
        return full if last in ("jit", "njit") and not self.is_jit(dotted) else None


def _resolve(read: Sequence[Piece], names: _Names, definitions: _Definitions) -> TritonSource:
    raw = [item for piece in read for item in piece.functions]
    by_call = {item for piece in read for ref, item in piece.jitted_by_call if names.is_jit(ref)}
    jitted = [_is_jitted(item, names, by_call) for item in raw]
    known = {item.name.rsplit(".", 1)[-1] for item, is_jit in zip(raw, jitted, strict=True) if is_jit}
    called_on_device = {
        name for item, is_jit in zip(raw, jitted, strict=True) if is_jit for name in item.shape.references
    }
    launched = {name for item in raw for name in item.launches}
    found: list[TritonFunction] = []
    counts: dict[str, int] = {}
    for item, is_jit in zip(raw, jitted, strict=True):
        role = _role(item, is_jit, known, called_on_device, launched, names)
        if role is None:
            continue
        index = counts.get(item.name, 0)
        counts[item.name] = index + 1
        config = constants = ""
        if is_jit:
            config = _config(item, names, definitions)
            constants = definitions.constants(item.shape.references) + _heuristics(item, names, definitions)
        beside = role == "launcher" and not known.isdisjoint(item.launches)
        found.append(replace(_function(item, role, index, config, constants), beside=beside))
    decorators = (ref for item in raw for decorator in item.decorators for ref in decorator.names)
    dialects = {full for ref in decorators if (full := names.dialect(ref))}
    return TritonSource(tuple(found), tuple(sorted(dialects)), frozenset(names.imports.values()))


def _is_jitted(item: RawFunction, names: _Names, by_call: set[str]) -> bool:
    if any(names.is_jit(ref) for decorator in item.decorators for ref in decorator.names):
        return True
    return bool(by_call) and item.name.rsplit(".", 1)[-1] in by_call


def _is_library(origin: str) -> bool:
    """Whether a name comes from Triton's own library of ready kernels."""
    return "triton_kernels" in origin.split(".")[:-1]


def _role(
    item: RawFunction, is_jit: bool, known: set[str], on_device: set[str], launched: set[str], names: _Names
) -> Role | None:
    if item.template:
        return "template"
    last = item.name.rsplit(".", 1)[-1]
    if is_jit:
        return "device" if last in on_device and last not in launched else "kernel"
    for base in item.launches:
        imported = names.imports.get(base, "")
        if base in known or "kernel" in base.lower() or "triton" in imported:
            return "launcher"
    if any(_is_library(names.imports.get(name, "")) for name in item.shape.references):
        return "host"
    return None


def _config(item: RawFunction, names: _Names, definitions: _Definitions) -> str:
    """A digest of the decorators, with every plain spelling of jit taken as the same one; without heuristics."""
    said = []
    for decorator in item.decorators:
        if _is_heuristics(decorator, names):
            continue
        plain = decorator.plain and any(names.is_jit(ref) for ref in decorator.names)
        said.append("jit" if plain else f"{decorator.digest}{definitions.helpers(decorator.loads)}")
    return digest("|".join(said))


def _heuristics(item: RawFunction, names: _Names, definitions: _Definitions) -> str:
    """A digest of what `triton.heuristics` gives a kernel: it computes with that, as with constants."""
    found = [
        f"{decorator.digest}{definitions.helpers(decorator.loads)}"
        for decorator in item.decorators
        if _is_heuristics(decorator, names)
    ]
    return digest("|".join(found)) if found else ""


def _is_heuristics(decorator: Decorator, names: _Names) -> bool:
    return any(names.resolve(ref).endswith("triton.heuristics") for ref in decorator.names)


def _function(item: RawFunction, role: Role, index: int, config: str, constants: str) -> TritonFunction:
    return TritonFunction(
        name=item.name,
        index=index,
        role=role,
        signature=item.signature,
        text=item.text,
        shape=item.shape,
        config=config,
        constants=constants,
        uses=frozenset(item.shape.references),
    )
