"""A repository's history as a stream: commits with their raw tree changes, and blobs by id. EDGE git, reading only.

Nothing here is checked out or diffed as text: raw tree changes cost a tenth of `git log -p`, and only blobs that are
asked for are read. A blob that a clone lacks is an answer (`None`), never an end of the walk and never a fetch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rtb.checkout import CONFIG, git_environment, run_git
from rtb.errors import ExpectedError, GitFailed

_BLOCK = 1 << 20
_DELTA_BASES = "32m"  # git's own 96 MiB in each process gain nothing for versions that are asked for path by path
_PIPE = 1 << 20  # bytes, the most that an ordinary user may have
_WINDOW = 256  # ids written ahead of the answers: 10 KiB, well inside a pipe's buffer
NO_OBJECT = "0" * 40


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path of a commit against its first parent. An absent side has id None; modes are as git writes them."""

    path: str
    old: str | None
    new: str | None
    old_mode: str
    new_mode: str

    @property
    def is_file(self) -> bool:
        """Neither side is a symlink or a submodule: those ids are no file contents."""
        return self.old_mode in _FILE_MODES and self.new_mode in _FILE_MODES


_FILE_MODES = frozenset(("100644", "100755", "100664", "000000"))


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the first-parent line. `committed_at` is seconds since 1970 (author dates are not in order)."""

    sha: str
    parents: tuple[str, ...]
    committed_at: int
    author: str
    message: str
    changes: tuple[FileChange, ...]


def resolve(repository: Path, name: str | None) -> str:
    """The commit a name stands for. Raises ExpectedError with what there is instead."""
    wanted = name or _default_branch(repository)
    done = run_git(["rev-parse", "--verify", "-q", f"{wanted}^{{commit}}"], repository=repository, check=False)
    if done.returncode != 0:
        raise ExpectedError(
            f"{repository}: there is no commit {wanted!r}; name a branch, tag or commit of this clone with --ref "
            f"('git -C {repository} branch -a' lists the branches)"
        )
    return done.stdout.decode().strip()


def _default_branch(repository: Path) -> str:
    for name in ("refs/remotes/origin/HEAD", "HEAD", "refs/heads/main", "refs/heads/master"):
        if run_git(["rev-parse", "-q", "--verify", name], repository=repository, check=False).returncode == 0:
            return name
    return "HEAD"


def boundary(repository: Path) -> frozenset[str]:
    """Commits at which a shallow clone ends: all their files look new, which means nothing."""
    folder = run_git(["rev-parse", "--git-dir"], repository=repository).stdout.decode().strip()
    shallow = (repository / folder) / "shallow"
    return frozenset(shallow.read_text().split()) if shallow.is_file() else frozenset()


def is_ancestor(repository: Path, older: str, newer: str) -> bool:
    """Whether `older` is reached from `newer`; False also when it is not there at all."""
    arguments = ["merge-base", "--is-ancestor", older, newer]
    return run_git(arguments, repository=repository, check=False).returncode == 0


def line(repository: Path, newest: str, after: str | None = None) -> list[str]:
    """The ids of the commits that `walk` gives, without looking at their trees."""
    arguments = ["rev-list", "--first-parent", newest, *([f"^{after}"] if after else []), "--"]
    return run_git(arguments, repository=repository).stdout.decode().split()


def walk(repository: Path, newest: str, after: str | None = None, count: int | None = None) -> Iterator[Commit]:
    """Commits of the first-parent line from `newest` back to (not with) `after`, newest first, at most `count`.

    Merges are compared with their first parent. Raises GitFailed when git ends early: a history that is silently
    cut short would look like a smaller repository.
    """
    arguments = [
        "log", "-z", "--raw", "--no-abbrev", "--first-parent", "--diff-merges=first-parent", "--no-renames",
        "--format=%x01%H%x02%P%x02%ct%x02%an%x02%B", *([f"--max-count={count}"] if count is not None else []),
        newest, *([f"^{after}"] if after else []), "--",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        process = _process(repository, ["-c", "log.showRoot=true", *arguments], errors)
        try:
            assert process.stdout is not None
            yield from _commits(_tokens(process.stdout))
            if process.wait() != 0:
                errors.seek(0)
                tail = errors.read().decode(errors="replace").strip()[-500:]
                raise GitFailed(f"{repository}: git log ended early with exit code {process.returncode}: {tail}")
        finally:
            process.kill()
            process.communicate()


def _process(repository: Path, arguments: list[str], errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
    options = [part for item in CONFIG for part in ("-c", item)]
    environment = git_environment({"GIT_NO_LAZY_FETCH": "1"})
    return subprocess.Popen(
        ["git", *options, *arguments],
        cwd=repository,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def _tokens(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_BLOCK):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
    if rest.strip():
        yield rest


def _commits(tokens: Iterator[bytes]) -> Iterator[Commit]:
    head: list[bytes] | None = None
    changes: list[FileChange] = []
    for token in tokens:
        if token.startswith(b"\x01"):
            if head is not None:
                yield _commit(head, changes)
            head, changes = token[1:].split(b"\x02", 4), []
            continue
        fields = token.lstrip(b"\n")
        if fields.startswith(b":"):
            changes.append(_change(fields, next(tokens)))
    if head is not None:
        yield _commit(head, changes)


def _change(fields: bytes, path: bytes) -> FileChange:
    old_mode, new_mode, old, new, _ = fields[1:].decode().split(" ", 4)
    sides = [None if name == NO_OBJECT else name for name in (old, new)]
    return FileChange(os.fsdecode(path), sides[0], sides[1], old_mode, new_mode)


def changes_between(repository: Path, base: str, landed: str) -> tuple[FileChange, ...]:
    """Raw changes from one commit to another."""
    arguments = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", base, landed]
    tokens = iter(run_git(arguments, repository=repository).stdout.split(b"\0"))
    return tuple(_change(fields, next(tokens)) for fields in tokens if fields)


def _commit(head: list[bytes], changes: list[FileChange]) -> Commit:
    sha, parents, committed_at, author, message = head
    return Commit(
        sha=sha.decode(),
        parents=tuple(parents.decode().split()),
        committed_at=int(committed_at),
        author=author.decode(errors="replace"),
        message=message.decode(errors="replace"),
        changes=tuple(changes),
    )


class Blobs:
    """Reads blobs by id from one `git cat-file --batch`. Use as a context manager.

    `present`, when given, is the set of objects the clone has: others are answered without asking git, which in an
    incomplete (promisor) clone would start a fetch for each.
    """

    def __init__(self, repository: Path, present: frozenset[bytes] | None = None) -> None:
        self._repository = repository
        self._present = present
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        arguments = ["-c", f"core.deltaBaseCacheLimit={_DELTA_BASES}", "cat-file", "--batch"]
        self._process = _process(self._repository, arguments, subprocess.DEVNULL)
        _widen(self._process.stdout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def read(self, ids: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Each id with its bytes, in the order asked; None for one the clone lacks.

        An id is anything git resolves, e.g. `commit:path`; one that is no blob is None as well.
        """
        waiting: list[str] = []
        flying: list[str] = []
        for name in ids:
            if self._present is not None and len(name) == 40 and bytes.fromhex(name) not in self._present:
                yield name, None
                continue
            waiting.append(name)
            if len(waiting) == _WINDOW:
                self._ask(waiting)
                yield from self._answers(flying)
                flying, waiting = waiting, []
        self._ask(waiting)
        yield from self._answers(flying)
        yield from self._answers(waiting)

    def one(self, name: str) -> bytes | None:
        """A single blob."""
        return next(iter(self.read([name])))[1]

    def _ask(self, names: list[str]) -> None:
        process = self._running()
        assert process.stdin is not None
        if names:
            process.stdin.write(b"".join(os.fsencode(name) + b"\n" for name in names))
            process.stdin.flush()

    def _answers(self, names: list[str]) -> Iterator[tuple[str, bytes | None]]:
        process = self._running()
        assert process.stdout is not None
        for name in names:
            head = process.stdout.readline()
            if not head.endswith(b"\n"):
                raise GitFailed(f"{self._repository}: git cat-file ended while reading {name}")
            words = head.rsplit(b" ", 2)
            if len(words) != 3 or not words[2].strip().isdigit():
                yield name, None  # "missing", "ambiguous"
                continue
            data = process.stdout.read(int(words[2]) + 1)[:-1]
            yield name, data if words[1] == b"blob" else None

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "use Blobs with 'with'"
        return self._process


def _widen(pipe: IO[bytes] | None) -> None:
    """Lets git write on while what it wrote is read: less waiting and fewer switches. Only Linux can."""
    if pipe is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(PermissionError):  # more than this user may have
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def present_objects(repository: Path) -> frozenset[bytes] | None:
    """The ids a promisor clone has, or None for a complete clone, which need not be asked."""
    promisor = run_git(["config", "--get-regexp", r"^remote\..*\.promisor$"], repository=repository, check=False)
    if b" true" not in promisor.stdout:
        return None
    listing = run_git(["cat-file", "--batch-check=%(objectname)", "--batch-all-objects"], repository=repository)
    return frozenset(bytes.fromhex(line.decode()) for line in listing.stdout.splitlines())


def messages(repository: Path, commits: Iterable[str]) -> dict[str, str]:
    """Full messages of some commits."""
    names = "".join(f"{name}\n" for name in commits).encode()
    if not names:
        return {}
    arguments = ["log", "-z", "--no-walk=unsorted", "--stdin", "--format=%H%x02%B"]
    told = run_git(arguments, repository=repository, stdin=names, env={"GIT_NO_LAZY_FETCH": "1"}).stdout
    pairs = (item.partition(b"\x02") for item in told.split(b"\0") if item)
    return {sha.decode().strip(): text.decode(errors="replace") for sha, _, text in pairs}


def files_with(repository: Path, commit: str, names: Sequence[str], globs: Sequence[str]) -> dict[str, set[str]]:
    """For each name the files of a commit's tree that hold it as a whole word."""
    found: dict[str, set[str]] = {}
    if not names:
        return found
    arguments = ["grep", "-I", "-n", "-o", "-w", "-F", "-z", "-f", "-", commit, "--", *globs]
    text = "".join(f"{name}\n" for name in names).encode()
    # Exit code 1: no hit; more: a file could not be read (a missing blob), and what was found still counts.
    told = run_git(arguments, repository=repository, stdin=text, check=False, env={"GIT_NO_LAZY_FETCH": "1"})
    for line in told.stdout.split(b"\n"):  # COMMIT:PATH NUL LINE NUL NAME
        words = line.split(b"\0")
        if len(words) == 3:
            path = os.fsdecode(words[0]).removeprefix(f"{commit}:")
            found.setdefault(words[2].decode(), set()).add(path)
    return found
