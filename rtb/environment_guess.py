"""What a repository's own files say about Python, CUDA and torch. A guess, said to be one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TORCH = re.compile(r"(?:^|[\"'\s=,\[])torch\s*==\s*([0-9]+(?:\.[0-9]+)+)", re.MULTILINE)
_PYTHON_REQUIRES = re.compile(r"(?:requires-python|python_requires)\s*=\s*[\"']([^\"']+)[\"']")
_PYTHON_IMAGE = re.compile(r"PYTHON_VERSION\s*=\s*[\"']?(3\.\d+)|\bpython(3\.\d+)\b")
_CUDA = re.compile(
    r"CUDA_VERSION\s*=\s*[\"']?([0-9]+\.[0-9]+(?:\.[0-9]+)?)|nvidia/cuda:([0-9]+\.[0-9]+(?:\.[0-9]+)?)"
)
_SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13")
_PREFERRED = ("3.11", "3.10", "3.12", "3.9", "3.13")


@dataclass(frozen=True)
class Guess:
    """None where no file says it. `evidence` names the file of each."""

    python: str
    cuda: str | None
    torch: str | None
    evidence: tuple[str, ...]


def guess(files: Mapping[str, str]) -> Guess:
    """Read files (path -> text) in order; the first that names a thing wins."""
    evidence: list[str] = []
    python = cuda = torch = None
    for path, text in files.items():
        if torch is None and (found := _TORCH.search(text)):
            torch = found[1]
            evidence.append(f"torch {torch} from {path}")
        if python is None and (found := _PYTHON_REQUIRES.search(text)):
            python = _allowed(found[1])
            if python:
                evidence.append(f"Python {python} within {found[1]!r} of {path}")
        if cuda is None and (found := _CUDA.search(text)):
            cuda = found[1] or found[2]
            evidence.append(f"CUDA {cuda} from {path}")
        if python is None and "ocker" in path and (found := _PYTHON_IMAGE.search(text)):
            python = found[1] or found[2]
            evidence.append(f"Python {python} from {path}")
    return Guess(python or "3.11", cuda, torch, tuple(evidence))


def _allowed(requirement: str) -> str | None:
    """A Python version that a requirement such as `>=3.9,<3.13` allows, the one with most wheels first."""
    for version in _PREFERRED:
        if all(_satisfies(_key(version), part.strip()) for part in requirement.split(",") if part.strip()):
            return version
    return None


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _satisfies(version: tuple[int, ...], part: str) -> bool:
    operator, bound = re.match(r"([<>=!~]*)\s*(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
    limit = _key(bound)
    if not limit:
        return True
    return {
        ">=": version >= limit, ">": version > limit, "<": version < limit, "<=": version <= limit,
        "==": version == limit, "!=": version != limit, "~=": version >= limit,
    }.get(operator, True)  # fmt: skip
