"""Where processes that share a long reading of sources come from."""

from __future__ import annotations

from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def worker_processes() -> ForkServerContext:
    """A server that has imported what reading needs and forks each process: they start in no time, and no thread of
    ours is copied."""
    context = ForkServerContext()
    context.set_forkserver_preload(["rtb.drafting"])
    return context


def begin_worker_processes() -> None:
    """Start that server now: it imports while something else is waited for."""
    worker_processes()
    forkserver.ensure_running()
