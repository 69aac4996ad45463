"""The pool: every item once, a bounded number at a time, and an interrupt that waits for the workers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from harness.pool import run_all


def test_every_item_is_done_once_and_never_more_at_a_time_than_asked() -> None:
    running, most, lock = 0, 0, threading.Lock()
    gate = threading.Barrier(3)

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(timeout=20)  # passes only when three are at work together
        with lock:
            running -= 1
        return item * item

    seen: dict[int, int] = {}
    run_all(range(9), work, workers=3, on_result=seen.__setitem__, stop=threading.Event(), interrupt=lambda: None)
    assert seen == {item: item * item for item in range(9)}
    assert most == 3


def test_the_queue_is_read_only_as_far_as_workers_are_free() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(100):
            taken += 1
            yield item

    ahead: list[int] = []
    done: list[int] = []

    def on_result(item: int, _: int) -> None:
        done.append(item)
        ahead.append(taken - len(done))

    run_all(
        items(), lambda item: item, workers=2, on_result=on_result, stop=threading.Event(), interrupt=lambda: None
    )
    assert len(done) == 100
    assert max(ahead) <= 2


def test_nothing_new_is_begun_after_stop() -> None:
    stop = threading.Event()
    done: list[int] = []

    def on_result(item: int, _: int) -> None:
        done.append(item)
        stop.set()

    run_all(range(50), lambda item: item, workers=1, on_result=on_result, stop=stop, interrupt=lambda: None)
    assert done == [0]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError])
def test_an_interrupt_ends_what_runs_waits_for_it_and_goes_on_up(fault: type[BaseException]) -> None:
    stop, ended = threading.Event(), threading.Event()
    finished: list[int] = []

    def work(item: int) -> int:
        if item == 1:
            assert ended.wait(timeout=20)  # runs until it is interrupted
            finished.append(item)
        return item

    def on_result(*_: int) -> None:
        raise fault

    with pytest.raises(fault):
        run_all([0, 1], work, workers=2, on_result=on_result, stop=stop, interrupt=ended.set)
    assert stop.is_set()
    assert finished == [1]


def test_a_signal_that_a_worker_gets_ends_the_run_too() -> None:
    """The kernel may hand Ctrl-C to any thread; a main thread asleep in a lock would never see it."""
    stop = threading.Event()

    def work(item: int) -> None:
        time.sleep(0.3)  # by now the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert stop.wait(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([1], work, workers=1, on_result=print, stop=stop, interrupt=stop.set)
    finally:
        signal.signal(signal.SIGINT, before)
