"""What the miner keeps of a commit, and the records of a history in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rtb.history import is_ancestor
from rtb.kernels import Comparison, FunctionChange
from rtb.landing import Landing, Reference
from rtb.storage import write_atomic

INDEX_VERSION = 5  # counts up when a history's records come out otherwise


@dataclass(frozen=True)
class Record:
    """What the miner keeps of a commit.

    `tests` are changed paths of the held-out part that still exist (kept only where a Triton function changed);
    `came` and `went` are test files that pytest can run, added and deleted, of every commit.
    """

    sha: str
    parents: tuple[str, ...]
    committed_at: int
    landing: Landing
    files: int
    tests: tuple[str, ...] = ()
    came: tuple[str, ...] = ()
    went: tuple[str, ...] = ()
    changes: tuple[FunctionChange, ...] = ()
    dialects: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    boundary: bool = False

    @property
    def comparison(self) -> Comparison:
        """The changes, to be asked by kind."""
        return Comparison(changes=self.changes, dialects=self.dialects)


def save_records(home: Path, records: Sequence[Record]) -> None:
    """Keep the records of a history, oldest first. Raises what `write_atomic` raises."""
    lines = [json.dumps({"version": INDEX_VERSION, "records": len(records)})]
    lines += [json.dumps(_plain(item), separators=(",", ":")) for item in records]
    write_atomic(home, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))


def _plain(record: Record) -> dict[str, Any]:
    plain = _told(record)
    plain["landing"] = _told(record.landing)
    if record.landing.reverts:
        plain["landing"]["reverts"] = [asdict(item) for item in record.landing.reverts]
    if record.changes:
        plain["changes"] = [{**asdict(item), "uses": sorted(item.uses)} for item in record.changes]
    return plain


def _told(item: Record | Landing) -> dict[str, Any]:
    """What there is to say, one level deep: `asdict` copies all of it, which takes seconds for a large history."""
    return {key: value for key, value in vars(item).items() if value not in ((), False, None)}


def load_records(home: Path, repository: Path, newest: str) -> tuple[Record, ...]:
    """Remembered records, when they are of a history that `newest` continues; else none."""
    if not home.is_file():
        return ()
    with home.open(encoding="utf-8", errors="surrogateescape") as file:
        try:
            head = json.loads(next(file))
            if head.get("version") != INDEX_VERSION:
                return ()
            records = tuple(_record(json.loads(line)) for line in file)
        except (StopIteration, ValueError, KeyError, TypeError):
            return ()  # cut or of an older form: scanned again
    if len(records) != head.get("records") or not records:
        return ()
    shas = {item.sha: index for index, item in enumerate(records)}
    if newest in shas:
        return records[: shas[newest] + 1]
    return records if is_ancestor(repository, records[-1].sha, newest) else ()


def _record(plain: dict[str, Any]) -> Record:
    landing = dict(plain["landing"])
    landing.setdefault("number", None)
    landing["reverts"] = tuple(Reference(**item) for item in landing.get("reverts", ()))
    for key in ("originals", "original_commits"):
        landing[key] = tuple(landing.get(key, ()))
    changes = tuple(
        FunctionChange(**{**item, "also": tuple(item["also"]), "uses": frozenset(item["uses"])})
        for item in plain.get("changes", ())
    )
    return Record(
        sha=plain["sha"],
        parents=tuple(plain.get("parents", ())),
        committed_at=plain["committed_at"],
        landing=Landing(**landing),
        files=plain.get("files", 0),
        tests=tuple(plain.get("tests", ())),
        came=tuple(plain.get("came", ())),
        went=tuple(plain.get("went", ())),
        changes=changes,
        dialects=tuple(plain.get("dialects", ())),
        skipped=tuple((path, reason) for path, reason in plain.get("skipped", ())),
        boundary=plain.get("boundary", False),
    )
