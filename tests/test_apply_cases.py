"""Every public case of stage `apply`, and cases 72 and 73, through the functions the harness uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.patch_result import PatchResult
from harness.patching import apply_patch
from harness.trusted_tree import TrustedTree, trusted_tree
from harness.work_directory import apply_to_directory
from rtb.capture import capture
from rtb.checkout import run_git
from rtb.git_objects import GitObjects, borrow_objects

CASES = Path(os.environ.get("RTB_CASES", Path(__file__).resolve().parents[2] / "shared" / "cases"))
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases at {CASES} (set RTB_CASES)")


def load(case: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((case / "case.json").read_text())
    return loaded


APPLY = [path.parent for path in sorted(CASES.glob("*/case.json")) if load(path.parent)["stage"] == "apply"]
# The step of `setup` that a case needs besides base/ and dirty/.
OUTER, WITH_TEST_PATCH, PLANTED_BLOB = (
    "22-nested-in-outer-repo",
    "25-test-file-already-there",
    "30-three-way-conflict",
)


def committed(case: Path, destination: Path) -> str:
    shutil.copytree(case / "base", destination, copy_function=shutil.copyfile)
    return commit(destination)


def commit(directory: Path) -> str:
    run_git(["init", "-q", "-b", "main"], repository=directory)
    run_git(["add", "-A"], repository=directory)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    run_git([*identity, "commit", "-q", "-m", "base"], repository=directory)
    if (directory / "c.py").exists():
        run_git(["hash-object", "-w", "--stdin"], repository=directory, stdin=b"v = 1\nw = 2\n")
    return run_git(["rev-parse", "HEAD"], repository=directory).stdout.decode().strip()


def patch_of(case: Path) -> bytes:
    if (case / "make_patch.py").exists():
        made = subprocess.run([sys.executable, case / "make_patch.py"], capture_output=True, check=True, timeout=60)
        return made.stdout
    return (case / "patch.diff").read_bytes()


def on_disk(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if ".git" not in path.relative_to(directory).parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files if path.is_file()}


def in_tree(objects: GitObjects, tree: str) -> dict[str, bytes]:
    entries = objects.listing(tree)
    blobs = objects.blobs(entry.id for entry in entries.values())
    return {path: blobs[entry.id] for path, entry in entries.items()}


def wanted(case: Path) -> dict[str, bytes] | None:
    return on_disk(case / "expected") if (case / "expected").is_dir() else None


def check_value(case: Path, result: PatchResult) -> None:
    expected = load(case)["expected"]
    assert result.status in expected["acceptable"], result.reason
    assert result.status == "applied" or result.reason
    if result.status == "applied":
        assert result.method


@pytest.mark.parametrize("case", APPLY, ids=lambda case: case.name)
def test_case_on_a_plain_folder(case: Path, tmp_path: Path) -> None:
    """As a user has it: base committed, dirty laid over it, the patch applied where `apply_cwd` says."""
    top = tmp_path / "tree"
    committed(case, top)
    if (case / "dirty").is_dir():
        shutil.copytree(case / "dirty", top, dirs_exist_ok=True, copy_function=shutil.copyfile)
    place = top
    if case.name == OUTER:
        place = top / "runs" / "testbed"
        place.mkdir(parents=True)
        (place / "m.py").write_text("x = 1\n")
    before, outside = on_disk(top), sorted(tmp_path.iterdir())
    result = apply_to_directory(place, patch_of(case), official=case.name == WITH_TEST_PATCH)
    check_value(case, result)
    assert result.status == load(case)["expected"]["preferred"]
    target = wanted(case)
    if result.status != "applied":
        assert on_disk(top) == before
    elif target is not None:
        assert on_disk(top) == target
    else:
        assert on_disk(top) != before
    assert sorted(tmp_path.iterdir()) == outside
    assert not [path for path in top.rglob("*") if path.suffix in (".rej", ".orig")]


@pytest.mark.parametrize("case", [case for case in APPLY if case.name != OUTER], ids=lambda case: case.name)
def test_case_on_objects(case: Path, tmp_path: Path) -> None:
    """As the harness does it: on trees, nothing left in the repository."""
    top = tmp_path / "tree"
    base = committed(case, top)
    store = sorted(path for path in (top / ".git").rglob("*"))
    with borrow_objects(top) as objects:
        result = apply_patch(objects, objects.tree_of(base), patch_of(case))
        check_value(case, result)
        assert (result.tree is None) == (result.status != "applied")
        target = wanted(case)
        if result.tree is not None and target is not None:
            assert in_tree(objects, result.tree) == target
    assert sorted(path for path in (top / ".git").rglob("*")) == store


def test_case_25_official_test_wins_over_the_models(tmp_path: Path) -> None:
    """The model has made the file that the test patch adds: the official one is graded."""
    case, top = CASES / WITH_TEST_PATCH, tmp_path / "tree"
    base = committed(case, top)
    shutil.copytree(case / "dirty", top, dirs_exist_ok=True, copy_function=shutil.copyfile)
    tree, laid = graded(top, base, capture(top, base), patch_of(case))
    assert laid == wanted(case)
    assert tree.flags == ("test_file_touched: tests/test_new.py",)


def test_case_72_conftest_of_the_model_is_set_aside(tmp_path: Path) -> None:
    case, top = CASES / "72-conftest-only-patch", tmp_path / "tree"
    base = committed(case, top)
    tree, laid = graded(top, base, patch_of(case), b"")
    assert laid == on_disk(case / "base")
    assert list(tree.flags) == load(case)["expected"]["flags"]
    assert tree.change.write == {}


def test_case_73_tests_are_reset_one_by_one(tmp_path: Path) -> None:
    case, top = CASES / "73-reset-of-test-files", tmp_path / "tree"
    base = committed(case, top)
    tree, laid = graded(top, base, (case / "model.diff").read_bytes(), (case / "test.diff").read_bytes())
    assert laid == wanted(case)
    assert set(tree.restored) == {"tests/test_new.py", "tests/test_old.py"}


def graded(top: Path, base: str, model: bytes, test: bytes) -> tuple[TrustedTree, dict[str, bytes]]:
    with borrow_objects(top) as objects:
        start = objects.tree_of(base)
        result = apply_patch(objects, start, model)
        assert result.tree is not None, result.reason
        tree = trusted_tree(objects, base_tree=start, patched_tree=result.tree, test_patch=test)
        return tree, in_tree(objects, tree.tree)
