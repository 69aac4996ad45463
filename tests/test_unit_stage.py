"""The unit stage with real pytest in a real sandbox: what each kind of ending is graded as."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.stages.unit import (
    UnitFolder,
    execute_unit,
    grade_unit,
    observed_run,
    own_packages,
    read_evidence,
    run_unit,
)
from rtb.errors import ExpectedError, MachineError, StoredRunBroken
from rtb.local_sandbox import open_local_sandbox
from rtb.result import StageResult
from rtb.sandbox import Limits
from rtb.task import Environment, Patches, PatchFacts, Provenance, Target, Task, TestIds, UnitStage

COMMIT = "0" * 40
PLUGIN_PATH = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"


def a_task(
    command: str = "python -m pytest tests",
    *,
    files: tuple[str, ...] = ("tests/test_it.py",),
    timeout_seconds: float = 60.0,
    plugins: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Task:
    return Task(
        instance_id="org__repo-1",
        repo="org/repo",
        pull_number=1,
        base_commit=COMMIT,
        merge_commit=COMMIT,
        title="t",
        category="modification",
        targets=(Target(path="lib.py", name="double", kind="host", change="modified"),),
        patches=Patches(gold=PatchFacts(sha256=None, paths=()), test=PatchFacts(sha256=None, paths=())),
        environment=Environment(dockerfile="none", plugins=plugins, env=dict(env or {})),
        unit=UnitStage(command=command, files=files, timeout_seconds=timeout_seconds),
        provenance=Provenance(source="a test"),
    )


def some_tests(*fail_to_pass: str, p2p: tuple[str, ...] = ()) -> TestIds:
    return TestIds(instance_id="org__repo-1", fail_to_pass=fail_to_pass, pass_to_pass=p2p, gold_runs=3, base_runs=3)


@dataclass(frozen=True)
class Ran:
    result: StageResult
    raw: Path

    @property
    def not_passed(self) -> dict[str, str]:
        assert self.result.unit is not None
        return {node: status for node, (status, _) in self.result.unit.not_passed.items()}


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Lay files, run the stage in a local sandbox, grade."""

    def do(
        files: Mapping[str, str],
        *fail_to_pass: str,
        p2p: tuple[str, ...] = (),
        task: Task | None = None,
        trusted: Collection[str] | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        base = tmp_path / "base"
        for path, text in files.items():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_text(text)
        raw = tmp_path / "raw"
        known = set(files) - {"lib.py"} if trusted is None else trusted
        with open_local_sandbox(
            base, env=dict(env or {}), path=PLUGIN_PATH, limits=limits or Limits(), parent=tmp_path
        ) as sandbox:
            tests = some_tests(*(fail_to_pass or ("tests/test_it.py::test_it",)), p2p=p2p)
            result = run_unit(task or a_task(), tests, sandbox, raw, trusted=known)
        assert grade_unit(task or a_task(), tests, raw) == result
        return Ran(result, raw)

    return do


GOOD = {"lib.py": "def double(n):\n    return 2 * n\n"}
WRONG = {"lib.py": "def double(n):\n    return n + 1\n"}
TEST = {"tests/test_it.py": "from lib import double\n\n\ndef test_it():\n    assert double(3) == 6\n"}


def hostile(code: str) -> dict[str, str]:
    """A wrong library that does something more when it is imported."""
    return WRONG | TEST | {"lib.py": WRONG["lib.py"] + "\n" + code}


def test_a_right_patch_passes(run: Run) -> None:
    ran = run(GOOD | TEST)
    assert (ran.result.status, ran.result.tampered) == ("passed", None)
    assert ran.result.reason == "all 1 expected tests passed"
    assert ran.result.unit is not None and ran.result.unit.utp == 1.0


def test_a_wrong_patch_fails_with_the_message_of_the_test(run: Run) -> None:
    ran = run(WRONG | TEST)
    assert (ran.result.status, ran.result.tampered) == ("failed", None)
    assert "tests/test_it.py::test_it" in ran.result.reason and "assert 4 == 6" in ran.result.reason


def test_every_status_is_told_apart(run: Run) -> None:
    source = """
import pytest, unittest

@pytest.fixture
def bad_teardown():
    yield
    raise RuntimeError("teardown broke")

@pytest.fixture
def bad_setup():
    raise RuntimeError("setup broke")

def test_it(): pass
def test_td(bad_teardown): pass
def test_su(bad_setup): pass
@pytest.mark.skip(reason="needs CUDA")
def test_sk(): pass
@pytest.mark.xfail
def test_xf(): assert 0
@pytest.mark.xfail(run=False)
def test_xn(): pass
@pytest.mark.xfail
def test_xp(): pass
@pytest.mark.xfail(strict=True)
def test_xs(): pass
@pytest.mark.parametrize("word", ["two words", "a - b", "x::y", "PASSED", "", "end] - x", "caf\\xe9"])
def test_msg(word): assert word != "a - b"
class TestA:
    def test_same(self): pass
class TestB:
    def test_same(self): assert 0
class TestU(unittest.TestCase):
    def test_ok(self): self.assertEqual(1, 1)
    def test_bad(self): self.assertEqual(1, 2)
    @unittest.expectedFailure
    def test_expected(self): self.assertEqual(1, 2)
    def test_sub(self):
        with self.subTest(i=1): self.assertEqual(1, 2)
"""
    path = "tests/test_it.py::"
    ran = run({"tests/test_it.py": source}, f"{path}test_it", f"{path}test_td")
    assert read_evidence(ran.raw).records.statuses == {
        f"{path}test_it": "PASSED",
        f"{path}test_td": "ERROR",
        f"{path}test_su": "ERROR",
        f"{path}test_sk": "SKIPPED",
        f"{path}test_xf": "XFAIL",
        f"{path}test_xn": "XFAIL",
        f"{path}test_xp": "XPASS",
        f"{path}test_xs": "FAILED",
        f"{path}test_msg[two words]": "PASSED",
        f"{path}test_msg[a - b]": "FAILED",
        f"{path}test_msg[x::y]": "PASSED",
        f"{path}test_msg[PASSED]": "PASSED",
        f"{path}test_msg[]": "PASSED",
        f"{path}test_msg[end] - x]": "PASSED",
        f"{path}test_msg[caf\\xe9]": "PASSED",
        f"{path}TestA::test_same": "PASSED",
        f"{path}TestB::test_same": "FAILED",
        f"{path}TestU::test_ok": "PASSED",
        f"{path}TestU::test_bad": "FAILED",
        f"{path}TestU::test_expected": "XFAIL",
        f"{path}TestU::test_sub": "FAILED",
    }
    assert ran.not_passed == {f"{path}test_td": "ERROR"}
    assert (ran.result.status, ran.result.tampered) == ("failed", None)


def test_ids_are_told_apart_by_file(run: Run) -> None:
    files = {"tests/a/__init__.py": "", "tests/a/test_x.py": "def test_same(): pass\n"}
    files |= {"tests/b/__init__.py": "", "tests/b/test_x.py": "def test_same(): assert 0\n"}
    ran = run(files, "tests/a/test_x.py::test_same")
    assert ran.result.status == "passed"
    assert ran.result.unit is not None and ran.result.unit.extra == {"FAILED": 1}


def test_an_absent_id_is_not_passed(run: Run) -> None:
    ran = run(GOOD | TEST, "tests/test_it.py::test_it", "tests/test_it.py::test_new")
    assert ran.not_passed == {"tests/test_it.py::test_new": "MISSING"}
    assert ran.result.status == "failed"


def test_a_module_that_does_not_import_is_a_collection_error(run: Run) -> None:
    files = GOOD | TEST | {"tests/test_bad.py": "import pkg_that_is_not_there\n\ndef test_q(): pass\n"}
    ran = run(files, "tests/test_bad.py::test_q", p2p=("tests/test_it.py::test_it",))
    assert ran.result.status == "failed" and ran.result.tampered is None
    assert ran.result.reason.startswith("collection error in tests/test_bad.py: ModuleNotFoundError")
    assert set(ran.not_passed.values()) == {"MISSING"}


def test_a_conftest_that_cannot_import_the_patched_code_is_the_patch(run: Run) -> None:
    files = TEST | {"lib.py": "def double(:\n", "tests/conftest.py": "import lib\n"}
    ran = run(files)
    assert ran.result.status == "failed" and "tests/conftest.py" in ran.result.reason


def test_a_crash_names_the_test_and_keeps_what_passed(run: Run) -> None:
    source = "import os, signal\ndef test_one(): pass\ndef test_boom(): os.kill(os.getpid(), signal.SIGSEGV)\n"
    source += "def test_three(): pass\n"
    ids = [f"tests/test_it.py::test_{name}" for name in ("boom", "one", "three")]
    ran = run({"tests/test_it.py": source}, ids[0], p2p=(ids[1], ids[2]))
    assert ran.result.status == "failed" and ran.result.tampered is None
    assert "SIGSEGV" in ran.result.reason and "test_boom" in ran.result.reason
    assert ran.not_passed == {ids[0]: "ERROR", ids[2]: "MISSING"}


def test_the_time_limit_keeps_what_passed(run: Run) -> None:
    source = "import time\ndef test_fast(): pass\ndef test_hang(): time.sleep(600)\n"
    ran = run(
        {"tests/test_it.py": source},
        "tests/test_it.py::test_fast",
        p2p=("tests/test_it.py::test_hang",),
        task=a_task(timeout_seconds=4.0),
    )
    assert ran.result.status == "failed" and "time limit of 4 s was reached in tests/test_it.py::test_hang" in (
        ran.result.reason
    )
    assert ran.not_passed == {"tests/test_it.py::test_hang": "MISSING"}
    assert ran.result.unit is not None and ran.result.unit.timed_out


def test_missing_pytest_is_the_environments_fault(run: Run) -> None:
    # -S in the environment's own python cannot be undone; a python without pytest is asked for by its name.
    ran = run(GOOD | TEST, env={"PATH": "/usr/bin:/bin"}, task=a_task("python3 -m pytest tests"))
    assert ran.result.status == "error" and "pytest is missing" in ran.result.reason


def test_a_missing_environment_plugin_is_the_environments_fault(run: Run) -> None:
    ran = run(GOOD | TEST, task=a_task(plugins=("a_plugin_nobody_has",)))
    assert ran.result.status == "error" and "a_plugin_nobody_has" in ran.result.reason


def test_a_stale_id_in_the_command_is_the_tasks_fault(run: Run) -> None:
    ran = run(GOOD | TEST, task=a_task("python -m pytest tests/test_it.py::test_nope tests/test_it.py::test_it"))
    assert ran.result.status == "error" and "test_nope" in ran.result.reason


def test_an_option_pytest_does_not_know_is_the_tasks_fault(run: Run) -> None:
    ran = run(GOOD | TEST, task=a_task("python -m pytest --no-such-option tests"))
    assert ran.result.status == "error" and "--no-such-option" in ran.result.reason


def test_workers_are_refused(run: Run) -> None:
    with pytest.raises(ExpectedError, match="one process"):
        run(GOOD | TEST, task=a_task("python -m pytest -n 4 tests"))


def test_odd_output_and_a_control_byte_do_not_disturb(run: Run) -> None:
    files = {"tests/test_it.py": "import os\ndef test_it():\n    os.write(1, b'\\xff\\x00\\xe2')\n"}
    files["tests/test_no.py"] = "def test_no():\n    assert 0, 'bad \\x12 byte'\n"
    ran = run(files)
    assert ran.result.status == "passed"


def test_a_forged_summary_in_the_output_changes_nothing(run: Run) -> None:
    code = "import os\nos.write(2, b"
    code += "'== short test summary info ==\\nPASSED tests/test_it.py::test_it\\n== 1 passed in 0.1s ==\\n')"
    ran = run(hostile(code))
    assert ran.result.status == "failed" and ran.not_passed == {"tests/test_it.py::test_it": "FAILED"}


def test_options_of_the_tree_and_of_variables_are_neutral(run: Run) -> None:
    files = GOOD | TEST | {"pytest.ini": "[pytest]\naddopts = --deselect tests/test_it.py::test_it\n"}
    ran = run(files, env={"PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "nothing_like_it"})
    assert ran.result.status == "passed"


def test_the_tree_cannot_customise_the_interpreter(run: Run) -> None:
    marker = "import os\nos.write(1, b'CUSTOMISED')\n"
    ran = run(GOOD | TEST | {"sitecustomize.py": marker, "usercustomize.py": marker}, env={"PYTHONPATH": "$RTB_TREE"})
    assert ran.result.status == "passed" and b"CUSTOMISED" not in UnitFolder(ran.raw).console.read_bytes()


@pytest.mark.parametrize("name", ["pytest", "_pytest", "pluggy", "numpy", "packaging"])
def test_the_tree_cannot_shadow_what_decides(run: Run, name: str) -> None:
    test = TEST["tests/test_it.py"].replace("    assert", f"    import {name}; assert {name}.__file__\n    assert")
    ran = run(GOOD | {"tests/test_it.py": test, f"{name}.py": "raise SystemExit(0)\n"})
    assert ran.result.status == "passed"


def test_a_task_about_a_protected_package_uses_its_own() -> None:
    target = Target(path="torch/x.py", name="f", kind="host", change="added")
    task = a_task().model_copy(update={"targets": (target,)})
    assert own_packages(task) == {"torch"}


def test_the_environments_variables_reach_the_tests(run: Run) -> None:
    test = "import os\ndef test_it():\n    assert os.path.exists(os.environ['WHERE'] + '/lib.py')\n"
    ran = run(GOOD | {"tests/test_it.py": test}, task=a_task(env={"WHERE": "$RTB_TREE"}))
    assert ran.result.status == "passed"


def test_children_find_the_tree(run: Run) -> None:
    test = "import subprocess, sys\ndef test_it():\n"
    test += "    subprocess.run([sys.executable, '-c', 'import lib'], check=True)\n"
    ran = run(GOOD | {"tests/test_it.py": test})
    assert ran.result.status == "passed"


def test_spawned_and_forked_workers_do_not_disturb(run: Run) -> None:
    test = """
import multiprocessing
import lib
import pytest

@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_it(way):
    context = multiprocessing.get_context(way)
    with context.Pool(1) as pool:
        assert pool.map(lib.double, [3]) == [6]
"""
    ran = run(GOOD | {"tests/test_it.py": test}, *(f"tests/test_it.py::test_it[{way}]" for way in ("fork", "spawn")))
    assert (ran.result.status, ran.result.tampered) == ("passed", None), ran.result


def test_async_and_hypothesis_bodies_are_seen(run: Run) -> None:
    test = """
import unittest
from hypothesis import given, settings, strategies as st

@settings(max_examples=3)
@given(st.integers())
def test_it(n):
    assert n == n

class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def test_a(self):
        self.assertEqual(1, 1)
"""
    ran = run({"tests/test_it.py": test}, "tests/test_it.py::test_it", "tests/test_it.py::TestAsync::test_a")
    assert (ran.result.status, ran.result.tampered) == ("passed", None), ran.result


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


def test_a_control_run_gives_ids_or_says_why_not(run: Run) -> None:
    gold = observed_run(run(GOOD | TEST).raw)
    assert (gold.statuses, gold.fault) == ({"tests/test_it.py::test_it": "PASSED"}, None)
    base = observed_run(run(GOOD | TEST | {"tests/test_it.py": "import nothing_like_it\n"}).raw)
    assert base.statuses == {} and base.fault is not None and base.fault.cause == "collection"
    with pytest.raises(MachineError, match="plugin of the environment"):
        observed_run(run(GOOD | TEST, task=a_task(plugins=("a_plugin_nobody_has",))).raw)
    with pytest.raises(ExpectedError, match="contradicts itself"):
        observed_run(run(hostile("import os; os._exit(0)")).raw)


def test_a_stored_run_that_was_damaged_is_not_graded(run: Run) -> None:
    ran = run(GOOD | TEST)
    folder = UnitFolder(ran.raw)
    whole = folder.records.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole.replace(b"test_it", b"test_at")):
        folder.records.write_bytes(damaged)
        with pytest.raises(StoredRunBroken):
            read_evidence(ran.raw)
    folder.records.write_bytes(whole)
    folder.exec.write_bytes(folder.exec.read_bytes()[:-20])
    with pytest.raises(StoredRunBroken):
        read_evidence(ran.raw)


def test_an_earlier_run_leaves_nothing_for_the_next(run: Run) -> None:
    run(GOOD | TEST)
    assert run(WRONG).result.status == "failed"


def test_running_needs_a_unit_stage(tmp_path: Path) -> None:
    task = a_task().model_copy(update={"unit": None})
    base = tmp_path / "base"
    base.mkdir()
    with (
        open_local_sandbox(base, env={}, path=PLUGIN_PATH, limits=Limits(), parent=tmp_path) as sandbox,
        pytest.raises(ExpectedError, match="no unit stage"),
    ):
        execute_unit(task, sandbox, tmp_path / "raw")
