"""The unit stage with real pytest in a real sandbox: what each kind of ending is graded as."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.stages.unit import UnitFolder, execute_unit, observed_run, own_packages, read_evidence
from rtb.errors import ExpectedError, MachineError, StoredRunBroken
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits
from rtb.task import Target
from tests.unit_runs import GOOD, PLUGIN_PATH, TEST, WRONG, Run, a_task, hostile, runner


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runner(tmp_path)


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
