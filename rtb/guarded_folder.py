"""Folders that a command of the model may have changed: nothing is read, written or deleted through a link."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb.errors import MachineError, OutOfSpace
from rtb.sandbox import SYMBOLIC_LINK, Entry


@contextmanager
def parent_folder(top: int, path: str, *, create: bool) -> Iterator[int | None]:
    """The folder that holds `path` under the open folder `top`, link-free. None when it is not there."""
    current = os.dup(top)
    try:
        for part in path.split("/")[:-1]:
            following = _step(current, part, create=create)
            if following is None:
                yield None
                return
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _step(folder: int, name: str, *, create: bool) -> int | None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
    if not create:
        return None
    remove_entry(folder, name)
    os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def remove_entry(folder: int, name: str) -> None:
    """Whatever is there, but never what a link points to."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(facts.st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def lay_entry(folder: int, name: str, entry: Entry) -> None:
    remove_entry(folder, name)
    try:
        if entry.mode == SYMBOLIC_LINK:
            os.symlink(os.fsdecode(entry.data), name, dir_fd=folder)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, entry.mode, dir_fd=folder), "wb") as file:
            os.fchmod(file.fileno(), entry.mode)
            file.write(entry.data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfSpace(f"the disk is full: {name} cannot be written into the local sandbox") from error
        raise


def copy_tree(source: Path, destination: Path) -> None:
    """A real copy with modes, times and links, on a file system that can, by sharing unwritten blocks.

    Never by hard links: a write into the copy must not reach the source. Raises OutOfSpace.
    """
    copied = subprocess.run(
        ["cp", "-a", "--reflink=auto", "--", str(source), str(destination)], capture_output=True, check=False
    )
    if copied.returncode == 0:
        return
    if b"No space left" in copied.stderr:
        raise OutOfSpace(f"the disk is full: {source} cannot be copied to {destination}")
    remove_folder(destination)  # a cp without --reflink (not GNU's)
    shutil.copytree(source, destination, symlinks=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder whatever modes its parts have. Raises MachineError when something stays."""

    def mend(_function: object, path: str, _error: object) -> None:
        for place in (Path(path).parent, Path(path)):
            if place.is_relative_to(folder) and not place.is_symlink():
                with contextlib.suppress(OSError):
                    place.chmod(0o700)
        with contextlib.suppress(FileNotFoundError):
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path)
            else:
                Path(path).unlink()

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder, onerror=mend)
    if folder.exists():
        raise MachineError(f"the sandbox's folder {folder} cannot be deleted; remove it by hand")


def read_regular(folder: int, name: str, path: str, limit_bytes: int) -> bytes | None:
    """The bytes of a regular file in an open folder, else None. `path` is for the message.

    Raises OutOfSpace beyond the limit.
    """
    try:
        # Non-blocking, so that a named pipe of the command's cannot hold us up.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OutOfSpace(f"{path} holds {facts.st_size} bytes, over the limit of {limit_bytes}")
    return data
