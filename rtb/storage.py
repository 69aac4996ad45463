"""Files on disk: atomic writes, the user's cache folder, one writer at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from rtb.errors import NO_SPACE, ExpectedError, OutOfSpace
from rtb.task import canonical_json

_LAST_OF_A_KILLED_SECONDS = 3.0
DRAFT = ".draft"  # ends the hidden name under which a file is written before it takes its own


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, also after a kill.

    Raises OutOfSpace when the disk is full and ExpectedError when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=DRAFT, dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, path) from error


def storage_error(error: OSError, path: Path) -> OutOfSpace | ExpectedError:
    """An OSError met while writing, as the error a user can act on."""
    if error.errno in NO_SPACE:
        return OutOfSpace(f"the disk is full while writing {path}: free some space and run the same command again")
    return ExpectedError(f"cannot write {path}: {error.strerror}; choose another folder or mend its permissions")


def write_model(path: Path, model: BaseModel) -> None:
    """Write a model as canonical JSON, atomically."""
    write_atomic(path, canonical_json(model))


def cache_folder(*parts: str) -> Path:
    """A folder, made if absent, under `RTB_CACHE`, else `$XDG_CACHE_HOME/rtb`, else `~/.cache/rtb`."""
    root = os.environ.get("RTB_CACHE") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtb"
    )
    folder = Path(root, *parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `<path>.lock` between processes; the kernel drops it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def sole_folder(folder: Path, refusal: str) -> Iterator[None]:
    """Hold a folder as its one writer, or raise ExpectedError(refusal) when another process holds it.

    It is asked for some seconds: what a killed writer was about to start holds it until that has begun. Drafts that
    killed writers have left anywhere below it are removed: nobody else can be writing them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as file:
        end = time.monotonic() + _LAST_OF_A_KILLED_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ExpectedError(refusal) from None
                time.sleep(0.05)
        _remove_drafts(folder)
        yield


def _remove_drafts(folder: Path) -> None:
    for draft in folder.rglob(f".*{DRAFT}"):
        try:
            draft.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, draft) from error
