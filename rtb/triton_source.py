"""The Triton functions of one source file: kernels, device helpers, launchers and templates, by syntax alone.

A file is read piece by piece (see `python_source.parts`) and each distinct piece is parsed once, so walking the
thousands of versions of a file costs little more than the pieces that changed. What a piece says by itself is in
`rtb.triton_piece`; this module puts the pieces of one file together: it resolves which decorators are `triton.jit`
through the file's imports and aliases, and finds the constants and configuration lists the kernels depend on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from rtb.fingerprint import Fingerprint, digest
from rtb.python_source import Unreadable, decode, members, parts
from rtb.triton_piece import Piece, RawFunction, read_jinja, read_piece

Role = Literal["kernel", "device", "launcher", "host", "template"]
JITTED: frozenset[Role] = frozenset(("kernel", "device", "template"))

_JIT = re.compile(r"@[^\n]*jit|\bjit\b")
_LAUNCH = re.compile(r"[\w)\]]\s*\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(")
_IMPORT = re.compile(
    r"^[ \t]*(from[ \t]+[\w.]+[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]*(?:\\\n[^\n]*)*)|import[ \t]+[^\n]+)",
    re.MULTILINE,
)
_INNER_HEAD = re.compile(r"^[ \t]+(?:async[ \t]+)?(?:def[ \t]+)?([A-Za-z_]\w*)[ \t]*(?=[:=(])", re.MULTILINE)
_BLOCKS = ("if ", "try:", "with ", "else:", "for ")
_NOT_VALUES = ("class ", "import ", "from ", "if ", "@")
_HEAD = re.compile(r"(?:async\s+)?(?:def\s+)?([A-Za-z_]\w*)\s*(?=[:=(])")


@dataclass(frozen=True)
class TritonFunction:
    """One function of a file with the role the file gives it. `index` counts functions of one name, from 0."""

    name: str
    index: int
    role: Role
    signature: str
    text: str
    shape: Fingerprint
    config: str
    constants: str
    uses: frozenset[str]


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


def may_matter(data: bytes, path: str) -> bool:
    """Cheap test on bytes before anything is decoded: False only when no Triton function can be in the file."""
    if b"triton" not in data and "triton" not in path:
        return False
    return b"jit" in data or b"def_kernel" in data or b"](" in data or b"triton_kernels" in data


def read_source(data: bytes, path: str, wrappers: frozenset[str] = frozenset()) -> TritonSource | Unreadable:
    """The Triton functions of a file.

    `wrappers` are dotted names of a project's own decorators that stand for `triton.jit`. Returns `Unreadable` for
    a file that does not parse where it would matter.
    """
    if not may_matter(data, path):
        return EMPTY
    text = decode(data)
    if isinstance(text, Unreadable):
        return text
    if path.endswith((".jinja", ".jinja2", ".j2")):
        return _of_template(text, path)
    return _assemble(text, path, wrappers)


def _of_template(text: str, path: str) -> TritonSource:
    stem = path.rsplit("/", 1)[-1].split(".", 1)[0]
    found = read_jinja(stem, text)
    if found is None:
        return EMPTY
    return TritonSource(functions=(_function(found, "template", 0, "", ""),))


@lru_cache(maxsize=16384)
def _matters(text: str) -> bool:
    """Whether a part can hold, launch or name a jitted function."""
    if "jit" in text and _JIT.search(text):
        return True
    return "def_kernel" in text or ("](" in text and _LAUNCH.search(text) is not None)


@lru_cache(maxsize=4096)
def _piece(text: str, telltales: tuple[str, ...] = ()) -> Piece | Unreadable:
    """A part's facts. Of a large class only the members that matter are read."""
    found = members(text)
    if found is None:
        return read_piece(text)
    name, bodies = found
    held = []
    for body in bodies:
        if _matters(body) or any(item in body for item in telltales):
            piece = read_piece(body)
            if isinstance(piece, Unreadable):
                return read_piece(text)
            held.append(piece)
    return Piece(
        functions=tuple(replace(item, name=f"{name}.{item.name}") for piece in held for item in piece.functions),
        imports=tuple(item for piece in held for item in piece.imports),
        aliases=tuple(item for piece in held for item in piece.aliases),
        jit_wrappers=tuple(item for piece in held for item in piece.jit_wrappers),
        jitted_by_call=tuple(item for piece in held for item in piece.jitted_by_call),
    )


def _assemble(text: str, path: str, wrappers: frozenset[str]) -> TritonSource | Unreadable:
    whole = parts(text)
    read: dict[int, Piece] = {}
    for number, part in enumerate(whole):
        if _matters(part):
            piece = _piece(part)
            if isinstance(piece, Unreadable):
                return _whole(text, path, wrappers)
            read[number] = piece
    names = _Names.of(text, read.values(), path, wrappers)
    called = (name for piece in read.values() for ref, name in piece.jitted_by_call if names.is_jit(ref))
    if telltales := (*names.telltales, *(f"def {name}(" for name in called)):
        for number, part in enumerate(whole):
            if any(item in part for item in telltales) and (number not in read or members(part) is not None):
                piece = _piece(part, telltales)
                if isinstance(piece, Unreadable):
                    return _whole(text, path, wrappers)
                read[number] = piece
    held = [read[number] for number in sorted(read)]
    return _resolve(held, names, _Definitions(whole))


def _whole(text: str, path: str, wrappers: frozenset[str]) -> TritonSource | Unreadable:
    """The file as one piece, for files that the cut by indentation does not fit."""
    piece = read_piece(text)
    if isinstance(piece, Unreadable):
        return piece
    return _resolve([piece], _Names.of(text, [piece], path, wrappers), _Definitions(parts(text)))


@lru_cache(maxsize=4096)
def _imports(statement: str) -> Piece:
    """The bindings of one import statement; empty for text that only looks like one."""
    piece = read_piece(statement)
    return Piece() if isinstance(piece, Unreadable) else piece


class _Definitions:
    """Digests of top-level names, for the constants and configuration lists that kernels refer to."""

    def __init__(self, whole: Iterable[str]) -> None:
        self._heads: dict[str, list[str]] = {}
        for part in whole:
            if part.startswith(_BLOCKS):
                for inner in _INNER_HEAD.finditer(part):
                    self._heads.setdefault(inner[1], []).append(part)
            elif (head := _HEAD.match(part)) and not part.startswith(_NOT_VALUES):
                self._heads.setdefault(head[1], []).append(part)

    def constants(self, names: Iterable[str]) -> str:
        """One digest over the top-level values (not functions) among `names`; empty when there are none."""
        found = []
        for name in sorted(set(names)):
            for part in dict.fromkeys(self._heads.get(name, ())):
                piece = _piece(part)
                if isinstance(piece, Piece) and name in piece.values:
                    found.append(f"{name}={piece.values[name]}")
        return digest("".join(found)) if found else ""

    def helpers(self, names: Iterable[str], depth: int = 2) -> str:
        """One digest over values and functions among `names`, and what those refer to."""
        found = []
        for name in sorted(set(names)):
            for part in dict.fromkeys(self._heads.get(name, ())):
                piece = _piece(part)
                if isinstance(piece, Unreadable):
                    continue
                below = {other for item in piece.functions for other in item.shape.references} | piece.value_names
                deeper = self.helpers(below - {name}, depth - 1) if depth else ""
                bodies = "".join(item.shape.body for item in piece.functions if item.name == name)
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
    def of(cls, text: str, pieces: Iterable[Piece], path: str, wrappers: frozenset[str]) -> _Names:
        """Imports of the whole file, then aliases of jit until no new one is found."""
        held = list(pieces)
        written = (match[1] for match in _IMPORT.finditer(text))
        stated = [_imports(item) for item in written if "triton" in item or "jit" in item]
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
            constants = definitions.constants(item.shape.references)
        found.append(_function(item, role, index, config, constants))
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
    """A digest of the decorators, with every plain spelling of jit taken as the same one."""
    said = []
    for decorator in item.decorators:
        plain = decorator.plain and any(names.is_jit(ref) for ref in decorator.names)
        said.append("jit" if plain else f"{decorator.digest}{definitions.helpers(decorator.loads)}")
    return digest("|".join(said))


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
