"""Repositories and trees: fetching, rebuilding, diffing, splitting. EDGE git: the only place that runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rtb.errors import ExpectedError, GitFailed, OutOfSpace
from rtb.storage import cache_folder, locked, write_atomic
from rtb.suite import TaskEntry
from rtb.task import SplitRules

# A user's or machine's git configuration must not change a tree, a diff or a commit id.
CONFIG = (
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.quotePath=false",
    "core.hooksPath=/dev/null",
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
    run_git(["init", "-q", "--object-format=sha1", "-b", "main"], repository=destination)
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
            run_git(["init", "-q", "--bare", "--object-format=sha1", str(cached)], repository=cached.parent)
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


@dataclass(frozen=True)
class BaseTree:
    """A work tree that holds the base commit and nothing later.

    `commit` is the task's base commit, unless blobs were missing in an incomplete clone: then it is a commit of the
    same message, author and dates over the tree without them, and `omitted` names the paths.
    """

    path: Path
    commit: str
    tree: str
    omitted: tuple[str, ...] = ()


def base_tree(entry: TaskEntry, destination: Path, clone: Path | None = None) -> BaseTree:
    """Make a work tree at a task's base commit, that commit being the only one: no parent, remote, tag or reflog.

    `destination` must not exist. Raises ExpectedError when the commit cannot be had, GitFailed when git fails.
    """
    git_dir = obtain(entry, clone)
    destination.mkdir(parents=True)
    run_git(["init", "-q", "--object-format=sha1", "-b", "main"], repository=destination)
    commit = entry.task.base_commit
    _complete(git_dir, commit)
    absent = _missing_blobs(git_dir, commit)
    if absent:
        commit, absent = _commit_without(git_dir, commit, destination, absent)
    else:
        _copy_commit(git_dir, commit, destination)
    run_git(["update-ref", "--no-deref", "refs/heads/main", commit], repository=destination)
    run_git(["reset", "-q", "--hard", commit], repository=destination)
    _forget_the_rest(destination)
    tree = run_git(["rev-parse", f"{commit}^{{tree}}"], repository=destination).stdout.decode().strip()
    return BaseTree(destination, commit, tree, absent)


def base_repository(entry: TaskEntry, clone: Path | None = None) -> BaseTree:
    """The objects of a task's base commit, kept in the user's cache. `path` has no checked-out files.

    Raises what `base_tree` raises.
    """
    commit = entry.task.base_commit
    home = cache_folder("bases") / f"{entry.task.repo.replace('/', '__')}-{commit}"
    facts = home / "base.json"
    with locked(home):
        if not facts.is_file():
            remake = home / "repository"
            shutil.rmtree(home, ignore_errors=True)
            made = base_tree(entry, remake, clone)
            for item in remake.iterdir():
                if item.name != ".git":
                    shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
            found = {"commit": made.commit, "tree": made.tree, "omitted": made.omitted}
            write_atomic(facts, json.dumps(found).encode())
        stored = json.loads(facts.read_bytes())
    return BaseTree(home / "repository", stored["commit"], stored["tree"], tuple(stored["omitted"]))


def _complete(git_dir: Path, commit: str) -> None:
    """In a blobless cache of ours, fetch every blob of one commit at once rather than one at a time."""
    promisor = run_git(["config", "remote.origin.promisor"], repository=git_dir, check=False).stdout.strip()
    if promisor == b"true" and git_dir.parent == cache_folder("repositories"):
        fetch = ["fetch", "-q", "--no-tags", "--refetch", "--no-filter", "--depth=1", "origin", commit]
        run_git(fetch, repository=git_dir)


def _missing_blobs(git_dir: Path, commit: str) -> tuple[str, ...]:
    """Paths at a commit whose contents cannot be had: in an incomplete clone, or refused by the promisor."""
    listing = run_git(["ls-tree", "-r", "-z", commit], repository=git_dir).stdout.split(b"\0")
    entries = [line.split(b"\t", 1) for line in listing if line]
    blobs = [(head.split()[2], path) for head, path in entries if head.split()[1] == b"blob"]
    names = b"".join(name + b"\n" for name, _ in blobs)
    batch = ["cat-file", "--batch-check=%(objecttype)"]
    # A foreign clone may be incomplete: what it lacks is noted, not fetched behind the user's back.
    check = run_git(batch, repository=git_dir, stdin=names, env={"GIT_NO_LAZY_FETCH": "1"})
    answers = check.stdout.splitlines()
    return tuple(os.fsdecode(path) for (_, path), kind in zip(blobs, answers, strict=True) if kind != b"blob")


def _copy_commit(git_dir: Path, commit: str, destination: Path) -> None:
    """Objects of one commit, without its parents: a shallow boundary, as `git clone --depth 1` leaves it."""
    names = run_git(["rev-list", "--objects", "--no-walk", commit], repository=git_dir).stdout
    pack = run_git(["pack-objects", "-q", "--stdout"], repository=git_dir, stdin=_object_names(names)).stdout
    run_git(["unpack-objects", "-q"], repository=destination, stdin=pack)
    parents = run_git(["rev-list", "--parents", "-n", "1", commit], repository=git_dir).stdout.split()[1:]
    if parents:
        (destination / ".git" / "shallow").write_text(f"{commit}\n")


def _object_names(listing: bytes) -> bytes:
    return b"".join(line.split(b" ", 1)[0] + b"\n" for line in listing.splitlines())


def _commit_without(
    git_dir: Path, commit: str, destination: Path, absent: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """A commit like this one over its tree less the absent paths, made in `destination`."""
    gone = set(absent)
    listing = run_git(["ls-tree", "-r", "-z", commit], repository=git_dir).stdout.split(b"\0")
    kept = [line for line in listing if line and os.fsdecode(line.split(b"\t", 1)[1]) not in gone]
    names = b"".join(line.split()[2] + b"\n" for line in kept if line.split()[1] == b"blob")
    pack = run_git(["pack-objects", "-q", "--stdout"], repository=git_dir, stdin=names).stdout
    run_git(["unpack-objects", "-q"], repository=destination, stdin=pack)
    lines = b"".join(line + b"\0" for line in kept)
    run_git(["update-index", "-z", "--index-info"], repository=destination, stdin=lines)
    # Gitlinks name commits that are in no clone: --missing-ok lets the tree keep them.
    tree = run_git(["write-tree", "--missing-ok"], repository=destination).stdout.decode().strip()
    raw = run_git(["cat-file", "commit", commit], repository=git_dir).stdout
    head, _, message = raw.partition(b"\n\n")
    author = [line for line in head.splitlines() if line.startswith((b"author ", b"committer ", b"encoding "))]
    body = b"\n".join([b"tree " + tree.encode(), *author]) + b"\n\n" + message
    made = run_git(["hash-object", "-t", "commit", "-w", "--stdin"], repository=destination, stdin=body)
    return made.stdout.decode().strip(), tuple(absent)


def _forget_the_rest(repository: Path) -> None:
    """Remove what names or describes anything but the commit: reflogs, ORIG_HEAD, hooks, samples."""
    home = repository / ".git"
    for name in ("ORIG_HEAD", "FETCH_HEAD", "packed-refs", "description"):
        (home / name).unlink(missing_ok=True)
    for name in ("logs", "hooks", "branches", "info"):
        shutil.rmtree(home / name, ignore_errors=True)
    run_git(["repack", "-q", "-a", "-d"], repository=repository)
    run_git(["prune", "--expire=now"], repository=repository)
