"""Work in parallel: a bounded pool of threads that can be interrupted, and devices leased one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class DeviceLeases:
    """GPUs that are used by one task at a time. Over no device, a lease is empty and nobody waits."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._any = bool(devices)
        for device in devices:
            self._free.put(device)

    @contextmanager
    def lease(self) -> Iterator[tuple[str, ...]]:
        """Hold one device until the block ends; waits for one."""
        if not self._any:
            yield ()
            return
        device = self._free.get()
        try:
            yield (device,)
        finally:
            self._free.put(device)


def run_all(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    *,
    workers: int,
    on_result: Callable[[Item, Result], None],
    stop: threading.Event,
    interrupt: Callable[[], None],
) -> None:
    """Do `work` on each item, at most `workers` at a time; `on_result` is called in this thread, as each is done.

    No new item is begun once `stop` is set. On Ctrl-C: `stop` is set, `interrupt` ends what is running, the workers
    are waited for, and KeyboardInterrupt goes on up. An exception of `work` does the same.
    """
    waiting = iter(items)
    running: dict[Future[Result], Item] = {}
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rtb") as pool:
        try:
            while True:
                while len(running) < workers and not stop.is_set():
                    try:
                        item = next(waiting)
                    except StopIteration:
                        break
                    running[pool.submit(work, item)] = item
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    on_result(running.pop(future), future.result())
        except BaseException:
            # Also KeyboardInterrupt: the workers must end before the caller may clean up what they use.
            stop.set()
            interrupt()
            raise
