"""Predictions: what models answer. Every fault of a file is explained; the bad lines never stop the good ones."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rtb.errors import ExpectedError, InvalidFile
from rtb.foreign_json import parse_foreign_json, writable
from rtb.task import Frozen

KEYS = ("instance_id", "model_name_or_path", "model_patch")
# Names that other harnesses gave to the same things; accepted, and said so.
OLD_KEYS = {"model": "model_name_or_path", "prediction": "model_patch", "patch": "model_patch"}
CONTROLS = ("gold", "base", "sabotage")

ProblemKind = Literal[
    "invalid_json",
    "not_an_object",
    "no_instance_id",
    "patch_not_text",
    "no_patch",
    "key_disagrees",
    "duplicate",
    "unknown_id",
    "old_keys",
    "null_patch",
    "blank_line",
    "byte_order_mark",
    "same_twice",
]
WARNINGS: frozenset[ProblemKind] = frozenset(
    {"old_keys", "null_patch", "blank_line", "byte_order_mark", "same_twice", "unknown_id"}
)


# U+DC80 to U+DCFF stand for bytes (surrogateescape); the others stand for nothing.
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class Prediction(Frozen):
    """One answer. In `model_patch`, bytes that are not UTF-8 stand as lone surrogates (surrogateescape)."""

    instance_id: str
    model_name_or_path: str
    model_patch: str
    extra: dict[str, Any] = Field(default={}, description="keys beyond SWE-bench's three, kept as given")

    @property
    def patch_bytes(self) -> bytes:
        """The patch as bytes, exactly as captured."""
        return self.model_patch.encode("utf-8", "surrogateescape")

    @property
    def cost_usd(self) -> float | None:
        """Cost the scaffold reported, or None: an unknown cost is not zero."""
        value = self.extra.get("cost_usd", self.extra.get("cost"))
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
            return None
        return float(value)

    @property
    def tokens(self) -> int | None:
        value = self.extra.get("tokens")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def unfinished(self) -> str | None:
        """Why this is no answer yet: the scaffold says that a machine's fault, not the model, ended its attempt."""
        if self.extra.get("finished") is not False:
            return None
        status, reason = self.extra.get("exit_status"), self.extra.get("exit_reason")
        said = ": ".join(str(item) for item in (status, reason) if item)
        return f"not graded: the attempt was ended by a fault, not by the model ({said or 'no reason given'})"

    def to_line(self) -> bytes:
        """One JSONL line in SWE-bench's form. ASCII, so that lone surrogates survive."""
        document = {key: getattr(self, key) for key in KEYS} | self.extra
        return json.dumps(document).encode() + b"\n"


def attempt_file(first: Path, number: int) -> Path:
    """Where the answers of attempt `number` stand, from 1: a file each, as an evaluation takes one answer a task."""
    return first if number == 1 else first.with_name(f"{first.stem}.attempt-{number}{first.suffix}")


class Problem(Frozen):
    """One fault of a predictions file. `place` is a line number (JSONL), an index (list) or a key (dict)."""

    place: str
    kind: ProblemKind
    message: str
    instance_id: str | None = None

    @property
    def is_warning(self) -> bool:
        """A warning does not keep the prediction from being evaluated (an unknown id has no task to run)."""
        return self.kind in WARNINGS


@dataclass(frozen=True)
class _Position:
    offset: int
    length: int
    place: str


@dataclass
class PredictionFile:
    """An index of a predictions file: where each good prediction stands. Patches stay on disk (memory is flat)."""

    path: Path
    form: Literal["jsonl", "list", "dict"]
    positions: dict[str, _Position]
    problems: tuple[Problem, ...]
    model_names: tuple[str, ...]
    empty: frozenset[str]
    unfinished: dict[str, str] = field(default_factory=dict)
    """Lines that are no answer, by id, with the reason (`Prediction.unfinished`); none of them is in `ids`."""
    documents: dict[str, Prediction] = field(default_factory=dict, repr=False)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the predictions that can be evaluated, in the file's order."""
        return tuple(self.positions)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if not problem.is_warning)

    def load(self, instance_id: str) -> Prediction:
        """One prediction, read from disk. Raises KeyError on an id that is not in `ids`."""
        if instance_id in self.documents:
            return self.documents[instance_id]
        position = self.positions[instance_id]
        with self.path.open("rb") as file:
            file.seek(position.offset)
            data = file.read(position.length)
        found = _examine(parse_foreign_json(data.decode("utf-8")), position.place)[0]
        if found is None:
            raise ExpectedError(
                f"{self.path} changed while it was read (line {position.place}); run the command again"
            )
        return found


def read_predictions(path: Path, known_ids: Collection[str] | None = None) -> PredictionFile:
    """Index a predictions file: JSONL, a JSON list, or a JSON dict keyed by instance id.

    Every fault gets its own message with its place; none stops the others. Two different patches for one id: neither
    is taken. Raises InvalidFile when the file cannot be read or holds no prediction at all.
    """
    try:
        start = path.open("rb").read(4096).lstrip(codecs.BOM_UTF8).lstrip()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror}); name a predictions file") from error
    if not start:
        raise InvalidFile(f"{path}: no predictions: the file is empty")
    form = _form(path, start)
    reader = _Reader(path, form, known_ids)
    if form == "jsonl":
        reader.take_lines()
    else:
        reader.take_document()
    return reader.finish()


def _form(path: Path, start: bytes) -> Literal["jsonl", "list", "dict"]:
    if start.startswith(b"["):
        return "list"
    if start.startswith(b"{") and path.suffix != ".jsonl":
        # One JSON object over the whole file is the dict form, unless it is a single line with SWE-bench's keys.
        try:
            document = parse_foreign_json(path.read_bytes().decode("utf-8-sig"))
        except ValueError:
            return "jsonl"
        if isinstance(document, dict) and "instance_id" not in document:
            return "dict"
    return "jsonl"


class _Reader:
    """Collects predictions and problems while a file is read."""

    def __init__(self, path: Path, form: Literal["jsonl", "list", "dict"], known: Collection[str] | None) -> None:
        self.path = path
        self.form = form
        self.known = known
        self.positions: dict[str, _Position] = {}
        self.documents: dict[str, Prediction] = {}
        self.problems: list[Problem] = []
        self.patches: dict[str, int] = {}
        self.refused: set[str] = set()
        self.names: dict[str, None] = {}
        self.empty: set[str] = set()
        self.unfinished: dict[str, str] = {}

    def note(self, place: str, kind: ProblemKind, message: str, instance_id: str | None = None) -> None:
        self.problems.append(Problem(place=place, kind=kind, message=message, instance_id=instance_id))

    def take_lines(self) -> None:
        for number, start, line in _lines(self.path):
            place = str(number)
            text, offset = line, start
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                text = line[len(codecs.BOM_UTF8) :]
                offset = start + len(codecs.BOM_UTF8)
                self.note(place, "byte_order_mark", "starts with a byte order mark; ignored")
            if not text.strip():
                self.note(place, "blank_line", "blank line; ignored")
                continue
            try:
                document = parse_foreign_json(text.decode("utf-8"))
            except ValueError as error:
                self.note(place, "invalid_json", f"not valid JSON ({_reason(error)}); is the line cut?")
                continue
            self.take(document, _Position(offset, len(text), place), None)

    def take_document(self) -> None:
        try:
            document = parse_foreign_json(self.path.read_bytes().decode("utf-8-sig"))
        except ValueError as error:
            raise InvalidFile(f"{self.path}: not valid JSON ({_reason(error)}); is the file cut?") from error
        items: Iterator[tuple[str, Any, str | None]]
        if isinstance(document, list):
            items = ((f"[{index}]", item, None) for index, item in enumerate(document))
        else:
            items = ((key, item, key) for key, item in document.items())
        for place, item, key in items:
            self.take(item, _Position(0, 0, place), key)

    def take(self, document: Any, position: _Position, key: str | None) -> None:
        if key is not None and isinstance(document, dict):
            named = document.get("instance_id", key)
            if named != key:
                self.note(position.place, "key_disagrees", f"key {key!r} and instance_id {named!r} disagree", key)
                return
            document = {"instance_id": key, **document}
        prediction, problems = _examine(document, position.place)
        self.problems.extend(problems)
        if prediction is None or self._is_duplicate(prediction, position.place):
            return
        name = prediction.instance_id
        if self.known is not None and name not in self.known:
            self.note(position.place, "unknown_id", f"{name!r} is no task of this suite; left out", name)
            return
        self.names.setdefault(prediction.model_name_or_path)
        if (why := prediction.unfinished) is not None:
            self.unfinished[name] = why
            return
        self.positions[name] = position
        if not prediction.model_patch.strip():
            self.empty.add(name)
        if self.form != "jsonl":
            self.documents[name] = prediction

    def _is_duplicate(self, prediction: Prediction, place: str) -> bool:
        name, fingerprint = prediction.instance_id, hash(prediction.model_patch)
        if name not in self.patches:
            self.patches[name] = fingerprint
            return False
        if self.patches[name] == fingerprint and name not in self.refused:
            self.note(place, "same_twice", f"{name!r} again with the same patch; taken once", name)
            return True
        self.refused.add(name)
        self.positions.pop(name, None)
        self.documents.pop(name, None)
        self.unfinished.pop(name, None)
        message = f"{name!r} again with a different patch; none of them is taken: keep the line you mean"
        self.note(place, "duplicate", message, name)
        return True

    def finish(self) -> PredictionFile:
        return PredictionFile(
            path=self.path,
            form=self.form,
            positions=self.positions,
            problems=tuple(self.problems),
            model_names=tuple(self.names),
            empty=frozenset(self.empty & set(self.positions)),
            unfinished=self.unfinished,
            documents=self.documents,
        )


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, byte offset and bytes of each line. Split at LF only: U+2028 and form feeds stand in patches."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, offset, line
            offset += len(line)


def _reason(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8"


def _examine(document: Any, place: str) -> tuple[Prediction | None, Sequence[Problem]]:
    """A prediction from a JSON value, with what was odd about it."""
    problems: list[Problem] = []

    def note(kind: ProblemKind, message: str, name: str | None = None) -> None:
        problems.append(Problem(place=place, kind=kind, message=message, instance_id=name))

    if not isinstance(document, dict):
        note("not_an_object", f"a prediction is a JSON object, this is a {type(document).__name__}")
        return None, problems
    renamed = {old: new for old, new in OLD_KEYS.items() if old in document and new not in document}
    if renamed:
        document = {renamed.get(key, key): value for key, value in document.items()}
        pairs = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
        note("old_keys", f"older key names, read as {pairs}")
    # The patch may hold bytes that are not UTF-8 as half characters; everything else is shown and stored as text.
    held = {key: document[key] for key in ("model_patch",) if key in document}
    document = {**writable({key: value for key, value in document.items() if key not in held}), **held}
    name = document.get("instance_id")
    if not isinstance(name, str) or not name:
        note("no_instance_id", "no instance_id (or it is no text)")
        return None, problems
    if "model_patch" not in document:
        note("no_patch", f"{name}: no model_patch; write an empty text if the model gave none", name)
        return None, problems
    patch = document["model_patch"]
    if patch is None:
        note("null_patch", f"{name}: model_patch is null; counted as an empty patch", name)
        patch = ""
    if not isinstance(patch, str):
        note("patch_not_text", f"{name}: model_patch is a {type(patch).__name__}, not text", name)
        return None, problems
    if (half := _HALF.search(patch)) is not None:
        note("patch_not_text", f"{name}: model_patch holds half a character (U+{ord(half[0]):04X})", name)
        return None, problems
    model = document.get("model_name_or_path")
    extra = {key: value for key, value in document.items() if key not in KEYS}
    return (
        Prediction(
            instance_id=name,
            model_name_or_path=model if isinstance(model, str) and model else "unnamed",
            model_patch=patch,
            extra=extra,
        ),
        problems,
    )
