"""From a history to records: for each commit how it landed, and which Triton functions it changed.

Raw tree changes say which files changed; only Python files outside tests and benches are read, only those that can
hold Triton are cut into functions, and only functions not seen before are parsed. Two processes share the work, each
reading spans of commits that follow one another, so that the versions of a file that meet there are read once.
Records of a history are kept in the user's cache, so that a later scan reads the new commits only.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rtb.commit_record import Record, load_records, save_records
from rtb.history import (
    Blobs,
    Commit,
    FileChange,
    boundary,
    changes_between,
    line,
    present_objects,
    walk,
)
from rtb.kernels import FunctionChange, compare_sources
from rtb.landing import read_landing
from rtb.python_source import Unreadable
from rtb.relevance import Irrelevant
from rtb.repo_rules import RepoRules, is_runnable, is_source, is_test
from rtb.storage import cache_folder
from rtb.syntax import seldom_collect
from rtb.triton_source import EMPTY, Reading, TritonSource, read
from rtb.worker_processes import begin_worker_processes, worker_processes

_SPAN = 250  # commits a process gets at a time: enough for versions of one file to lie together
_KEPT_FILES = 400  # files of which a process keeps the last reading from one span to the next
_LARGE = 1 << 14  # bytes; smaller ones that need not be read are looked at as fast as compared
_SCANNED = tuple[tuple[tuple[FunctionChange, ...], tuple[str, ...], tuple[tuple[str, str], ...]] | None, ...]


@dataclass(frozen=True)
class Scan:
    """All records of a history, oldest first. `read` says how many commits had to be read anew."""

    records: tuple[Record, ...]
    newest: str
    read: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """The last version read of a path with what it holds, and the newest reading in parts to go on from."""

    name: str
    source: TritonSource | Unreadable
    reading: Reading


class Scanner:
    """Compares the files of commits; one per process. Of each path it keeps the last version for the next batch."""

    def __init__(self, repository: Path, rules: RepoRules, present: frozenset[bytes] | None) -> None:
        self._blobs = Blobs(repository, present)
        self._stack = ExitStack()
        self._stack.enter_context(self._blobs)
        self._wrappers = frozenset(rules.wrappers)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._nothing: dict[str, str] = {}
        self._passed_over: OrderedDict[str, Irrelevant] = OrderedDict()

    def close(self) -> None:
        """Ends the git process."""
        self._stack.close()

    def scan(self, batch: Sequence[Sequence[FileChange]]) -> _SCANNED:
        """The Triton changes of each commit's files; None where there is nothing to tell."""
        wanted: dict[str, dict[str, None]] = {}
        for files in batch:
            for item in files:
                seen = wanted.setdefault(item.path, {})
                seen.update(dict.fromkeys(name for name in (item.new, item.old) if name))
        sources: dict[tuple[str, str], TritonSource | Unreadable] = {}
        for path, names in wanted.items():
            if (last := self._nothing.get(path)) is not None:
                names.pop(last, None)
            elif (kept := self._kept.get(path)) is not None and kept.name in names:
                del names[kept.name]
                if kept.source is not EMPTY:
                    sources[path, kept.name] = kept.source
        # Versions of one path lie close together in a pack: asked in that order, each is one small delta away, and
        # most of its parts are those of the version before.
        order = [(path, name) for path in sorted(wanted) for name in wanted[path]]
        missing: set[str] = set()
        for (path, name), (_, data) in zip(order, self._blobs.read(name for _, name in order), strict=True):
            if data is None:
                missing.add(name)
                continue
            kept = self._kept.pop(path, None)
            earlier = kept.reading if kept is not None else None
            found = read(data, path, self._wrappers, earlier, self._passed_over.pop(path, None))
            if found.source is not EMPTY:
                sources[path, name] = found.source
            self._keep(path, name, found, kept)
            if found.irrelevant is not None and len(data) >= _LARGE:
                self._passed_over[path] = found.irrelevant
                if len(self._passed_over) > _KEPT_FILES:
                    self._passed_over.popitem(last=False)
        return tuple(_compare(files, sources, missing) for files in batch)

    def _keep(self, path: str, name: str, found: Reading, before: _Kept | None) -> None:
        if found.source is EMPTY and not found.parts and before is None:
            self._nothing[path] = name
            return
        self._nothing.pop(path, None)
        reading = found if found.parts or before is None else before.reading
        if reading.parts:
            self._kept[path] = _Kept(name, found.source, reading)
            if len(self._kept) > _KEPT_FILES:
                self._kept.popitem(last=False)


def _compare(
    files: Sequence[FileChange], sources: dict[tuple[str, str], TritonSource | Unreadable], missing: set[str]
) -> tuple[tuple[FunctionChange, ...], tuple[str, ...], tuple[tuple[str, str], ...]] | None:
    before: dict[str, TritonSource | Unreadable] = {}
    after: dict[str, TritonSource | Unreadable] = {}
    skipped: list[tuple[str, str]] = []
    for item in files:
        if item.old in missing or item.new in missing:
            skipped.append((item.path, "missing_blob"))
            continue
        for name, side in ((item.old, before), (item.new, after)):
            if name and (source := sources.get((item.path, name))) is not None:
                side[item.path] = source
    if not before and not after and not skipped:
        return None
    result = compare_sources(before, after)
    skipped += [(path, why.reason) for path, why in result.unreadable]
    if not result.changes and not skipped and not result.dialects:
        return None
    return result.changes, result.dialects, tuple(skipped)


class _Reader:
    """Reads spans of a history; one per process."""

    def __init__(
        self, repository: Path, rules: RepoRules, ends: frozenset[str], present: frozenset[bytes] | None
    ) -> None:
        self._repository = repository
        self._rules = rules
        self._ends = ends
        self._scanner = Scanner(repository, rules, present)
        self.close = self._scanner.close

    def records(self, newest: str, count: int) -> list[Record]:
        """Records of `count` commits, newest first."""
        commits = list(walk(self._repository, newest, count=count))
        scanned = self._scanner.scan([_files(item, self._rules, self._ends) for item in commits])
        return list(_records(commits, scanned, self._rules, self._ends))


_reader: _Reader | None = None


def _start(repository: Path, rules: RepoRules, ends: frozenset[str], present: frozenset[bytes] | None) -> None:
    global _reader
    seldom_collect()
    _reader = _Reader(repository, rules, ends, present)


def _records_of(newest: str, count: int) -> list[Record]:
    assert _reader is not None
    return _reader.records(newest, count)


def scan(
    repository: Path,
    newest: str,
    rules: RepoRules,
    *,
    workers: int | None = None,
    cached: bool = True,
    fetch: Callable[[Sequence[str]], object] | None = None,
) -> Scan:
    """Records of the first-parent line up to `newest`.

    `cached`: use and update the records in the user's cache. `fetch`: gets blobs that a blobless mirror lacks.
    Raises GitFailed when git ends early.
    """
    home = cache_folder("mined") / f"{rules.repo.replace('/', '__')}-{rules.digest}.jsonl"
    known = load_records(home, repository, newest) if cached else ()
    after = known[-1].sha if known else None
    if fetch is not None:
        _complete(repository, newest, after, rules, fetch)
    fresh = tuple(reversed(_fresh(repository, newest, after, rules, workers or min(2, os.cpu_count() or 1))))
    records = (*known, *fresh)
    if cached and fresh:
        save_records(home, records)
    return Scan(records, newest, len(fresh))


def _complete(
    repository: Path, newest: str, after: str | None, rules: RepoRules, fetch: Callable[[Sequence[str]], object]
) -> None:
    """Fetch the source blobs of the commits to be read, those that are not there yet."""
    present = present_objects(repository) or frozenset()
    ends = boundary(repository)
    wanted = {
        name: None
        for commit in walk(repository, newest, after)
        for item in _files(commit, rules, ends)
        for name in (item.new, item.old)
        if name and bytes.fromhex(name) not in present
    }
    if wanted:
        fetch(list(wanted))


def _fresh(repository: Path, newest: str, after: str | None, rules: RepoRules, workers: int) -> list[Record]:
    """New records, newest first."""
    if after is None and workers > 1:  # a whole history, most likely long
        begin_worker_processes()
    shas = line(repository, newest, after)
    setting = (repository, rules, boundary(repository), present_objects(repository))
    if len(shas) < 200 or workers < 2:  # not worth the start of processes
        reader = _Reader(*setting)
        try:
            return [record for span in _spans(shas) for record in reader.records(*span)]
        finally:
            reader.close()
    spans = _spans(shas)
    done: list[list[Record]] = [[] for _ in spans]
    size = -(-len(spans) // workers)
    blocks = [list(range(len(spans)))[lane * size : (lane + 1) * size] for lane in range(workers)]
    with ExitStack() as stack:
        lanes = [
            stack.enter_context(ProcessPoolExecutor(1, worker_processes(), _start, setting)) for _ in range(workers)
        ]
        running: dict[Future[list[Record]], tuple[int, int]] = {}
        for lane in [*range(workers), *range(workers)]:  # one at work and one ready in each
            _give(lane, lanes, blocks, spans, running)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                lane, number = running.pop(future)
                _give(lane, lanes, blocks, spans, running)
                done[number] = future.result()
    return [record for records in done for record in records]


def _spans(shas: Sequence[str]) -> list[tuple[str, int]]:
    """A line cut into pieces: the newest commit of each, and how many it has."""
    return [(shas[start], min(_SPAN, len(shas) - start)) for start in range(0, len(shas), _SPAN)]


def _give(
    lane: int,
    lanes: Sequence[ProcessPoolExecutor],
    blocks: list[list[int]],
    spans: Sequence[tuple[str, int]],
    running: dict[Future[list[Record]], tuple[int, int]],
) -> None:
    """The next span for a lane: the one after its last, so that it has the versions that meet there; else it takes
    over the older half of the longest block."""
    if not blocks[lane]:
        longest = max(blocks, key=len)
        kept = len(longest) // 2
        blocks[lane] = longest[kept:]
        del longest[kept:]
    if blocks[lane]:
        number = blocks[lane].pop(0)
        running[lanes[lane].submit(_records_of, *spans[number])] = (lane, number)


def _files(commit: Commit, rules: RepoRules, ends: frozenset[str]) -> list[FileChange]:
    """The files of a commit in which a target's change could be."""
    if commit.sha in ends:
        return []
    return [item for item in commit.changes if item.is_file and is_source(item.path, rules)]


def _records(commits: list[Commit], scanned: _SCANNED, rules: RepoRules, ends: frozenset[str]) -> Iterator[Record]:
    for commit, found in zip(commits, scanned, strict=True):
        changes, dialects, skipped = found or ((), (), ())
        odd = tuple((item.path, "submodule_or_link") for item in commit.changes if not item.is_file)
        tests: tuple[str, ...] = ()
        if changes:
            tests = tuple(item.path for item in commit.changes if item.new and is_test(item.path, rules))
        yield Record(
            sha=commit.sha,
            parents=commit.parents,
            committed_at=commit.committed_at,
            landing=read_landing(commit.message, len(commit.parents), rules.repo, rules.aliases),
            files=len(commit.changes),
            tests=tests,
            came=tuple(item.path for item in commit.changes if item.old is None and is_runnable(item.path, rules)),
            went=tuple(item.path for item in commit.changes if item.new is None and is_runnable(item.path, rules)),
            changes=changes,
            dialects=dialects,
            skipped=(*skipped, *odd),
            boundary=commit.sha in ends,
        )


def net_changes(
    repository: Path, base: str, landed: str, rules: RepoRules, scanner: Scanner
) -> tuple[FunctionChange, ...]:
    """The Triton changes between two commits that need not be neighbours."""
    files = [
        item for item in changes_between(repository, base, landed) if item.is_file and is_source(item.path, rules)
    ]
    found = scanner.scan([files])[0]
    return found[0] if found is not None else ()
