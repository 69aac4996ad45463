"""The one place that asks the interpreter for a syntax tree.

CPython 3.11 and 3.12 count the depth of the tree they hand out in one place for all threads: two threads that parse
at the same moment end in `SystemError: AST constructor recursion depth mismatch`, for sources without any fault
(github.com/python/cpython/issues/106905). `rtb evaluate` works in threads, so trees are made one at a time.
"""

from __future__ import annotations

import ast
import gc
import threading
import warnings
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """`ast.parse` for threads. Other people's invalid escapes give no warnings.

    Raises SyntaxError, ValueError, RecursionError and MemoryError as `ast.parse` does.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree but contexts (Load, Store), in no promised order; twice as fast as `ast.walk`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.__dict__.values():
            if value.__class__ is list:
                waiting.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                waiting.append(value)


def literal(text: str) -> object:
    """`ast.literal_eval` for threads. Raises ValueError or SyntaxError for what is no literal."""
    with _ONE_AT_A_TIME:
        return ast.literal_eval(text)


def seldom_collect() -> None:
    """For a process that only reads sources: trees hold no cycles, and looking for some takes a fifth of the time."""
    gc.set_threshold(100_000, 50, 100)
