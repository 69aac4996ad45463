"""GPUs of this machine, lent to one user at a time, also between processes: file locks that end with their holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rtb import machine
from rtb.errors import ExpectedError
from rtb.storage import cache_folder

_WAIT_SECONDS = 0.2


def visible() -> tuple[str, ...]:
    """Ids of the GPUs that may be used: those of CUDA_VISIBLE_DEVICES when it is set, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(item.strip() for item in named.split(",") if item.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(machine.gpus()[0])))


@contextmanager
def lease(count: int) -> Iterator[tuple[str, ...]]:
    """Hold `count` GPUs for the length of the block, waiting until they are free. Nothing is held for a count of 0.

    Raises ExpectedError when the machine has fewer. All or none are taken, so two waiters cannot block each other.
    """
    if count == 0:
        yield ()
        return
    known = visible()
    if len(known) < count:
        raise ExpectedError(
            f"the task needs {count} GPU(s), this machine has {len(known)}: run it where there are more"
        )
    while True:
        with ExitStack() as held:
            taken: list[str] = []
            for device in known:
                if len(taken) < count and _take(device, held):
                    taken.append(device)
            if len(taken) == count:
                yield tuple(taken)
                return
        time.sleep(_WAIT_SECONDS)


def _take(device: str, held: ExitStack) -> bool:
    name = device.replace("/", "_")
    file = held.enter_context((cache_folder("devices") / f"{name}.lock").open("wb"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
