"""A patch laid onto a plain folder, repository or not, committed or not: the folder's own bytes are what counts."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

from harness.patch_names import as_bytes, as_text, unsafe_path
from harness.patch_repair import relabelled, variants
from harness.patch_result import PatchResult
from harness.patch_text import parse
from harness.patching import MAX_PATCH_BYTES, apply_patch
from rtb.errors import MachineError, OutOfSpace
from rtb.git_objects import SYMLINK, GitObjects, TreeEntry, borrow_objects
from rtb.sandbox import Change, Entry


def apply_to_directory(
    directory: Path, patch: bytes, *, official: bool = False, limit_bytes: int = MAX_PATCH_BYTES
) -> PatchResult:
    """Apply a patch at the top of a folder; whole, or the folder stays byte for byte as it is.

    No repository around or in it has a say, and .git in it is not touched. `official` is for a task's own test patch:
    a file it adds is put in place of one that is there already. `tree` of the result is None: the objects are gone.
    Raises OutOfSpace or MachineError when the folder cannot be read or written; it is then as it was.
    """
    with borrow_objects(None) as objects:
        base = _named_files(objects, directory, patch, official)
        result = apply_patch(objects, base, patch, limit_bytes=limit_bytes)
    if result.status != "applied" or result.change is None:
        return result
    for path in result.change.write:
        if (directory / path).is_dir() and not (directory / path).is_symlink():
            inside = f"{path} is to be written by the patch but is a folder"
            return PatchResult("apply_failed", reason=inside)
    lay(directory, result.change)
    return PatchResult(
        result.status, result.method, "", None, result.touched, result.dropped, result.notes, result.change
    )


def _named_files(objects: GitObjects, directory: Path, patch: bytes, official: bool) -> str:
    """A tree of just the files that the patch may mean, and of links and files where it expects folders."""
    names: set[bytes] = set()
    created: set[bytes] = set()
    for text in (patch, *(variant.text for variant in variants(patch))):
        for section in parse(text).sections:
            names.update({section.target, *section.touched, *section.labels, section.old or b""})
            if section.old is None:
                created.update({section.target, relabelled(section, {})[0].target})
    found: dict[str, Entry] = {}
    for name in names:
        if name and not unsafe_path(name) and not (official and name in created):
            found.update(_on_the_way(directory, as_text(name)))
    ids = objects.store([entry.data for entry in found.values()])
    entries = zip(found.items(), ids, strict=True)
    return objects.with_entries(
        None,
        {
            path: TreeEntry(entry.mode | (0 if entry.mode == SYMLINK else 0o100000), name)
            for (path, entry), name in entries
        },
    )


def _on_the_way(directory: Path, path: str) -> dict[str, Entry]:
    """The first file or link met on the way to a path, the path itself being the last."""
    parts = [part for part in path.split("/") if part]
    for depth in range(1, len(parts) + 1):
        here = "/".join(parts[:depth])
        try:
            mode = os.lstat(directory / here).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return {}
        if stat.S_ISLNK(mode):
            # A Path would not keep the bytes of a target such as "a//b".
            return {here: Entry(os.fsencode(os.readlink(directory / here)), SYMLINK)}  # noqa: PTH115
        if stat.S_ISREG(mode):
            return {here: Entry((directory / here).read_bytes(), 0o755 if mode & 0o100 else 0o644)}
    return {}


def lay(directory: Path, change: Change) -> None:
    """Make a change to a folder, all or nothing. Raises OutOfSpace or MachineError, the folder being as before."""
    holding = Path(tempfile.mkdtemp(prefix=".rtb-laying-", dir=directory))
    moves: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        staged = [
            (_staged(holding / f"new-{at}", entry), path) for at, (path, entry) in enumerate(change.write.items())
        ]
        for at, path in enumerate([*change.delete, *change.write]):
            if os.path.lexists(directory / path):
                _move(directory / path, holding / f"old-{at}", moves)
        for source, path in staged:
            missing = [parent for parent in (directory / path).parents if not os.path.lexists(parent)]
            for parent in reversed(missing):
                parent.mkdir()
                made.append(parent)
            _move(source, directory / path, moves)
    except OSError as error:
        for source, destination in reversed(moves):
            destination.rename(source)
        for folder in reversed(made):
            folder.rmdir()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfSpace(
                f"the disk is full while {directory} is patched: free some space and run it again"
            ) from error
        raise MachineError(f"{directory} cannot be patched: {error}") from error
    finally:
        shutil.rmtree(holding, ignore_errors=True)
    for path in change.delete:
        _remove_empty(directory, (directory / path).parent)


def _staged(place: Path, entry: Entry) -> Path:
    if entry.mode == SYMLINK:
        os.symlink(entry.data, as_bytes(str(place)))  # noqa: PTH211
    else:
        place.write_bytes(entry.data)
        place.chmod(entry.mode)
    return place


def _move(source: Path, destination: Path, moves: list[tuple[Path, Path]]) -> None:
    source.rename(destination)
    moves.append((source, destination))


def _remove_empty(top: Path, folder: Path) -> None:
    """Folders that held only deleted files go too, as with git."""
    while folder != top and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
