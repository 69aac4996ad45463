"""`rtb mine`: a repository's history becomes draft tasks.

History to records (`history_scan`), records to judged pull requests (`candidate`), judged pull requests to drafts
(`draft`): this module only puts the steps together and does the reading and writing at the edges.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path

from rtb import checkout
from rtb.candidate import Judgement, PullRequest, judge_all
from rtb.category import decide
from rtb.changed_tests import ChangedTests, compare_tests, is_test_file
from rtb.context_names import context_of_targets
from rtb.draft import Material, Patch, clean_body, draft_task, leaks, problem_statement
from rtb.environment_guess import guess
from rtb.errors import ExpectedError
from rtb.history import Blobs, messages, present_objects, resolve
from rtb.history_scan import Scanner, net_changes, scan
from rtb.mirror import is_mirror, mirror, prefetch
from rtb.pull_request import PullFacts
from rtb.python_source import Unreadable
from rtb.repo_rules import RepoRules, load_rules
from rtb.storage import write_atomic, write_model
from rtb.task import Source, Suite, Task, TaskFolder


@dataclass(frozen=True)
class Draft:
    """A draft task with what goes beside it."""

    task: Task
    statement: str
    gold: bytes
    test: bytes
    leaked: tuple[str, ...]


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
    with Miner(repository, rules) as miner:
        for judgement in judge_all(found.records, rules):
            if not _wanted(judgement.pull, wish):
                continue
            final, draft = miner.finish(judgement, wish.facts) if judgement.kept else (judgement, None)
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


class Miner:
    """Reads what a kept pull request's draft needs. Use as a context manager."""

    def __init__(self, repository: Path, rules: RepoRules) -> None:
        self._repository = repository
        self._rules = rules
        self._present = None if is_mirror(repository) else present_objects(repository)
        self._blobs = Blobs(repository, self._present)
        self._stack = ExitStack()
        self._fetched = set(present_objects(repository) or ()) if is_mirror(repository) else set()
        self._file = lru_cache(maxsize=512)(self._read)

    def __enter__(self) -> Miner:
        self._stack.enter_context(self._blobs)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _read(self, commit: str, path: str) -> bytes | None:
        if not is_mirror(self._repository):
            return self._blobs.one(f"{commit}:{path}")
        listing = checkout.run_git(["ls-tree", commit, "--", path], repository=self._repository).stdout.split()
        if len(listing) < 4 or listing[1] != b"blob":
            return None
        name = listing[2].decode()
        if bytes.fromhex(name) not in self._fetched:
            prefetch(self._repository, [name], quiet=True)
            self._fetched.add(bytes.fromhex(name))
        return self._blobs.one(name)

    def finish(self, judgement: Judgement, facts: Mapping[int, PullFacts]) -> tuple[Judgement, Draft | None]:
        """Look at the files of a kept pull request: drop it after all, or make its draft."""
        pull = judgement.pull
        assert pull.number is not None
        if pull.base is None:
            return replace(judgement, reason="unreadable", detail="the first commit has nothing before it"), None
        if len(pull.records) > 1:
            judgement = self._net(judgement)
        base, landed = pull.base, pull.landed
        if is_mirror(self._repository):  # git fetches all blobs of a diff at once, and the reader below none
            paths = checkout.changed_paths(self._repository, base, landed)
            checkout.diff(self._repository, base, landed, paths)
        tests = self._tests(judgement, base, landed)
        if judgement.kind != "config" and not tests:
            return replace(
                judgement, reason="tests_unchanged", detail=self._test_failure(judgement, base, landed)
            ), None
        paths = checkout.changed_paths(self._repository, base, landed)
        split = checkout.split_paths(paths, self._rules.split)
        sources = {
            path: data
            for path in split.source
            if path.endswith((".py", ".jinja")) and (data := self._file(landed, path)) is not None
        }
        context = context_of_targets(judgement.targets, sources, frozenset(sources))
        if isinstance(context, Unreadable):
            return replace(judgement, reason="unreadable", detail=f"a target's file: {context.detail}"), None
        material = self._material(judgement, tests, facts.get(pull.number), split)
        material = replace(material, context=context)
        task = draft_task(material, self._rules)
        statement = problem_statement(material)
        leaked = leaks(statement, material.gold.data, judgement.targets)
        return judgement, Draft(task, statement, material.gold.data, material.test.data, leaked)

    def _net(self, judgement: Judgement) -> Judgement:
        """The changes of several commits as one: what the first changed and the last changed back is none."""
        pull = judgement.pull
        assert pull.base is not None
        scanner = Scanner(self._repository, self._rules, self._present)
        try:
            changes = net_changes(self._repository, pull.base, pull.landed, self._rules, scanner)
        finally:
            scanner.close()
        kept = {
            (item.path, item.name, item.index): item for item in changes if item.is_edit or item.label == "config"
        }
        targets = [kept[key] for item in judgement.targets if (key := (item.path, item.name, item.index)) in kept]
        return replace(judgement, targets=tuple(dict.fromkeys(targets)) or judgement.targets)

    def _tests(self, judgement: Judgement, base: str, landed: str) -> tuple[ChangedTests, ...]:
        """The test files that can judge the change."""
        found = []
        names = _telling_names(judgement)
        for path in judgement.tests:
            after = self._file(landed, path)
            if after is None:
                continue
            if judgement.tests_changed:
                seen = compare_tests(path, self._file(base, path), after)
                if seen.counts:
                    found.append(seen)
            else:
                seen = replace(is_test_file(after), path=path)
                if seen.state == "unchanged_file" and seen.names & names:
                    found.append(seen)
        return tuple(found)

    def _test_failure(self, judgement: Judgement, base: str, landed: str) -> str:
        if not judgement.tests_changed:
            return "the test files named like the target use none of its names"
        states = []
        for path in judgement.tests:
            after = self._file(landed, path)
            state = compare_tests(path, self._file(base, path), after).state if after is not None else "gone"
            states.append(f"{path}: {_TEST_WORDS.get(state, state)}")
        return "; ".join(states)

    def _material(
        self, judgement: Judgement, tests: tuple[ChangedTests, ...], facts: PullFacts | None, split: checkout.Split
    ) -> Material:
        pull = judgement.pull
        assert pull.base is not None
        told = messages(self._repository, [pull.landed]).get(pull.landed, "")
        title = facts.title if facts else pull.title
        body = facts.body if facts else clean_body(told)
        labels = facts.labels if facts else tuple(re.findall(r"\[([^\]]{1,30})\]", pull.title))
        files = {
            path: data.decode("utf-8", "replace")
            for path in self._rules.environment.files
            if (data := self._file(pull.landed, path)) is not None
        }
        return Material(
            judgement=judgement,
            decision=decide(judgement.targets, title, body, labels, self._rules.keywords),
            tests=tests,
            context=(),
            environment=guess(files),
            gold=self._patch(pull, split.source),
            test=self._patch(pull, split.tests),
            title=title,
            body=body,
            created_at=facts.created_at if facts else None,
        )

    def _patch(self, pull: PullRequest, paths: Sequence[str]) -> Patch:
        assert pull.base is not None
        return Patch(checkout.diff(self._repository, pull.base, pull.landed, paths), tuple(paths))


_TEST_WORDS = {
    "same": "only comments, layout or imports changed",
    "no_tests": "holds no test function",
    "unreadable": "does not parse",
}


def _telling_names(judgement: Judgement) -> set[str]:
    """Names by which a test shows that it knows a target."""
    names = {item.name.rsplit(".", 1)[-1] for item in judgement.targets}
    return names | {item.path.rsplit("/", 1)[-1].removesuffix(".py") for item in judgement.targets}


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
        folder = TaskFolder(out / draft.task.instance_id)
        write_atomic(folder.gold_patch, draft.gold)
        write_atomic(folder.test_patch, draft.test)
        write_atomic(folder.problem_statement, draft.statement.encode("utf-8", "backslashreplace"))
        write_model(folder.task_json, draft.task)
        yield folder.path
