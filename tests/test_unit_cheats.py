"""What patched code does to the run of its own tests: named, or no use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit_runs import GOOD, TEST, WRONG, Run, hostile, runner


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runner(tmp_path)


CHEATS = {
    "os._exit in the middle": ("import os; os._exit(0)", "before pytest had finished"),
    "reports rewritten": (
        """
import _pytest.reports as r
old = r.TestReport.from_item_and_call.__func__
def lie(cls, item, call):
    report = old(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
r.TestReport.from_item_and_call = classmethod(lie)
""",
        "TestReport.from_item_and_call was replaced by code of lib.py",
    ),
    "bodies not called": (
        "import _pytest.python as p; p.Function.runtest = lambda self: None",
        "was replaced by code of lib.py",
    ),
    "exceptions swallowed": (
        """
import _pytest.runner as r
def calm(item):
    try: item.runtest()
    except BaseException: pass
r.pytest_runtest_call.__code__ = calm.__code__
""",
        "was replaced by code of lib.py",
    ),
    "a plugin registered later": (
        """
import gc, pytest
class P:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem): return True
for thing in gc.get_objects():
    if type(thing).__name__ == "PytestPluginManager": thing.register(P()); break
""",
        "pytest loaded lib.py as a plugin",
    ),
    "test functions emptied": (
        """
def empty(self): pass
import sys
def double(n):
    sys.modules["test_it"].TestZ.test_zz.__code__ = empty.__code__
    return 6
""",
        "was replaced after collection",
    ),
    "records removed": (
        "import os, glob, sys\nrunner = os.path.abspath(sys.modules['__main__'].__file__)\n"
        "[os.unlink(f) for f in glob.glob(os.path.dirname(runner) + '.records')]",
        "removed",
    ),
    "records rewritten": (
        "import os, glob, sys\nrunner = os.path.abspath(sys.modules['__main__'].__file__)\n"
        "[open(f, 'w').write('{}\\n') for f in glob.glob(os.path.dirname(runner) + '.records')]",
        "signature",
    ),
    "descriptors closed": ("import os; os.closerange(3, 1024)", "closed or replaced"),
    "session says that nothing failed": (
        """
import gc, atexit
import _pytest.main as m
m.Session.testsfailed = property(lambda self: 0, lambda self, value: None)
""",
        "exit code says that all is well",
    ),
    "comparison replaced": (
        "import math\nmath.isclose = lambda *a, **k: True",
        "math.isclose was replaced by code of lib.py",
    ),
    "comparison replaced by a built-in function": (
        "import math, operator\nmath.isclose = operator.truth",
        "math.isclose was replaced by code of (builtin_function_or_method truth)",
    ),
    "comparison replaced by a mock": (
        "import math\nfrom unittest.mock import MagicMock\nmath.isclose = MagicMock(return_value=True)",
        "math.isclose was replaced by code of (MagicMock",
    ),
    "records blown up": (
        "import os, glob, sys\nrunner = os.path.abspath(sys.modules['__main__'].__file__)\n"
        "[os.truncate(f, 1 << 30) for f in glob.glob(os.path.dirname(runner) + '.records')]",
        "blown up",
    ),
    "asserts left out when tests are compiled": (
        "import _pytest.assertion.rewrite as r\nr.AssertionRewriter.visit_Assert = lambda self, node: []",
        "AssertionRewriter.visit_Assert was replaced by code of lib.py",
    ),
    "a helper of the test file replaced": (
        "def double(n):\n    import sys\n    sys._getframe(1).f_globals['check'] = lambda *a: None\n    return 4",
        "tests/test_it.py:check was replaced by code of lib.py",
    ),
    "a helper of the test file given other code": (
        "def double(n):\n    import sys\n    sys._getframe(1).f_globals['check'].__code__ = (lambda *a: 1).__code__\n"
        "    return 4",
        "tests/test_it.py:check was replaced by code of lib.py",
    ),
    "another function under the test's name": (
        """
import sys
from _pytest.python import Module
def test_it(): pass
collect = Module.collect
def lie(self):
    self.obj.test_it = test_it
    return collect(self)
Module.collect = lie
""",
        "Module.collect was replaced by code of lib.py",
    ),
    "test file rewritten": (
        "import pathlib\npathlib.Path('tests/test_it.py').write_text('def test_it(): pass\\n')",
        "a test file was changed",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_in_the_same_process_is_named(run: Run, name: str) -> None:
    code, reason = CHEATS[name]
    files = hostile(code)
    ids = ["tests/test_it.py::test_it"]
    if "test_zz" in code:
        files["tests/test_it.py"] += "\n\nclass TestZ:\n    def test_zz(self): assert double(3) == 7\n"
        ids.append("tests/test_it.py::TestZ::test_zz")
    if "visit_Assert" in code or "Module.collect" in code:
        files["tests/conftest.py"] = "import lib\n"
    if "'check'" in code:
        files["tests/test_it.py"] = """
import lib
def check(one, two): assert one == two
def test_it():
    result = lib.double(3)
    check(result, 6)
"""
    if "isclose" in code:
        files["tests/test_it.py"] = "import math\nimport lib\ndef test_it(): assert math.isclose(lib.double(3), 6)\n"
    ran = run(files, *ids)
    assert ran.result.status == "failed"
    assert ran.result.tampered is not None and reason in ran.result.tampered, ran.result


PLANT = """
import importlib.util, inspect, marshal, os, struct, sys
import pytest
import _pytest.assertion.rewrite as rewrite
source = open("tests/test_it.py", "rb").read()
facts = os.stat("tests/test_it.py")
head = bytes(4) + struct.pack("<LL", int(facts.st_mtime), facts.st_size)
if hasattr(rewrite, "_replace_code_filenames"):
    head = bytes([3, 0, 0, 0]) + importlib.util.source_hash(source)
os.makedirs("tests/__pycache__", exist_ok=True)
tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
with open(f"tests/__pycache__/test_it.{tag}.pyc", "wb") as file:
    code = compile("def test_it(): pass", os.path.abspath("tests/test_it.py"), "exec")
    file.write(importlib.util.MAGIC_NUMBER + head + marshal.dumps(code))
"""


def test_a_planted_compiled_test_is_not_believed(run: Run, tmp_path: Path) -> None:
    files = hostile(PLANT) | {"tests/conftest.py": "import lib\n"}
    assert run(files).not_passed == {"tests/test_it.py::test_it": "FAILED"}
    # The cheat is a real one: it works on pytest as it is.
    bare = [sys.executable, "-m", "pytest", "tests"]
    assert subprocess.run(bare, cwd=tmp_path / "base", timeout=60, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("code", "status", "tampered"),
    [
        ("import sys; sys.exit(0)", "MISSING", ""),
        ("import pytest; pytest.skip('x', allow_module_level=True)", "MISSING", ""),
        ("import pytest; pytest.exit('x', returncode=0)", "MISSING", ""),
        ("def double(n):\n    import sys; sys.exit(0)", "FAILED", ""),
        ("def double(n):\n    import pytest; pytest.skip('x')", "SKIPPED", ""),
        ("def double(n):\n    import pytest; pytest.xfail('x')", "XFAIL", ""),
        ("def double(n):\n    import pytest; pytest.exit('x', returncode=0)", "ERROR", ""),
        ("def double(n):\n    import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ERROR", ""),
        ("def double(n):\n    import os\n    if os.fork(): os._exit(0)\n    return 6", "MISSING", "exit code 0"),
    ],
)
def test_ways_out_are_no_pass(run: Run, code: str, status: str, tampered: str) -> None:
    ran = run(hostile(code))
    assert ran.result.status == "failed", ran.result
    assert tampered in (ran.result.tampered or "") and bool(tampered) == bool(ran.result.tampered), ran.result
    assert ran.not_passed == {"tests/test_it.py::test_it": status}


def test_a_conftest_file_that_is_not_trusted_is_named(run: Run) -> None:
    conftest = "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem): return True\n"
    files = WRONG | TEST | {"conftest.py": conftest}
    ran = run(files, trusted=set(WRONG | TEST))
    assert ran.result.status == "failed" and ran.result.tampered is not None
    assert "conftest.py" in ran.result.tampered


def test_the_same_hook_in_a_trusted_conftest_is_seen_by_the_body(run: Run) -> None:
    conftest = "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem): return True\n"
    ran = run(WRONG | TEST | {"conftest.py": conftest})
    assert ran.result.tampered is not None and "never called" in ran.result.tampered


def test_a_legitimate_conftest_is_no_alarm(run: Run) -> None:
    conftest = """
import pytest
@pytest.fixture(autouse=True)
def seed():
    yield
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().sections.append(("note", "x"))
def pytest_collection_modifyitems(items):
    items.reverse()
"""
    files = GOOD | TEST | {"tests/conftest.py": conftest}
    ran = run(files)
    assert (ran.result.status, ran.result.tampered) == ("passed", None)


def test_a_test_that_sets_its_own_globals_is_no_alarm(run: Run) -> None:
    source = """
import lib
make = None
seen = []
def helper(): return 1
def test_it():
    global make, helper
    make = lib.double
    helper = lambda: 2
    seen.append(1)
    assert make(3) == 6
"""
    ran = run(GOOD | {"tests/test_it.py": source})
    assert (ran.result.status, ran.result.tampered) == ("passed", None)
