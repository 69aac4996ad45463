"""Where processes that share a long reading of sources come from."""

from __future__ import annotations

from multiprocessing.context import ForkServerContext


def worker_processes() -> ForkServerContext:
    """A server that has imported what reading needs and forks each process: they start in no time, and no thread of
    ours is copied."""
    context = ForkServerContext()
    context.set_forkserver_preload(["rtb.drafting"])
    return context
