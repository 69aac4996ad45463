"""Kept pull requests become drafts: what a draft needs is read at the commits themselves, by one process or a few.

One search of a tree for the users of names costs as much as reading all of it, so pull requests of one era share one:
a user is looked for in the tree that the last of an era left, and read at each one's own commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from rtb import checkout
from rtb.candidate import GENERIC, Judgement, PullRequest, core
from rtb.category import decide
from rtb.changed_tests import ChangedTests, compare_tests, is_test_file
from rtb.context_names import context_of_targets, telling_names
from rtb.draft import Material, Patch, clean_body, draft_task, leaks, problem_statement, stood_there
from rtb.draft_store import Draft, DraftStore, Finished
from rtb.environment_guess import guess
from rtb.history import Blobs, files_with, messages, present_objects
from rtb.history_scan import Scanner, net_changes
from rtb.kernels import FunctionChange
from rtb.landed_diff import LandedDiff, landed_diffs
from rtb.mirror import is_mirror, prefetch
from rtb.pull_request import PullFacts
from rtb.python_source import Unreadable
from rtb.repo_rules import RepoRules, is_source
from rtb.syntax import seldom_collect
from rtb.worker_processes import worker_processes

_ERA = 100  # pull requests that share a search for users
_GROUP = 25  # that a process gets at a time
_LAST_GROUP = 8
_ALONE = 40  # fewer are not worth the start of processes
_MOST_USERS = 12  # files; more, and a name says nothing


class Drafter:
    """Reads what a kept pull request's draft needs. Use as a context manager."""

    def __init__(self, repository: Path, rules: RepoRules) -> None:
        self._repository = repository
        self._rules = rules
        self._is_mirror = is_mirror(repository)
        self._present = None if self._is_mirror else present_objects(repository)
        self._blobs = Blobs(repository, self._present)
        self._stack = ExitStack()
        self._fetched = set(present_objects(repository) or ()) if self._is_mirror else set()
        self._file = lru_cache(maxsize=512)(self._read)
        self._users: Mapping[str, set[str]] = {}
        self._messages: Mapping[str, str] = {}
        self._diffs: dict[str, LandedDiff] = {}

    def __enter__(self) -> Drafter:
        self._stack.enter_context(self._blobs)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _read(self, commit: str, path: str) -> bytes | None:
        if not self._is_mirror:
            return self._blobs.one(f"{commit}:{path}")
        listing = checkout.run_git(["ls-tree", commit, "--", path], repository=self._repository).stdout.split()
        if len(listing) < 4 or listing[1] != b"blob":
            return None
        name = listing[2].decode()
        if bytes.fromhex(name) not in self._fetched:
            prefetch(self._repository, [name], quiet=True)
            self._fetched.add(bytes.fromhex(name))
        return self._blobs.one(name)

    def _exists(self, commit: str, path: str) -> bool:
        """Whether a path is in a commit's tree; asks for no contents, which a mirror may lack."""
        if not self._is_mirror:
            return self._file(commit, path) is not None
        return bool(checkout.run_git(["ls-tree", commit, "--", path], repository=self._repository).stdout)

    def finish(
        self, judgements: Sequence[Judgement], facts: Mapping[int, PullFacts], users: Mapping[str, set[str]]
    ) -> list[Finished]:
        """Look at the files of kept pull requests: drop each after all, or make its draft. `users`: of `users_of`."""
        self._messages = messages(self._repository, [item.pull.landed for item in judgements])
        self._users = users
        proven = [self._prove(item) for item in judgements]
        if not self._is_mirror:
            self._diffs = self._ask_diffs([item for item, _ in proven if item.kept])
        return [self._draft(item, tests, facts) if item.kept else (item, None) for item, tests in proven]

    def _ask_diffs(self, judgements: Sequence[Judgement]) -> dict[str, LandedDiff]:
        pairs = [(item.pull.base, item.pull.landed) for item in judgements if item.pull.base is not None]
        return landed_diffs(self._repository, pairs)

    def _prove(self, judgement: Judgement) -> tuple[Judgement, tuple[ChangedTests, ...]]:
        """The test files that can judge a change; without any it is dropped after all."""
        pull = judgement.pull
        if pull.base is None:
            return replace(judgement, reason="unreadable", detail="the first commit has nothing before it"), ()
        if len(pull.records) > 1:
            judgement = self._net(judgement)
        if self._is_mirror:  # git fetches all blobs of a diff at once, and the reader below none
            self._diffs.update(self._ask_diffs([judgement]))
        judgement = replace(judgement, targets=tuple(self._settled(item, pull.base) for item in judgement.targets))
        tests = self._tests(judgement, pull.base, pull.landed)
        if judgement.kind != "config" and not tests:
            detail = self._test_failure(judgement, pull.base, pull.landed)
            return replace(judgement, reason="tests_unchanged", detail=detail), ()
        return judgement, tests

    def _draft(
        self, judgement: Judgement, tests: tuple[ChangedTests, ...], facts: Mapping[int, PullFacts]
    ) -> Finished:
        """A draft, or none where a target's own file cannot be read."""
        pull = judgement.pull
        assert pull.number is not None
        landed = pull.landed
        split = checkout.split_paths(self._diffs[landed].paths, self._rules.split)
        sources = {
            path: data
            for path in split.source
            if path.endswith((".py", ".jinja")) and (data := self._file(landed, path)) is not None
        }
        for path in self._user_files(judgement):
            if path not in sources and (data := self._file(landed, path)) is not None:
                sources[path] = data
        context = context_of_targets(judgement.targets, sources, lambda path: self._exists(landed, path))
        if isinstance(context, Unreadable):
            return replace(judgement, reason="unreadable", detail=f"a target's file: {context.detail}"), None
        material = self._material(judgement, tests, facts.get(pull.number), split)
        material = replace(material, context=context)
        task = draft_task(material, self._rules)
        statement = problem_statement(material)
        leaked = leaks(statement, material.gold.data, judgement.targets)
        return judgement, Draft(task, statement, material.gold.data, material.test.data, leaked)

    def _user_files(self, judgement: Judgement) -> list[str]:
        """Files that may use a target although the change does not touch them; none for a name that is everywhere."""
        held = (self._users.get(name, set()) for name in telling_names(judgement.targets))
        paths = {path for found in held if len(found) <= _MOST_USERS for path in found}
        return sorted(path for path in paths if is_source(path, self._rules))

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

    def _settled(self, change: FunctionChange, base: str) -> FunctionChange:
        """A launcher that stood there and launched nothing is changed, whatever its parameters were."""
        if change.label != "added" or change.is_kernel:
            return change
        before = self._file(base, change.path)
        if before is None or not stood_there(change.name, before):
            return change
        return replace(change, label="body", also=("signature",))

    def _tests(self, judgement: Judgement, base: str, landed: str) -> tuple[ChangedTests, ...]:
        """The test files that can judge the change."""
        found = []
        names = _telling_names(judgement)
        for path in judgement.tests:
            after = self._file(landed, path)
            if after is None:
                continue
            if judgement.kind == "launcher" and not _knows_launcher(after, judgement):
                continue
            if judgement.tests_changed:
                seen = compare_tests(path, self._file(base, path), after)
                if seen.counts:
                    found.append(seen)
            elif (known := _knowing(after, names)) is not None and known.state == "unchanged_file":
                found.append(replace(known, path=path))
        return tuple(found)

    def _test_failure(self, judgement: Judgement, base: str, landed: str) -> str:
        if not judgement.tests_changed:
            return "the test files named like the target use none of its names"
        states = []
        for path in judgement.tests:
            after = self._file(landed, path)
            if judgement.kind == "launcher" and after is not None and not _knows_launcher(after, judgement):
                states.append(f"{path}: names neither the launcher nor its file")
                continue
            state = compare_tests(path, self._file(base, path), after).state if after is not None else "gone"
            states.append(f"{path}: {_TEST_WORDS.get(state, state)}")
        return "; ".join(states)

    def _material(
        self, judgement: Judgement, tests: tuple[ChangedTests, ...], facts: PullFacts | None, split: checkout.Split
    ) -> Material:
        pull = judgement.pull
        told = self._messages.get(pull.landed, "")
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
            hosting=facts.evidence if facts else (),
        )

    def _patch(self, pull: PullRequest, paths: Sequence[str]) -> Patch:
        return Patch(self._diffs[pull.landed].over(paths), tuple(paths))


_TEST_WORDS = {
    "same": "only comments, layout or imports changed",
    "no_tests": "holds no test function",
    "unreadable": "does not parse",
}


def _telling_names(judgement: Judgement) -> set[str]:
    """Names by which a test shows that it knows a target: its own, of a method the class's (`forward` says nothing),
    also as an operator is called that it stands behind; and a module's that is called like its file, in a package
    that it lies in."""
    own = {item.name.partition(".")[0] for item in judgement.targets}
    called = {name for item in own if len(name := core(item)) > 4 and name not in GENERIC}
    places = (item.path.removesuffix(".py").split("/") for item in judgement.targets)
    return own | called | {f"{folder}:{stem}" for *folders, stem in places for folder in folders}


def _knowing(data: bytes, names: set[str]) -> ChangedTests | None:
    """A test file that uses one of these names, or None."""
    words = "|".join(sorted({re.escape(name.rpartition(":")[2]) for name in names}))
    if not re.search(rf"\b(?:{words})\b".encode(), data):
        return None  # most are not worth parsing
    seen = is_test_file(data)
    return seen if seen.names & names else None


def _knows_launcher(data: bytes, judgement: Judgement) -> bool:
    """Whether a test uses a launcher by name, or says its file's name anywhere: much code stands between the two."""
    stems = {item.path.rsplit("/", 1)[-1].removesuffix(".py") for item in judgement.targets} - GENERIC
    if any(stem.encode() in data for stem in stems):
        return True
    return _knowing(data, {item.name.partition(".")[0] for item in judgement.targets}) is not None


_drafter: Drafter | None = None


@contextmanager
def finished(
    repository: Path,
    rules: RepoRules,
    judgements: Iterable[Judgement],
    facts: Mapping[int, PullFacts],
    limit: int | None = None,
    workers: int | None = None,
    cached: bool = False,
) -> Iterator[Iterator[Finished]]:
    """Judgements of kept pull requests, each with its draft or dropped after all, in their order.

    `limit` says how many will be asked for at most, as far as that is known; nothing is done ahead then. `cached`:
    use and keep drafts in the user's cache.
    """
    every = list(judgements)
    store = DraftStore(rules) if cached else None
    known = {id(item): found for item in every if store and (found := store.find(item, _facts_of(item, facts)))}
    missing = [item for item in every if id(item) not in known]
    with _made(repository, rules, missing, facts, limit, workers) as fresh:
        yield _in_order(every, known, fresh, facts, store)


def _in_order(
    every: Sequence[Judgement],
    known: Mapping[int, Finished],
    fresh: Iterator[Finished],
    facts: Mapping[int, PullFacts],
    store: DraftStore | None,
) -> Iterator[Finished]:
    for item in every:
        found = known.get(id(item)) or next(fresh)
        if store is not None and id(item) not in known:
            store.keep(item, _facts_of(item, facts), found)
        yield found


@contextmanager
def _made(
    repository: Path,
    rules: RepoRules,
    every: Sequence[Judgement],
    facts: Mapping[int, PullFacts],
    limit: int | None,
    workers: int | None,
) -> Iterator[Iterator[Finished]]:
    """As `finished`, all made now."""
    count = workers or min(2, os.cpu_count() or 1)
    with ExitStack() as stack:
        if limit is not None or len(every) < _ALONE or count < 2 or is_mirror(repository):
            drafter = stack.enter_context(Drafter(repository, rules))
            size = min(_ERA, limit or _ERA)
            yield (
                item
                for group in _groups(every, size)
                for item in drafter.finish(group, facts, users_of(repository, group, rules))
            )
            return
        pool = stack.enter_context(ProcessPoolExecutor(count, worker_processes(), _start, (repository, rules)))
        waiting: list[Future[list[Finished]]] = []
        for era in _groups(every, _ERA):  # an era is searched while the processes are at work on the one before
            users = users_of(repository, era, rules)
            last = era[-1] is every[-1]
            groups = _shrinking(era, count) if last else _groups(era, _GROUP)
            waiting += [pool.submit(_finish, group, facts, _of_group(users, group)) for group in groups]
        yield (item for future in waiting for item in future.result())


def users_of(repository: Path, era: Sequence[Judgement], rules: RepoRules) -> dict[str, set[str]]:
    """The source files that hold the names of an era's targets, in the tree that its last one left."""
    if not era or is_mirror(repository):  # a blobless mirror would fetch every file
        return {}
    names = sorted({name for item in era for name in telling_names(item.targets)})
    others = (f":(exclude,glob){pattern}" for pattern in rules.paths.not_source)
    return files_with(repository, era[-1].pull.landed, names, ("*.py", *others))


def _of_group(users: Mapping[str, set[str]], group: Sequence[Judgement]) -> dict[str, set[str]]:
    names = {name for item in group for name in telling_names(item.targets)}
    return {name: users[name] for name in names if name in users}


def _groups(every: Sequence[Judgement], size: int) -> list[Sequence[Judgement]]:
    return [every[start : start + size] for start in range(0, len(every), size)]


def _shrinking(every: Sequence[Judgement], workers: int) -> list[Sequence[Judgement]]:
    """Groups that become smaller, so that the workers end at about the same time: later changes take longer."""
    groups, start = list[Sequence[Judgement]](), 0
    while start < len(every):
        size = max(_LAST_GROUP, min(_GROUP, (len(every) - start) // (2 * workers)))
        groups.append(every[start : start + size])
        start += size
    return groups


def _facts_of(judgement: Judgement, facts: Mapping[int, PullFacts]) -> PullFacts | None:
    return facts.get(judgement.pull.number) if judgement.pull.number is not None else None


def _start(repository: Path, rules: RepoRules) -> None:
    global _drafter
    seldom_collect()
    _drafter = Drafter(repository, rules).__enter__()


def _finish(
    group: Sequence[Judgement], facts: Mapping[int, PullFacts], users: Mapping[str, set[str]]
) -> list[Finished]:
    assert _drafter is not None
    return _drafter.finish(group, facts, users)
