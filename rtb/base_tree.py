"""The tree that a patch meets: a repository whose only commit is a task's base commit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtb.checkout import obtain, run_git
from rtb.storage import cache_folder, locked, write_atomic
from rtb.suite import TaskEntry


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
    run_git(["init", "-q", "--template=", "--object-format=sha1", "-b", "main"], repository=destination)
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
