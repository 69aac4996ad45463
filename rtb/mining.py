"""`rtb mine`: a repository's history becomes draft tasks.

History to records (`history_scan`), records to judged pull requests (`candidate`), judged pull requests to drafts
(`drafting`, `draft`): this module only puts the steps together and does the reading and writing at the edges.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rtb import checkout
from rtb.candidate import Judgement, PullRequest, judge_all
from rtb.description import Ask, Described, describe, described_draft, key_of, leaks_of, messages_for
from rtb.draft_store import Draft
from rtb.drafting import finished
from rtb.errors import ExpectedError, MachineError
from rtb.history import resolve
from rtb.history_scan import scan
from rtb.mirror import mirror, prefetch
from rtb.pull_request import PullFacts
from rtb.repo_rules import load_rules
from rtb.storage import cache_folder, write_atomic, write_model
from rtb.task import Source, Suite, TaskFolder


@dataclass(frozen=True)
class Mined:
    """The result of a run. `counts` are pull requests by reason; `skipped` are files passed over, by reason."""

    repo: str
    newest: str
    commits: int
    read: int
    judgements: tuple[Judgement, ...]
    drafts: tuple[Draft, ...]
    counts: Mapping[str, int]
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class Wish:
    """What to mine. Dates are committer dates, `since` inclusive and `until` exclusive."""

    repo: str
    clone: Path | None = None
    ref: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    only: int | None = None
    facts: Mapping[int, PullFacts] = field(default_factory=dict)
    workers: int | None = None
    cached: bool = True
    url: str | None = None


def mine(wish: Wish) -> Mined:
    """Mine a history. Raises ExpectedError when there is neither a clone nor a network."""
    rules = load_rules(wish.repo)
    repository = _repository(wish)
    newest = resolve(repository, wish.ref if wish.clone is not None else "refs/heads/mined")
    fetch = partial(prefetch, repository) if wish.clone is None else None
    found = scan(repository, newest, rules, workers=wish.workers, cached=wish.cached, fetch=fetch)
    skipped = Counter(reason for record in found.records for _, reason in record.skipped)
    judged: list[Judgement] = []
    drafts: list[Draft] = []
    every = [item for item in judge_all(found.records, rules) if _wanted(item.pull, wish)]
    kept = (item for item in every if item.kept)
    with finished(repository, rules, kept, wish.facts, wish.limit, wish.workers, wish.cached) as done:
        for judgement in every:
            final, draft = next(done) if judgement.kept else (judgement, None)
            judged.append(final)
            if draft is not None:
                drafts.append(draft)
            if wish.limit is not None and len(drafts) >= wish.limit:
                break
    counts: Counter[str] = Counter(item.reason for item in judged)
    return Mined(
        wish.repo, newest, len(found.records), found.read, tuple(judged), tuple(drafts), dict(counts), dict(skipped)
    )


def _repository(wish: Wish) -> Path:
    if wish.clone is None:
        return mirror(wish.repo, url=wish.url, ref=wish.ref)
    if not wish.clone.is_dir():
        raise ExpectedError(f"--clone {wish.clone}: no such folder")
    if checkout.run_git(["rev-parse", "--git-dir"], repository=wish.clone, check=False).returncode != 0:
        raise ExpectedError(f"--clone {wish.clone}: not a git repository")
    return wish.clone


def _wanted(pull: PullRequest, wish: Wish) -> bool:
    when = datetime.fromtimestamp(pull.records[-1].committed_at, UTC)
    if wish.only is not None and pull.number != wish.only:
        return False
    return (wish.since is None or when >= wish.since) and (wish.until is None or when < wish.until)


def write(mined: Mined, out: Path) -> Iterator[Path]:
    """Write drafts as a suite: suite.json and a folder for each task, with its patches beside it."""
    rules = load_rules(mined.repo)
    name = re.sub(r"[^a-z0-9]+", "-", out.resolve().name.lower()).strip("-") or "mined"
    suite = Suite(
        name=name,
        title=f"Drafts mined from {mined.repo}",
        sources={mined.repo: Source(url=f"https://github.com/{mined.repo}.git")},
        split={mined.repo: rules.split},
        notes=("Drafts: 'rtb tasks review' walks through them.",),
    )
    if not (out / "suite.json").is_file():
        write_model(out / "suite.json", suite)
    for draft in mined.drafts:
        yield write_draft(draft, out)


def write_draft(draft: Draft, out: Path) -> Path:
    """Write one draft's folder. One that a person has reviewed is left as it is."""
    folder = TaskFolder(out / draft.task.instance_id)
    if not (folder.path / "reviews.json").exists():
        write_atomic(folder.gold_patch, draft.gold)
        write_atomic(folder.test_patch, draft.test)
        write_atomic(folder.problem_statement, draft.statement.encode("utf-8", "backslashreplace"))
        write_model(folder.task_json, draft.task)
    return folder.path


def describe_all(mined: Mined, out: Path, model: str, ask: Ask) -> Iterator[Draft]:
    """Replace the written statements of drafts by a model's, one by one, each as soon as it is there.

    Answers are kept in the user's cache: after an error the same command asks for the missing ones only. Raises what
    `ask` raises, with how far it came.
    """
    home = cache_folder("descriptions")
    for number, draft in enumerate(mined.drafts):
        kept = home / f"{key_of(model, messages_for(draft))}.md"
        if kept.is_file():
            text = kept.read_text(encoding="utf-8")
            found = Described(text, leaks_of(text, draft))
        else:
            try:
                found = describe(draft, ask)
            except (ExpectedError, MachineError) as error:
                left = len(mined.drafts) - number
                raise type(error)(
                    f"{error}; {number} of {len(mined.drafts)} drafts are described, the other {left} in {out} keep "
                    "the description made without a model, and the same command goes on from there"
                ) from error
            write_atomic(kept, found.text.encode("utf-8", "backslashreplace"))
        changed = described_draft(draft, found, model)
        write_draft(changed, out)
        yield changed
