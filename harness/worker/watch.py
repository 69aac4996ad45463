"""What a test does when it is really run: wrappers round `item.setup`, `item.runtest` and the test's own function.

Standard library only, Python 3.9+.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any


def test_codes(item: Any) -> list[CodeType]:
    """The code objects behind a test, through its decorators. Found by name on the parent: asking the item itself
    would make the class instance too early."""
    parent = getattr(getattr(item, "parent", None), "obj", None)
    name = getattr(item, "originalname", None) or getattr(item, "name", "")
    function = getattr(parent, str(name), None)
    codes: list[CodeType] = []
    while function is not None and len(codes) < 20:
        code = getattr(function, "__code__", None)
        if code is not None:
            codes.append(code)
        function = getattr(function, "__wrapped__", None)
    return codes


test_codes.__test__ = False  # type: ignore[attr-defined]


def watch_body(item: Any, seen: dict[str, Any]) -> Callable[[], None]:
    """Put a counting wrapper round the test's own function; returns what undoes it."""
    body = getattr(item, "obj", None)
    coroutine = inspect.iscoroutinefunction(body)
    unittest_item = type(item).__name__ == "TestCaseFunction"
    generator = inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)
    if not callable(body) or generator or (coroutine and unittest_item):
        return lambda: None
    seen["body"] = "not entered"

    def entered() -> None:
        seen["body"] = "entered"

    def left(error: BaseException | None) -> None:
        seen["body"] = "returned" if error is None else "raised"
        seen["raised"] = "" if error is None else type(error).__name__

    watched = _watched_coroutine(body, entered, left) if coroutine else _watched_function(body, entered, left)
    if hasattr(body, "__self__"):
        watched.__self__ = body.__self__  # type: ignore[attr-defined]
    item.obj = watched

    def undo() -> None:
        item.obj = body

    return undo


def _watched_function(
    body: Callable[..., Any], entered: Callable[[], None], left: Callable[[BaseException | None], None]
) -> Callable[..., Any]:
    @functools.wraps(body)
    def watched(*args: Any, **kwargs: Any) -> Any:
        entered()
        try:
            result = body(*args, **kwargs)
        except BaseException as error:
            left(error)
            raise
        left(None)
        return result

    return watched


def _watched_coroutine(
    body: Callable[..., Any], entered: Callable[[], None], left: Callable[[BaseException | None], None]
) -> Callable[..., Any]:
    @functools.wraps(body)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        entered()
        try:
            result = await body(*args, **kwargs)
        except BaseException as error:
            left(error)
            raise
        left(None)
        return result

    return watched


def watch_item(item: Any, seen: dict[str, Any]) -> Callable[[], None]:
    """Record what `setup` and `runtest` of this very item do, whatever hooks make of it later."""
    runtest, setup = item.runtest, item.setup

    def watched_setup(*args: Any, **kwargs: Any) -> Any:
        seen["setup"] = "raised"
        result = setup(*args, **kwargs)
        seen["setup"] = "returned"
        return result

    def watched_runtest(*args: Any, **kwargs: Any) -> Any:
        seen["run"] = "raised"
        undo = watch_body(item, seen)
        try:
            result = runtest(*args, **kwargs)
        finally:
            undo()
        seen["run"] = "returned"
        return result

    item.setup, item.runtest = watched_setup, watched_runtest

    def undo() -> None:
        for name in ("setup", "runtest"):
            vars(item).pop(name, None)

    return undo
