"""Syntax trees and literals, from many threads at once."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

from rtb import syntax
from rtb.python_source import Unreadable, parse


def test_threads_that_parse_at_the_same_moment_all_get_their_tree() -> None:
    deep = "x = " + "(" * 60 + "1" + ",)" * 60 + "\n"
    source = "\n".join(f"def f{n}(a):\n    return [a for b in range({n}) if b]\n" for n in range(150)) + deep
    before, interval = gc.get_threshold(), sys.getswitchinterval()

    def callback(phase: str, info: dict[str, int]) -> None:
        sum(range(200))

    gc.set_threshold(
        50
    )  # a collection inside a parse runs Python, which lets another thread in: the moment of the fault
    gc.callbacks.append(callback)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            trees = list(pool.map(lambda n: parse(source) if n % 2 else syntax.literal(deep[4:-1]), range(60)))
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)
    assert all(not isinstance(tree, Unreadable) for tree in trees)
    assert sum(len(tree.body) == 151 for tree in trees if hasattr(tree, "body")) == 30
