"""Which files of a patched tree are the model's, and which the harness lays itself."""

from __future__ import annotations

import pytest

from harness.trusted_tree import trusted_tree
from rtb.errors import ExpectedError
from rtb.git_objects import GitObjects, TreeEntry
from tests.patched_trees import EDIT, Files, created, diff_of, files_of, tree_of


def graded(
    objects: GitObjects,
    base: Files,
    model: Files,
    official: Files,
    *,
    roots: tuple[str, ...] = (".",),
    globs: tuple[str, ...] = (),
) -> tuple[tuple[str, ...], dict[str, bytes]]:
    start, patched = tree_of(objects, base), tree_of(objects, model)
    test_patch = diff_of(objects, start, tree_of(objects, official))
    tree = trusted_tree(
        objects, base_tree=start, patched_tree=patched, test_patch=test_patch, import_roots=roots, test_globs=globs
    )
    laid = dict(base)
    for path in tree.change.delete:
        del laid[path]
    laid |= {path: entry.data for path, entry in tree.change.write.items()}
    assert laid == files_of(objects, tree.tree)
    return tree.flags, laid


TESTED = {"m.py": b"m\n", "tests/test_m.py": b"old\n", "conftest.py": b"base\n", "tests/helper.py": b"h\n"}


def test_paths_of_the_test_patch_are_official(objects: GitObjects) -> None:
    official = {**TESTED, "tests/test_m.py": b"official\n", "tests/test_new.py": b"new\n"}
    del official["tests/helper.py"]
    model = {**TESTED, "m.py": b"better\n", "tests/test_m.py": b"weak\n", "tests/test_new.py": b"planted\n"}
    flags, laid = graded(objects, TESTED, model, official)
    assert laid == {**official, "m.py": b"better\n"}
    assert flags == ("test_file_touched: tests/test_m.py", "test_file_touched: tests/test_new.py")


def test_a_model_that_did_the_official_change_is_not_flagged(objects: GitObjects) -> None:
    official = {**TESTED, "tests/test_m.py": b"official\n"}
    assert graded(objects, TESTED, {**official, "m.py": b"x\n"}, official) == ((), {**official, "m.py": b"x\n"})


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("conftest.py", "test_infrastructure_touched"),
        ("tests/deep/conftest.py", "test_infrastructure_touched"),
        ("conftest.cpython-311-x86_64-linux-gnu.so", "test_infrastructure_touched"),
        ("conftest/__init__.py", "test_infrastructure_touched"),
        ("pytest.ini", "test_infrastructure_touched"),
        (".pytest.ini", "test_infrastructure_touched"),
        ("tox.ini", "test_infrastructure_touched"),
        ("setup.cfg", "test_infrastructure_touched"),
        ("pyproject.toml", "test_infrastructure_touched"),
        ("sitecustomize.py", "test_infrastructure_touched"),
        ("lib/usercustomize.py", "test_infrastructure_touched"),
        ("evil.pth", "test_infrastructure_touched"),
        ("evil-1.0.dist-info/entry_points.txt", "test_infrastructure_touched"),
        ("pytest.py", "module_shadowed"),
        ("_pytest/__init__.py", "module_shadowed"),
        ("torch.py", "module_shadowed"),
        ("numpy/__init__.py", "module_shadowed"),
        ("tests/triton.py", "module_shadowed"),
        ("time.py", "module_shadowed"),
        ("python/json/__init__.py", "module_shadowed"),
        ("tests/test_m/__init__.py", "module_shadowed"),
        ("__pycache__/m.cpython-311.pyc", "compiled_python_added"),
        ("m.pyc", "compiled_python_added"),
    ],
)
def test_infrastructure_of_the_model_is_set_aside(objects: GitObjects, path: str, kind: str) -> None:
    official = {**TESTED, "tests/test_m.py": b"official\n"}
    flags, laid = graded(
        objects, TESTED, {**TESTED, "m.py": b"x\n", path: b"evil\n"}, official, roots=(".", "python")
    )
    assert laid == {**official, "m.py": b"x\n"}
    assert flags == (f"{kind}: {path}",)


@pytest.mark.parametrize(
    "path",
    [
        "pkg/torch.py",
        "pkg/conftest_rules.py",
        "triton_kernels/__init__.py",
        "code/notes.txt",
        "test_mine.py",
        "x/time.py",
    ],
)
def test_ordinary_new_files_stay(objects: GitObjects, path: str) -> None:
    official = {**TESTED, "tests/test_m.py": b"official\n"}
    assert graded(objects, TESTED, {**TESTED, path: b"fine\n"}, official) == ((), {**official, path: b"fine\n"})


def test_a_repository_may_be_the_library_itself(objects: GitObjects) -> None:
    base = {**TESTED, "torch/__init__.py": b"t\n"}
    official = {**base, "tests/test_m.py": b"official\n"}
    model = {**base, "torch/new/__init__.py": b"n\n", "torch/types.py": b"n\n"}
    assert graded(objects, base, model, official)[0] == ()


def test_deleted_or_changed_infrastructure_comes_back(objects: GitObjects) -> None:
    model = {path: data for path, data in TESTED.items() if path != "conftest.py"}
    assert graded(objects, TESTED, model, TESTED) == (("test_infrastructure_touched: conftest.py",), TESTED)


def test_globs_make_a_whole_folder_official(objects: GitObjects) -> None:
    model = {**TESTED, "tests/helper.py": b"evil\n", "tests/helper/__init__.py": b"evil\n"}
    flags, laid = graded(objects, TESTED, model, TESTED, globs=("tests/**",))
    assert laid == TESTED
    assert flags == ("test_file_touched: tests/helper.py", "test_file_touched: tests/helper/__init__.py")


def test_what_only_looks_like_a_test_is_the_models_to_change(objects: GitObjects) -> None:
    start, patched = tree_of(objects, TESTED), tree_of(objects, {**TESTED, "tests/helper.py": b"mine\n"})
    tree = trusted_tree(
        objects,
        base_tree=start,
        patched_tree=patched,
        test_patch=b"",
        test_globs=("tests/**",),
        not_test_globs=("tests/helper.py",),
    )
    assert (tree.tree, tree.flags, tree.restored) == (patched, (), ())


def test_a_link_or_file_in_place_of_the_test_folder_gives_way(objects: GitObjects) -> None:
    base = tree_of(objects, TESTED)
    official = diff_of(objects, base, tree_of(objects, {**TESTED, "tests/test_m.py": b"official\n"}))
    (target,) = objects.store([b"mine"])
    for mode in (0o120000, 0o100644):
        swapped = objects.with_entries(
            base, {"tests": TreeEntry(mode, target), "mine/test_m.py": TreeEntry(0o100644, target)}
        )
        tree = trusted_tree(objects, base_tree=base, patched_tree=swapped, test_patch=official)
        laid = files_of(objects, tree.tree)
        assert laid["tests/test_m.py"] == b"official\n"
        assert "tests" not in laid


def test_a_test_patch_that_does_not_apply_stops_everything(objects: GitObjects) -> None:
    base = tree_of(objects, TESTED)
    for broken in (EDIT, created(b"tests/test_m.py"), created(b"tests/t.py")[:-30]):
        with pytest.raises(ExpectedError, match="test patch"):
            trusted_tree(objects, base_tree=base, patched_tree=base, test_patch=broken)
