"""Run a task's pytest inside the sandbox with our plugin. Called as `python -S -s runner.py`, plan on stdin.

Standard library only, Python 3.9+. Order matters: nothing of the tree can be imported until pytest, our plugin and
the environment's own plugins are loaded and the record file is open.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

EXIT_NO_PYTEST = 90
EXIT_BAD_PLAN = 91
EXIT_NO_PLUGIN = 92
EXIT_NO_RECORDS = 93
TRACE_SECONDS = 0.6  # the launch tracer writes several times in this; leaving by os._exit gives it no other chance

# Never taken from the tree unless the task is about that package itself: shadowing one of these decides a grade.
PROTECTED = frozenset(
    {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "attr"}
    | {"hypothesis", "torch", "triton", "numpy", "scipy", "einops"}
)


def read_plan() -> tuple[dict[str, Any], bytes]:
    """The plan, then an empty stdin for the tests."""
    try:
        plan = json.loads(sys.stdin.buffer.read())
        key = bytes.fromhex(plan.pop("nonce"))
    except (ValueError, KeyError, TypeError) as error:
        print("rtb: the plan on standard input cannot be read: %s" % error, flush=True)
        os._exit(EXIT_BAD_PLAN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return plan, key


def start_site(tree: str) -> None:
    """What `site` does at start-up, but sitecustomize and usercustomize never come from the tree (an editable
    install can put the tree on the path before any of our code runs; hence -S)."""
    import site

    customise = site.execsitecustomize
    site.execsitecustomize = lambda: None
    site.execusercustomize = lambda: None
    site.main()
    whole = list(sys.path)
    sys.path[:] = [entry for entry in whole if not inside(entry, tree)]
    customise()
    sys.path[:] = sys.path[:] + [entry for entry in whole if inside(entry, tree)]


def inside(entry: str, tree: str) -> bool:
    """True when a path entry is the tree or below it; an empty entry is the current folder."""
    real = os.path.realpath(entry or os.getcwd())
    return real == tree or real.startswith(tree + os.sep)


class TrustedFirst:
    """Finds protected packages outside the tree, whatever lies in it under their names."""

    def __init__(self, names: Iterable[str], tree: str) -> None:
        """Protected top-level names; the tree they are not taken from."""
        self._names = frozenset(names)
        self._tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every name that is not protected or not installed outside the tree."""
        if path is not None or name not in self._names:
            return None
        outside = [entry for entry in sys.path if not inside(entry, self._tree)]
        return importlib.machinery.PathFinder.find_spec(name, outside, target)


def load_own(folder: str, *names: str) -> list[ModuleType]:
    """Our own modules, from our folder as a package, without leaving them where `import` finds them."""
    package = "rtb_worker"
    spec = importlib.util.spec_from_file_location(
        package, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])
    modules = [importlib.import_module("%s.%s" % (package, name)) for name in names]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    return modules


def load_plugin(name: str) -> Any:
    """An environment's plugin: the name of a pytest11 entry point or, as with `-p`, else of a module."""
    import importlib.metadata as metadata

    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "pytest11" and entry.name == name:
                return entry.load()
    return importlib.import_module(name)


def load_plugins(names: Iterable[str]) -> list[Any]:
    """All of the environment's plugins; the environment is at fault when one is missing."""
    loaded = []
    for name in names:
        try:
            loaded.append(load_plugin(name))
        except ImportError as error:
            print("rtb: the environment's pytest plugin %r cannot be loaded: %s" % (name, error), flush=True)
            os._exit(EXIT_NO_PLUGIN)
    return loaded


def clear_environment(roots: list[str]) -> None:
    """No option may come from variables; child processes find the tree as the task's own command would."""
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(roots + ([known] if known else []))


def compile_tests_from_source() -> None:
    """pytest keeps compiled test files beside them and believes a file with the right date and size. Ours does not:
    code that runs before a test file is imported could plant one."""
    from _pytest.assertion import rewrite

    def nothing_kept(*_args: Any, **_kwargs: Any) -> None:
        return None

    if hasattr(rewrite, "_read_pyc"):
        rewrite._read_pyc = nothing_kept


def flush_quietly(*streams: Any) -> None:
    """Flush what can be flushed; the tests may have closed or replaced anything."""
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


def main() -> None:
    """Never returns: leaves by os._exit, so that nothing the tests left behind can change the exit code."""
    plan, key = read_plan()
    tree = os.path.realpath(plan["tree"])
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here and not inside(entry, tree)]
    start_site(tree)
    roots = [os.path.normpath(os.path.join(tree, root)) for root in plan["roots"]]
    clear_environment(roots)
    own: set[str] = set(plan["own"])
    sys.meta_path.insert(0, TrustedFirst(PROTECTED - own, tree))
    try:
        import pytest
        from _pytest.runner import runtestprotocol
    except ImportError as error:
        print("rtb: pytest cannot be imported in this environment: %s" % error, flush=True)
        os._exit(EXIT_NO_PYTEST)
    compile_tests_from_source()
    channel, recorder = load_own(here, "channel", "recorder")
    plugins = load_plugins(plan["plugins"])
    try:
        emit = channel.open_channel(plan["records"], key)
    except OSError as error:
        print("rtb: the record file cannot be opened: %s" % error, flush=True)
        os._exit(EXIT_NO_RECORDS)
    del key
    print("rtb: records open", flush=True)
    emit("open", {"pid": os.getpid()})

    def put_tree_on_path() -> None:
        sys.path[:] = [tree] + roots + [entry for entry in sys.path if entry not in roots and entry != tree]

    only = None if plan["only"] is None else frozenset(plan["only"])
    plugin = recorder.Recorder(emit, tree, runtestprotocol, put_tree_on_path, bool(plan["stop"]), only)
    sys.argv = [os.path.join(os.path.dirname(pytest.__file__), "__main__.py")] + plan["args"]
    leave, streams, wait = os._exit, (sys.__stdout__, sys.__stderr__), time.sleep
    traced = "RTB_TRACE" in os.environ
    status = int(pytest.main(list(plan["args"]), plugins=[plugin] + plugins))
    plugin.finish(status)
    flush_quietly(*streams)
    if traced:
        wait(TRACE_SECONDS)
    leave(status)


if __name__ == "__main__":
    main()
