"""What an agent did to a work tree, as one patch against the base: committed or not, bytes exact.

The tree is hostile: its own git directory is read for objects only, so its configuration, hooks, filters, excludes
and owner have no say. Runs on the host, or wherever the tree is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rtb.artefacts import artefact
from rtb.errors import GitFailed
from rtb.git_objects import GITLINK, GitObjects, TreeEntry, borrow_objects

MAX_UNTRACKED_BYTES = 10 * 1024**2


@dataclass(frozen=True, slots=True)
class Capture:
    """The patch, and what was left out of it: (path, why), sorted."""

    patch: bytes
    left_out: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Found:
    taken: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def capture(directory: Path, base_commit: str, *, repository: Path | None = None) -> bytes:
    """The patch of `capture_tree`."""
    return capture_tree(directory, base_commit, repository=repository).patch


def capture_tree(
    directory: Path,
    base_commit: str,
    *,
    repository: Path | None = None,
    max_untracked_bytes: int = MAX_UNTRACKED_BYTES,
) -> Capture:
    """Every difference between a work tree and a commit: edits, new, deleted, moved and binary files, modes, links.

    Left out: what .gitignore names, artefacts (`rtb.artefacts`), untracked files over the limit, clones of other
    repositories, links out of the tree. Files of a nested repository that has no remote are taken as plain files.
    `repository` is where the base commit's objects are, the tree's own .git when None. The patch applies to the base
    with strict `git apply`. Raises ExpectedError when the commit is not there, GitFailed when a file cannot be read.
    """
    directory = directory.resolve()
    with borrow_objects(repository or directory) as objects:
        base = objects.tree_of(base_commit)
        index = objects.new_index(base)
        _take_tracked(objects, base, index, directory)
        found = _untracked(objects, index, directory, max_untracked_bytes)
        names = b"".join(os.fsencode(path) + b"\0" for path in found.taken)
        objects.run(["update-index", "-z", "--add", "--stdin"], stdin=names, index=index, work_tree=directory)
        _forget_line_ends(objects, base, index, found)
        arguments = [
            "diff-index", "--cached", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
            "--no-textconv", "--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/", base,
        ]  # fmt: skip
        patch = objects.run(arguments, index=index).stdout
    return Capture(patch, tuple(sorted(found.left_out)))


def _take_tracked(objects: GitObjects, base: str, index: Path, directory: Path) -> None:
    done = objects.run(["add", "-u", "--ignore-errors"], index=index, work_tree=directory, check=False)
    if done.returncode == 0:
        return
    # A file that became a pipe or a socket is gone as far as a patch can tell; anything else is a real fault.
    gone: dict[str, TreeEntry | None] = {}
    for path, entry in objects.listing(base).items():
        if entry.mode != GITLINK and _is_special(directory / path):
            gone[path] = None
    objects.set_entries(index, gone)
    objects.run(["add", "-u"], index=index, work_tree=directory)


def _is_special(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def _untracked(objects: GitObjects, index: Path, directory: Path, limit: int) -> _Found:
    found = _Found()
    listing = ["ls-files", "-z", "--others", "--exclude-standard"]
    names = objects.run(listing, index=index, work_tree=directory).stdout.split(b"\0")
    for path in (os.fsdecode(name) for name in names if name):
        if not path.endswith("/"):
            _sort(directory, path, limit, found)
        elif why := _foreign(directory / path):
            found.left_out.append((path, why))
        else:
            for inner in _not_ignored(objects, index, directory, list(_files(directory, path.rstrip("/")))):
                _sort(directory, inner, limit, found)
    return found


def _sort(directory: Path, path: str, limit: int, found: _Found) -> None:
    why = artefact(path) or _unfit(directory / path, path, limit)
    if why:
        found.left_out.append((path, why))
    else:
        found.taken.append(path)


def _unfit(file: Path, path: str, limit: int) -> str:
    status = file.lstat()
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(file)  # noqa: PTH115 (a Path would not keep the bytes)
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 (pure text)
        if os.path.isabs(target) or inside.split("/")[0] == "..":  # noqa: PTH117 (pure text)
            return "a symbolic link out of the tree"
    elif not stat.S_ISREG(status.st_mode):
        return "neither a file nor a link"
    elif status.st_size > limit:
        return f"{status.st_size} bytes, over the limit of {limit}"
    return ""


def _foreign(folder: Path) -> str:
    """Why a nested repository is somebody else's work, or ""."""
    config = folder / ".git" / "config"
    if not config.is_file():
        return "a nested repository whose git directory is elsewhere"
    if re.search(rb"(?m)^\s*\[remote ", config.read_bytes()):
        return "a clone of another repository"
    return ""


def _files(directory: Path, top: str) -> Iterator[str]:
    for folder, inner, names in os.walk(directory / top):
        inner[:] = sorted(name for name in inner if name != ".git")
        home = os.path.relpath(folder, directory)
        links = [name for name in inner if (Path(folder) / name).is_symlink()]
        yield from (f"{home}/{name}" for name in sorted([*names, *links]) if name != ".git")


def _not_ignored(objects: GitObjects, index: Path, directory: Path, paths: list[str]) -> list[str]:
    # "./" keeps a name from being read as a pattern with magic.
    names = b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths)
    asked = ["check-ignore", "-z", "--stdin", "--no-index"]
    done = objects.run(asked, stdin=names, index=index, work_tree=directory, literal=False, check=False)
    if done.returncode not in (0, 1):  # 1: none is ignored
        raise GitFailed(f"git check-ignore failed in {directory}: {done.stderr.decode(errors='replace').strip()}")
    ignored = {os.fsdecode(name).removeprefix("./") for name in done.stdout.split(b"\0") if name}
    return [path for path in paths if path not in ignored]


def _forget_line_ends(objects: GitObjects, base: str, index: Path, found: _Found) -> None:
    """Put back files that a checkout filter turned from LF to CRLF and nobody edited."""
    edited = [item for item in objects.differences(base, objects.write_tree(index)) if item.old and item.new]
    blobs = objects.blobs(
        entry.id for item in edited for entry in (item.old, item.new) if entry and entry.mode != GITLINK
    )
    back: dict[str, TreeEntry | None] = {}
    for item in edited:
        if item.old is None or item.new is None or GITLINK in (item.old.mode, item.new.mode):
            continue
        before, after = blobs[item.old.id], blobs[item.new.id]
        if b"\r" not in before and before != after and before.replace(b"\n", b"\r\n") == after:
            back[item.path] = item.old
            found.left_out.append((item.path, "only its line ends differ: LF at the base, CRLF in the work tree"))
    objects.set_entries(index, back)
