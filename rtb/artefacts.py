"""What tools leave in a work tree and no patch carries. The rules are data, in the form of .gitignore."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache
from importlib import resources

RULES = "rules/artefacts.gitignore"


def rules_file() -> bytes:
    """The rules as they stand, for a git that reads them as excludes."""
    return resources.files("rtb").joinpath(RULES).read_bytes()


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a folder's name, and what a file's name, is held against."""
    lines = [line for line in rules_file().decode().splitlines() if line and not line.startswith("#")]
    folders = [translate(line.rstrip("/")) for line in lines]
    names = [translate(line) for line in lines if not line.endswith("/")]
    return re.compile("|".join(folders)), re.compile("|".join(names))


def artefact(path: str) -> str:
    """Why a new path is left out of a patch, or "" when it is not. `path` is a file's, with "/"."""
    folder, name = _patterns()
    *above, last = path.split("/")
    if any(folder.match(part) for part in above):
        return "in a folder of build or tool artefacts"
    return "a build or tool artefact" if name.match(last) else ""
