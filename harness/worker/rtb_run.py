"""Run a task's pytest inside the sandbox with our plugin. Called as `python -S -s rtb_run.py`, plan on stdin.

Standard library only, Python 3.8+. Order matters: nothing of the tree can be imported until pytest, our plugin and
the environment's own plugins are loaded and the record file is open.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys

EXIT_NO_PYTEST = 90
EXIT_BAD_PLAN = 91
EXIT_NO_PLUGIN = 92
EXIT_NO_RECORDS = 93

# Never taken from the tree unless the task is about that package itself: shadowing one of these decides a grade.
PROTECTED = frozenset(
    {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "attr"}
    | {"hypothesis", "torch", "triton", "numpy", "scipy", "einops"}
)


def read_plan():
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


def start_site(tree):
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


def inside(entry, tree):
    """True when a path entry is the tree or below it; an empty entry is the current folder."""
    real = os.path.realpath(entry or os.getcwd())
    return real == tree or real.startswith(tree + os.sep)


class TrustedFirst:
    """Finds protected packages outside the tree, whatever lies in it under their names."""

    def __init__(self, names, tree):
        self._names = names
        self._tree = tree

    def find_spec(self, name, path=None, target=None):
        """None for every name that is not protected or not installed outside the tree."""
        if path is not None or name not in self._names:
            return None
        outside = [entry for entry in sys.path if not inside(entry, self._tree)]
        return importlib.machinery.PathFinder.find_spec(name, outside, target)


def load_file(name, path):
    """A module from its file, without leaving it in sys.modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_plugin(name):
    """An environment's plugin: a module, or the name of a pytest11 entry point."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    import importlib.metadata as metadata

    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "pytest11" and entry.name == name:
                return entry.load()
    raise ModuleNotFoundError("No module or pytest entry point named %r" % name, name=name)


def load_plugins(names):
    """All of the environment's plugins; the environment is at fault when one is missing."""
    loaded = []
    for name in names:
        try:
            loaded.append(load_plugin(name))
        except ImportError as error:
            print("rtb: the environment's pytest plugin %r cannot be loaded: %s" % (name, error), flush=True)
            os._exit(EXIT_NO_PLUGIN)
    return loaded


def clear_environment(roots):
    """No option may come from variables; child processes find the tree as the task's own command would."""
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(roots + ([known] if known else []))


def main():
    """Never returns: leaves by os._exit, so that nothing the tests left behind can change the exit code."""
    plan, key = read_plan()
    tree = os.path.realpath(plan["tree"])
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path[:] = [entry for entry in sys.path if not inside(entry, tree)]
    start_site(tree)
    roots = [os.path.normpath(os.path.join(tree, root)) for root in plan["roots"]]
    clear_environment(roots)
    sys.meta_path.insert(0, TrustedFirst(PROTECTED - set(plan["own"]), tree))
    records = load_file("rtb_records", os.path.join(here, "rtb_records.py"))
    try:
        import pytest
        from _pytest.runner import runtestprotocol
    except ImportError as error:
        print("rtb: pytest cannot be imported in this environment: %s" % error, flush=True)
        os._exit(EXIT_NO_PYTEST)
    plugins = load_plugins(plan["plugins"])
    try:
        emit = records.open_channel(plan["records"], key)
    except OSError as error:
        print("rtb: the record file cannot be opened: %s" % error, flush=True)
        os._exit(EXIT_NO_RECORDS)
    del key
    print("rtb: records open", flush=True)
    emit("open", {"pid": os.getpid()})

    def put_tree_on_path():
        sys.path[:] = [tree] + roots + [entry for entry in sys.path if entry not in roots and entry != tree]

    recorder, finish = records.build(pytest, runtestprotocol, emit, tree, put_tree_on_path)
    sys.argv = [os.path.join(os.path.dirname(pytest.__file__), "__main__.py")] + plan["args"]
    leave, flush_out, flush_err = os._exit, sys.__stdout__.flush, sys.__stderr__.flush
    status = int(pytest.main(list(plan["args"]), plugins=[recorder] + plugins))
    finish(status)
    for flush in (flush_out, flush_err):
        try:
            flush()
        except (OSError, ValueError):
            pass
    leave(status)


if __name__ == "__main__":
    main()
