"""Submissions in SWE-bench's layout: they cannot be graded again, and every fault they have is named all the same.

The layout: all_preds.jsonl, metadata, results.json (or results/results.json), logs/<id>/report.json, trajs/<id>.*
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rtb.errors import ExpectedError
from rtb.prediction import read_predictions
from rtb.submission import Fault, SubmissionFolder

_STATES = ("resolved", "unresolved")
_DIGESTS = ("harness_version", "dataset_revision", "image_digests")


def is_one(path: Path) -> bool:
    """Whether a folder is of that layout rather than ours."""
    ours = SubmissionFolder(path)
    if ours.manifest.exists() or ours.run.path.exists():
        return False
    return any((path / name).exists() for name in ("results.json", "results", "logs", "trajs"))


def faults(path: Path) -> list[Fault]:
    """Every fault of such a folder. It is always refused: its grades rest on nothing that can be computed again."""
    found = [_fault("MANIFEST.json", "layout", "missing: this is SWE-bench's layout; 'rtb submit RUN' makes ours")]
    claimed, problems = _results(path)
    found += problems
    metadata = _document(path / "metadata.json")
    for state in _STATES:
        said = metadata.get(state)
        if isinstance(said, int) and said != (count := list(claimed.values()).count(state)):
            found.append(_fault("metadata.json", "report", f"says {said} {state}, results.json says {count}"))
    total = metadata.get("total")
    if isinstance(total, int) and claimed and total != len(claimed):
        found.append(_fault("metadata.json", "report", f"says {total} in all, results.json names {len(claimed)}"))
    missing = [name.replace("_", " ") for name in _DIGESTS if not metadata.get(name)]
    if missing:
        found.append(_fault("metadata.json", "version", f"{', '.join(missing)} missing"))
    found += _logs(path, claimed)
    found += _trajectories(path, claimed)
    found += _predictions(path, claimed)
    return found


def _results(path: Path) -> tuple[dict[str, str], list[Fault]]:
    """State by id, as the submitter claims."""
    name = next((item for item in ("results.json", "results/results.json") if (path / item).is_file()), None)
    if name is None:
        return {}, [_fault("results.json", "report", "missing")]
    claimed: dict[str, str] = {}
    problems: list[Fault] = []
    document = _document(path / name)
    for state in _STATES:
        ids = document.get(state)
        named = [item for item in ids if isinstance(item, str)] if isinstance(ids, list) else []
        twice = [item for item in named if claimed.setdefault(item, state) != state]
        problems += (_fault(name, "report", f"{item} is both {claimed[item]} and {state}") for item in twice)
    return claimed, problems


def _logs(path: Path, claimed: dict[str, str]) -> Iterator[Fault]:
    for name, state in sorted(claimed.items()):
        home = f"logs/{name}"
        document = _document(path / "logs" / _safe(name) / "report.json")
        found = document.get(name) if isinstance(document.get(name), dict) else document
        if not found:
            yield _fault(home, "raw", f"logs missing for {name}, claimed {state}")
        elif isinstance(found.get("resolved"), bool):
            said = "resolved" if found["resolved"] else "unresolved"
            if said != state:
                yield _fault(f"{home}/report.json", "report", f"{name} is {said} in its log, {state} in results.json")


def _trajectories(path: Path, claimed: dict[str, str]) -> Iterator[Fault]:
    there: dict[str, bool] = {}
    for file in sorted((path / "trajs").rglob("*")) if (path / "trajs").is_dir() else ():
        if file.is_file() and not file.is_symlink():
            name = next((item for item in claimed if item in file.relative_to(path).as_posix()), file.stem)
            there[name] = there.get(name, False) or file.stat().st_size > 4
    for name in sorted(claimed):
        if name not in there:
            yield _fault(f"trajs/{name}", "trajectory", f"trajectory of {name} is missing")
        elif not there[name]:
            yield _fault(f"trajs/{name}", "trajectory", f"trajectory of {name} is empty")


def _predictions(path: Path, claimed: dict[str, str]) -> Iterator[Fault]:
    ids: set[str] = set()
    try:
        found = read_predictions(path / "all_preds.jsonl")
        ids = set(found.ids)
        for problem in found.errors:
            yield _fault("all_preds.jsonl", "prediction", f"at {problem.place}: {problem.message}")
    except ExpectedError as error:
        yield _fault("all_preds.jsonl", "prediction", str(error))
    for name in sorted(set(claimed) - ids):
        yield _fault("all_preds.jsonl", "prediction", f"no prediction for {name}, claimed {claimed[name]}")


def _document(path: Path) -> dict[str, Any]:
    """A JSON object, or nothing when there is none."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _safe(name: str) -> str:
    """A name that stays in its folder."""
    return name.replace("/", "_") if name not in (".", "..") else "_"


def _fault(file: str, kind: str, message: str) -> Fault:
    return Fault.model_validate({"file": file, "kind": kind, "message": message})
