"""Finished drafts of a history in the user's cache, so that a second run makes those of the new commits only.

What a draft says follows from its judgement, what the hosting service knows, and commits, which do not change;
the key is a digest of all three. Only the search for users of a target looks at a tree that depends on the run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rtb import __version__
from rtb.candidate import Judgement
from rtb.pull_request import PullFacts
from rtb.repo_rules import RepoRules
from rtb.storage import cache_folder, write_atomic
from rtb.task import Task

FORM = 3  # counts up when drafts of the same judgement come out otherwise


@dataclass(frozen=True)
class Draft:
    """A draft task with what goes beside it."""

    task: Task
    statement: str
    gold: bytes
    test: bytes
    leaked: tuple[str, ...]


Finished = tuple[Judgement, Draft | None]


class DraftStore:
    """One file for each finished judgement of a repository."""

    def __init__(self, rules: RepoRules) -> None:
        self._home = cache_folder("drafts") / f"{rules.repo.replace('/', '__')}-{rules.digest}"

    def find(self, judgement: Judgement, facts: PullFacts | None) -> Finished | None:
        """What was kept of this judgement, or None. A file that cannot be read is none."""
        path = self._path(judgement, facts)
        try:
            held = json.loads(path.read_bytes())
            if held["draft"] is None:
                return replace(judgement, reason=held["reason"], detail=held["detail"]), None
            return judgement, _draft(held["draft"])
        except (FileNotFoundError, ValueError, KeyError, ValidationError):
            return None

    def keep(self, before: Judgement, facts: PullFacts | None, finished: Finished) -> None:
        """Keep what came of `before`. Several commits as one are not kept: their targets are found anew."""
        after, draft = finished
        if len(before.pull.records) == 1:
            held = {"reason": after.reason, "detail": after.detail, "draft": _plain(draft) if draft else None}
            write_atomic(self._path(before, facts), json.dumps(held).encode("utf-8", "surrogateescape"))

    def _path(self, judgement: Judgement, facts: PullFacts | None) -> Path:
        told = {
            "form": [FORM, __version__],
            "commits": [judgement.pull.number, judgement.pull.base, judgement.pull.landed, judgement.pull.title],
            "kind": [judgement.kind, judgement.tests_changed],
            "targets": [{**asdict(item), "uses": sorted(item.uses)} for item in judgement.targets],
            "tests": judgement.tests,
            "evidence": judgement.evidence,
            "facts": asdict(facts) if facts else None,
        }
        return self._home / f"{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]}.json"


def _plain(draft: Draft) -> dict[str, Any]:
    return {
        "task": draft.task.model_dump(mode="json"),
        "statement": draft.statement,
        "gold": base64.b64encode(draft.gold).decode(),
        "test": base64.b64encode(draft.test).decode(),
        "leaked": draft.leaked,
    }


def _draft(held: Mapping[str, Any]) -> Draft:
    return Draft(
        task=Task.model_validate(held["task"]),
        statement=held["statement"],
        gold=base64.b64decode(held["gold"]),
        test=base64.b64decode(held["test"]),
        leaked=tuple(held["leaked"]),
    )
