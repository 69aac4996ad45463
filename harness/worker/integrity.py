"""What tests lean on, and what pytest has loaded: where their code comes from. Standard library only, Python 3.9+."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

# What tests lean on to decide. A function here whose code comes from the tree was put there by the code under test.
LEANED_ON = (
    ("builtins", "all any abs len isinstance max min sum bool round sorted zip compile exec"),
    ("ast", "parse"),
    ("math", "isclose isnan isinf isfinite"),
    ("torch", "allclose equal isclose all any manual_seed rand randn testing.assert_close"),
    ("torch.testing", "assert_close assert_allclose"),
    ("torch.testing._comparison", "assert_close assert_equal not_close_error_metas are_tensors_close"),
    ("torch.Tensor", "allclose equal eq __eq__ isclose all any item max abs sub __sub__"),
    ("torch.cuda", "synchronize Event Stream stream current_stream"),
    ("time", "time perf_counter monotonic perf_counter_ns monotonic_ns time_ns sleep"),
    ("random", "seed random randint"),
    ("numpy.random", "seed"),
    ("numpy", "allclose isclose array_equal all any"),
    ("numpy.testing", "assert_allclose assert_array_equal assert_equal assert_almost_equal"),
    ("unittest.TestCase", "assertEqual assertTrue assertFalse assertRaises fail run __call__ _callTestMethod"),
    ("unittest.mock", "patch"),
    ("pytest", "approx raises fail"),
    ("_pytest.python", "Function.runtest pytest_pyfunc_call"),
    ("_pytest.unittest", "TestCaseFunction.runtest TestCaseFunction.addFailure TestCaseFunction.addError"),
    ("_pytest.runner", "call_and_report runtestprotocol pytest_runtest_makereport pytest_runtest_call"),
    ("_pytest.runner", "CallInfo.from_call SetupState.setup SetupState.teardown_exact"),
    ("_pytest.python_api", "approx raises"),
    ("_pytest.assertion.rewrite", "rewrite_asserts AssertionRewriter.run AssertionRewriter.visit_Assert _read_pyc"),
    ("_pytest.assertion.rewrite", "_rewrite_test AssertionRewritingHook.exec_module"),
    ("_pytest.assertion.rewrite", "AssertionRewritingHook.find_spec"),
    ("pluggy", "PluginManager.register HookCaller.__call__"),
)

# Modules that decide as a whole: any function in them or in their classes is looked at.
DECIDING = (
    *("math", "unittest.case", "unittest.mock", "torch.testing", "torch.testing._comparison", "numpy.testing"),
    *("numpy.testing._private.utils", "_pytest._code.code", "_pytest.assertion", "_pytest.assertion.rewrite"),
    *("_pytest.assertion.util", "_pytest.capture", "_pytest.config", "_pytest.fixtures", "_pytest.junitxml"),
    *("_pytest.main", "_pytest.mark", "_pytest.mark.structures", "_pytest.nodes", "_pytest.outcomes"),
    *("_pytest.python", "_pytest.python_api", "_pytest.raises", "_pytest.reports", "_pytest.runner"),
    *("_pytest.skipping", "_pytest.terminal", "_pytest.unittest"),
    *("pluggy._callers", "pluggy._hooks", "pluggy._manager", "pluggy._result"),
)
LIBRARIES = ("torch", "numpy")  # loaded later, by the code under test: remembered at the end of their own import


def attribute(module_name: str, dotted: str) -> Any:
    """The object behind a dotted name of a module that is already loaded, or None."""
    found: Any = sys.modules.get(module_name)
    if found is None:
        head, _, rest = module_name.rpartition(".")  # a class of a module
        found = getattr(sys.modules.get(head), rest, None)
    for part in dotted.split("."):
        if found is None:  # not loaded, and None has methods of its own
            return None
        found = getattr(found, part, None)
    return found


def code_file(thing: Any) -> str:
    """Where the code of a callable was written, or an empty string for what is not Python."""
    for _ in range(5):
        inner = getattr(thing, "func", None) if type(thing) is functools.partial else None
        inner = inner or getattr(thing, "__func__", None)
        if inner is None:
            break
        thing = inner
    code = getattr(thing, "__code__", None)
    if code is None:
        code = getattr(getattr(type(thing), "__call__", None), "__code__", None)
    return str(getattr(code, "co_filename", ""))


class Originals:
    """What LEANED_ON names were when nothing of the tree had run: built-ins, and objects without Python code, can be
    told from what stands in for them by nothing else."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._made: dict[str, Any] = {}  # functions that a library itself makes from text, such as dataclasses' own
        self._seen: set[str] = set()  # modules of DECIDING that were looked at before any code of the tree ran
        self.remember("")
        sys.meta_path.insert(0, _AfterImport(self))

    def remember(self, library: str) -> None:
        """Take what is loaded of a library ("": of everything)."""
        for module_name, names in LEANED_ON:
            if library and module_name.partition(".")[0] != library:
                continue
            for name in names.split():
                found = attribute(module_name, name)
                if found is not None:
                    self._known.setdefault(module_name + "." + name, found)
        for module_name in DECIDING:
            if module_name in sys.modules and (not library or module_name.partition(".")[0] == library):
                self._seen.add(module_name)
                for name, function in _functions(sys.modules.get(module_name)):
                    if function.__code__.co_filename.startswith("<"):
                        self._made.setdefault(module_name + "." + name, function.__code__)

    def is_foreign(self, module_name: str, name: str, function: FunctionType, tree: str) -> bool:
        """True for a function that the code under test has put into a deciding module."""
        file = function.__code__.co_filename
        if file.startswith("<"):
            made = self._made.get(module_name + "." + name)
            return module_name in self._seen and made is not function.__code__
        return file.startswith(tree + os.sep)

    def stands_in(self, name: str, now: Any) -> str:
        """What stands in for an original where its code does not say: the file of a class, else words in brackets.
        Empty for the original, and for a Python function."""
        known = self._known.get(name)
        if known is None or now is known or (type(now) is type(known) and now == known):
            return ""
        if isinstance(now, type):  # an environment's own shim may put a class there; the tree may not
            module = sys.modules.get(str(now.__module__))
            return str(getattr(module, "__file__", "") or "")
        mocked = type(now).__module__.startswith("unittest.mock")
        if code_file(now) and not mocked:
            return ""
        return "(%s %s)" % (type(now).__name__, str(getattr(now, "__name__", ""))[:80])


class _AfterImport:
    """A finder that lets a library be loaded by whoever finds it, and then remembers its originals."""

    def __init__(self, originals: Originals) -> None:
        self._originals = originals

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of one of LIBRARIES, its loader wrapped; None for all other names."""
        if name not in LIBRARIES:
            return None
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            self._originals.remember(name)

        spec.loader.exec_module = exec_module
        return spec


def replaced(tree: str, originals: Originals) -> list[list[str]]:
    """Name and file of everything in LEANED_ON and DECIDING that the code under test has put there: its code comes
    from the tree or from text run by exec, or it has none and is not the original."""
    found = {}
    for module_name, names in LEANED_ON:
        for name in names.split():
            now = attribute(module_name, name)
            file = code_file(now)
            if file.startswith(tree + os.sep) or file in ("<string>", "<stdin>"):
                found[module_name + "." + name] = relative(file, tree)
                continue
            stand_in = originals.stands_in(module_name + "." + name, now)
            if stand_in.startswith((tree + os.sep, "(")):
                found[module_name + "." + name] = relative(stand_in, tree)
    for module_name in DECIDING:
        for name, function in _functions(sys.modules.get(module_name)):
            if originals.is_foreign(module_name, name, function, tree):
                found.setdefault(module_name + "." + name, relative(function.__code__.co_filename, tree))
    return [[name, file] for name, file in found.items()]


def _functions(module: Any) -> Iterator[tuple[str, FunctionType]]:
    """Every Python function of a module and of the classes written in it."""
    if module is None:
        return
    for name, value in list(vars(module).items()):
        if type(value) is FunctionType:
            yield name, value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, member in list(vars(value).items()):
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if type(function) is FunctionType:
                    yield name + "." + inner, function


def relative(path: str, tree: str) -> str:
    """A path below the tree as the repository names it; any other as it is."""
    path = os.path.realpath(path) if os.path.isabs(path) else path
    return path[len(tree) + 1 :] if path.startswith(tree + os.sep) else path


def plugin_list(manager: Any, tree: str) -> list[list[str]]:
    """Every plugin pytest has: name and file (relative when in the tree)."""
    found = []
    for name, plugin in manager.list_name_plugin():
        if plugin is None:
            continue
        file = getattr(plugin, "__file__", None)
        if file is None:
            module = sys.modules.get(type(plugin).__module__)
            file = getattr(module, "__file__", None)
        found.append([str(name)[:300], relative(str(file or ""), tree)])
    return sorted(found)


class ModuleWatch:
    """The functions, classes and modules a test module holds, as they were after collection."""

    def __init__(self, module: Any, tree: str) -> None:
        self._module = module
        self._tree = tree
        self._held = {
            name: (value, getattr(value, "__code__", None))
            for name, value in vars(module).items()
            if callable(value) or isinstance(value, ModuleType)
        }

    def changes(self) -> list[list[str]]:
        """Name and file of everything that is another thing, or has other code, than after collection.

        A test may set its own globals; what counts is that something it leaned on now comes from elsewhere in the
        tree (or from text run by exec).
        """
        own = str(getattr(self._module, "__file__", ""))
        found = []
        for name, (value, code) in self._held.items():
            now = vars(self._module).get(name, value)
            if now is value and getattr(now, "__code__", None) is code:
                continue
            file = code_file(now) or str(getattr(now, "__file__", ""))
            if file != own and (file.startswith(self._tree + os.sep) or file.startswith("<")):
                found.append([relative(own, self._tree) + ":" + name, relative(file, self._tree)])
        return found
