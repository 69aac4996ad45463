"""What tests lean on, and what pytest has loaded: where their code comes from. Standard library only, Python 3.9+."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
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
    ("torch.cuda", "synchronize"),
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


def attribute(module_name: str, dotted: str) -> Any:
    """The object behind a dotted name of a module that is already loaded, or None."""
    found: Any = sys.modules.get(module_name)
    if found is None:
        head, _, rest = module_name.rpartition(".")  # a class of a module
        found = getattr(sys.modules.get(head), rest, None)
    for part in dotted.split("."):
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


def replaced(tree: str) -> list[list[str]]:
    """Name and file of everything in LEANED_ON whose code comes from the tree (or from text run by exec)."""
    found = []
    for module_name, names in LEANED_ON:
        for name in names.split():
            file = code_file(attribute(module_name, name))
            if file.startswith(tree + os.sep) or file in ("<string>", "<stdin>"):
                found.append([module_name + "." + name, relative(file, tree)])
    return found


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
