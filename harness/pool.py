"""Work in parallel: a bounded pool of threads that can be interrupted. Memory does not grow with the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

# The kernel may give a signal to any thread; only a main thread that wakes now and then sees it at once.
WAKE_SECONDS = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


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
                done, _ = wait(running, timeout=WAKE_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    on_result(running.pop(future), future.result())
        except BaseException:
            # Also KeyboardInterrupt: the workers must end before the caller may clean up what they use.
            stop.set()
            interrupt()
            raise
