"""Repositories and trees: fetching, rebuilding, diffing, splitting. EDGE git: the only place that runs it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rtb.errors import ExpectedError, GitFailed, OutOfSpace
from rtb.storage import cache_folder, locked
from rtb.suite import TaskEntry
from rtb.task import SplitRules

# A user's or machine's git configuration must not change a tree, a diff or a commit id.
CONFIG = (
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.quotePath=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "commit.gpgSign=false",
    "diff.algorithm=myers",
    "diff.renames=false",
    "diff.mnemonicPrefix=false",
    "diff.noprefix=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "init.defaultBranch=main",
    "protocol.file.allow=always",
    "safe.directory=*",
    "advice.detachedHead=false",
)


@dataclass(frozen=True)
class GitResult:
    """What a git command left. Bytes: paths and contents have no encoding."""

    returncode: int
    stdout: bytes
    stderr: bytes


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every git command: the caller's, less all that could reach another repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for name in ("GIT_SSL_CAINFO", "GIT_TRACE", "GIT_SSH_COMMAND"):
        if name in os.environ:
            kept[name] = os.environ[name]
    return {
        **kept,
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        **(extra or {}),
    }


def run_git(
    arguments: Sequence[str | bytes],
    *,
    repository: Path,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> GitResult:
    """Run git in a repository (work tree or git directory), apart from any configuration but ours.

    Raises GitFailed when `check` and git fails, OutOfSpace on a full disk, ExpectedError when git is not installed.
    """
    options = [part for item in CONFIG for part in ("-c", item)]
    extra = {"GIT_CEILING_DIRECTORIES": str(repository.resolve().parent), **(env or {})}
    try:
        done = subprocess.run(
            ["git", *options, *arguments],
            cwd=repository,
            input=stdin if stdin is not None else b"",
            env=git_environment(extra),
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        if not repository.is_dir():
            raise GitFailed(f"{repository}: no such folder; it was to hold a repository") from error
        raise ExpectedError("git is not installed: install it and run the same command again") from error
    if b"No space left on device" in done.stderr:
        raise OutOfSpace(f"the disk is full while git worked in {repository}: free some space and run it again")
    if check and done.returncode != 0:
        words = " ".join(item.decode(errors="replace") if isinstance(item, bytes) else item for item in arguments)
        tail = done.stderr.decode(errors="replace").strip()[-2000:]
        raise GitFailed(f"git {words} failed in {repository} with exit code {done.returncode}: {tail}")
    return GitResult(done.returncode, done.stdout, done.stderr)


def rebuild_series(series: Path, destination: Path, committer: str) -> None:
    """Make a repository from a patch series; the same files give the same commit ids on any machine.

    `committer` is "Name <mail>" and commits at the author's date. Raises GitFailed when a patch does not apply.
    """
    patches = sorted(series.glob("*.patch"))
    if not patches:
        raise ExpectedError(f"{series}: no *.patch files to rebuild the repository from")
    destination.mkdir(parents=True, exist_ok=True)
    # The object format is named so that a git whose default is SHA-256 gives the same ids.
    run_git(["init", "-q", "--template=", "--object-format=sha1", "-b", "main"], repository=destination)
    name, _, mail = committer.partition(" <")
    identity = {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": mail.rstrip(">")}
    arguments = [
        "am",
        "-q",
        "--keep-cr",
        "--committer-date-is-author-date",
        *(str(item.resolve()) for item in patches),
    ]
    run_git(arguments, repository=destination, env=identity)


def has_commit(git_dir: Path, commit: str) -> bool:
    """Whether a repository holds a commit, without asking a promisor remote for it."""
    env = {"GIT_NO_LAZY_FETCH": "1"}
    return (
        run_git(["cat-file", "-e", f"{commit}^{{commit}}"], repository=git_dir, env=env, check=False).returncode == 0
    )


def obtain(entry: TaskEntry, clone: Path | None = None) -> Path:
    """A repository that has a task's base and landed commits.

    From `clone` when given, else the suite's patch series, else a blobless fetch into the user's cache.
    Raises ExpectedError, with the ways out, when the commits cannot be had.
    """
    commits = (entry.task.base_commit, entry.task.merge_commit)
    if clone is not None:
        return _from_clone(entry, clone, commits)
    if entry.source.series is not None:
        return _from_series(entry, entry.suite_path / entry.source.series, commits)
    cached = cache_folder("repositories") / f"{entry.task.repo.replace('/', '__')}.git"
    with locked(cached):
        remembered = _remembered_clone(cached)
        if remembered and all(has_commit(remembered, commit) for commit in commits):
            return remembered
        if not cached.is_dir():
            run_git(
                ["init", "-q", "--template=", "--bare", "--object-format=sha1", str(cached)], repository=cached.parent
            )
        if not all(has_commit(cached, commit) for commit in commits):
            _fetch(entry, cached, commits)
    return cached


def _clone_note(cached: Path) -> Path:
    return cached.with_suffix(".clone")


def _remembered_clone(cached: Path) -> Path | None:
    """The clone a user named for this repository before, so that it need be named once only."""
    note = _clone_note(cached)
    if not note.is_file():
        return None
    path = Path(note.read_text().strip())
    return path if path.is_dir() else None


def _from_clone(entry: TaskEntry, clone: Path, commits: Sequence[str]) -> Path:
    if not clone.is_dir():
        raise ExpectedError(f"--clone {clone}: no such folder")
    if run_git(["rev-parse", "--git-dir"], repository=clone, check=False).returncode != 0:
        raise ExpectedError(f"--clone {clone}: not a git repository")
    if missing := [commit for commit in commits if not has_commit(clone, commit)]:
        raise ExpectedError(
            f"{entry.instance_id}: commit {missing[0]} is not in {clone}; fetch the branch that holds it, or leave "
            "--clone out to fetch it from the repository's own address"
        )
    cached = cache_folder("repositories") / f"{entry.task.repo.replace('/', '__')}.git"
    _clone_note(cached).write_text(f"{clone.resolve()}\n")
    return clone


@lru_cache(maxsize=8)
def _series_home(series: Path, key: str, committer: str) -> Path:
    home = cache_folder("series") / key
    with locked(home):
        if not home.is_dir():
            building = home.with_name(f".{home.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            rebuild_series(series, building, committer)
            building.rename(home)
    return home


def _from_series(entry: TaskEntry, series: Path, commits: Sequence[str]) -> Path:
    committer = entry.source.committer
    digest = hashlib.sha256(committer.encode())
    for item in sorted(series.glob("*")):
        digest.update(item.name.encode() + b"\0" + item.read_bytes() + b"\0")
    home = _series_home(
        series.resolve(), f"{entry.task.repo.replace('/', '__')}-{digest.hexdigest()[:16]}", committer
    )
    if missing := [commit for commit in commits if not has_commit(home, commit)]:
        raise ExpectedError(f"{entry.instance_id}: rebuilding {series} did not give commit {missing[0]}")
    return home


def _fetch(entry: TaskEntry, cached: Path, commits: Sequence[str]) -> None:
    """Blobless fetch of the two commits; blobs come when a diff or a tree asks for them."""
    url = entry.source.url
    assert url is not None
    if run_git(["remote"], repository=cached).stdout.strip() != b"origin":
        run_git(["remote", "add", "origin", url], repository=cached)
        run_git(["config", "remote.origin.promisor", "true"], repository=cached)
        run_git(["config", "remote.origin.partialclonefilter", "blob:none"], repository=cached)
    fetch = ["fetch", "-q", "--no-tags", "--depth=1", "--filter=blob:none", "origin", *commits]
    result = run_git(fetch, repository=cached, check=False)
    if result.returncode != 0:
        raise ExpectedError(
            f"{entry.instance_id}: cannot fetch {commits[0][:12]} and {commits[1][:12]} from {url} "
            f"({result.stderr.decode(errors='replace').strip().splitlines()[-1:] or ['no answer']}); "
            "name a local clone that has them with --clone PATH"
        )


def changed_paths(git_dir: Path, base: str, landed: str) -> tuple[str, ...]:
    """Every path that differs between two commits, renames as a deletion and an addition."""
    arguments = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", base, landed]
    names = run_git(arguments, repository=git_dir).stdout.split(b"\0")
    return tuple(os.fsdecode(name) for name in names if name)


def diff(git_dir: Path, base: str, landed: str, paths: Sequence[str]) -> bytes:
    """The patch from one commit to another over exactly these paths, bytes exact, binary data in."""
    if not paths:
        return b""
    literal = [os.fsencode(f":(top,literal){path}") for path in paths]
    arguments: list[str | bytes] = [
        "diff", "--binary", "--full-index", "--no-color", "--no-renames", "--no-ext-diff", "--no-textconv",
        "--src-prefix=a/", "--dst-prefix=b/", base, landed, "--", *literal,
    ]  # fmt: skip
    return run_git(arguments, repository=git_dir).stdout


@dataclass(frozen=True)
class Split:
    """The paths of a landed diff: what a solver writes, what is held out, what is in neither."""

    source: tuple[str, ...]
    tests: tuple[str, ...]
    dropped: tuple[str, ...]


def split_paths(paths: Sequence[str], rules: SplitRules) -> Split:
    """Sort paths by a repository's rules. Whole-path globs: `tests/x.py` is not matched by `latest/**`."""
    source: list[str] = []
    tests: list[str] = []
    dropped: list[str] = []
    for path in sorted(paths):
        if matches(path, rules.dropped):
            dropped.append(path)
        elif matches(path, rules.tests) and not matches(path, rules.not_tests):
            tests.append(path)
        else:
            source.append(path)
    return Split(tuple(source), tuple(tests), tuple(dropped))


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path matches one of the globs. `*` and `?` stay within a folder, `**` crosses folders."""
    return any(_glob(pattern).fullmatch(path) for pattern in patterns)


@lru_cache(maxsize=512)
def _glob(pattern: str) -> re.Pattern[str]:
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = [meaning.get(token, re.escape(token)) for token in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)]
    return re.compile("".join(pieces), re.DOTALL)
