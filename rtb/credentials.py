"""Secrets that must not be published: keys, tokens and passwords in any file, by shape and by this user's own values.

What is found is named by file and line; the secret itself is never part of a message. The shapes are data:
credentials.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

_SHORTEST = 12  # own values that are shorter would be found in ordinary words


@dataclass(frozen=True)
class _Shape:
    label: str
    starts: tuple[bytes, ...]
    any_case: bool
    pattern: re.Pattern[bytes]


@dataclass(frozen=True)
class Credential:
    """Where a secret stands, and what it looks like. Holds nothing of the secret."""

    line: int
    label: str


@cache
def _shapes() -> tuple[_Shape, ...]:
    document = tomllib.loads(resources.files("rtb").joinpath("credentials.toml").read_text(encoding="utf-8"))
    return tuple(
        _Shape(
            label=rule["label"],
            starts=tuple(text.encode() for text in rule["starts"]),
            any_case=rule.get("any_case", False),
            pattern=re.compile(rule["pattern"].encode()),
        )
        for rule in document.values()
    )


def find(data: bytes, own: Collection[str] = ()) -> Iterator[Credential]:
    """Secrets in a file, each line and kind once. `own`: values that must not be there, whatever their form."""
    seen = set()
    for label, place in (*_by_shape(data), *_by_value(data, own)):
        found = Credential(data.count(b"\n", 0, place) + 1, label)
        if found not in seen:
            seen.add(found)
            yield found


def _by_shape(data: bytes) -> Iterator[tuple[str, int]]:
    # A plain search for where a secret may begin is many times quicker than a regular expression over everything.
    lowered = data.lower()
    for shape in _shapes():
        text = lowered if shape.any_case else data
        for start in shape.starts:
            for place in _places(text, start):
                if (not start[:1].isalnum() or _begins(data, place)) and shape.pattern.match(data, place):
                    yield shape.label, place


def _begins(data: bytes, place: int) -> bool:
    """Whether a word may begin here: after no letter or digit, or after an escape of a JSON text, such as \\n."""
    return not data[place - 1 : place].isalnum() or data[place - 2 : place] in (b"\\n", b"\\r", b"\\t")


def _by_value(data: bytes, own: Collection[str]) -> Iterator[tuple[str, int]]:
    for value in own:
        wanted = value.encode("utf-8", "surrogateescape")
        if len(wanted) >= _SHORTEST:
            for place in _places(data, wanted):
                yield "the value of a key in this environment", place


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    place = data.find(wanted)
    while place >= 0:
        yield place
        place = data.find(wanted, place + len(wanted))
