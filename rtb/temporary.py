"""Temporary folders that do not outlive a hard kill: the next process in need of one removes what the dead left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb.owner import is_alive, owner_id, process_id


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A fresh folder in the machine's place for temporary files, gone at the end. `kind` is a word for its name.

    Its name says whose it is, so that leftovers of our own dead processes, and nothing else, are removed first.
    """
    parent = Path(tempfile.gettempdir())
    _remove_leftovers(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{process_id()}-{kind}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"rtb-tmp-{owner_id()}-"


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_prefix()}*"):
        process = "-".join(folder.name.removeprefix(_prefix()).split("-")[:3])
        if not is_alive(process):
            shutil.rmtree(folder, ignore_errors=True)
