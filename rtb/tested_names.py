"""Names that a change defines anew and its tests use: a solver cannot guess them. Pure, from the two patches."""

from __future__ import annotations

import re
from collections.abc import Collection

_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_PATH = re.compile(rb"^\+\+\+ b/(.+\.py)$", re.MULTILINE)
_DEFINED = re.compile(rb"^([+-])(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+)?([A-Za-z_]\w{2,})[ \t]*[(:=]", re.MULTILINE)
_ADDED = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w{2,}")
_KEYWORDS = frozenset((b"else", b"try", b"finally", b"except", b"with", b"while", b"for", b"elif", b"return"))


def tested_names(gold: bytes, test: bytes, known: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Path -> functions, classes and values that `gold` defines at the top level of that file, that stood nowhere in
    its files before, and that added lines of `test` use; without those `known`."""
    used = {word for line in _ADDED.findall(test) for word in _WORD.findall(line)}
    fresh: dict[str, set[bytes]] = {}
    gone: set[bytes] = set()
    for part in _FILE.split(gold):
        path = _PATH.search(part)
        for sign, name in _DEFINED.findall(part):
            if sign == b"-":
                gone.add(name)
            elif path is not None:
                fresh.setdefault(path[1].decode("utf-8", "replace"), set()).add(name)
    taken = gone | _KEYWORDS | {name.encode() for name in known}
    found = {path: names & used - taken for path, names in fresh.items()}
    return {path: tuple(sorted(name.decode() for name in names)) for path, names in sorted(found.items()) if names}
