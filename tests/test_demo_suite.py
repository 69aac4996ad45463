"""The demo suite: its history is the same everywhere, and its tasks say what is true of it."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rtb import checkout, hydration
from rtb.suite import TaskEntry, load_suite
from rtb.task import CATEGORIES

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "build-demo-history"
SUITE = load_suite("demo", ROOT / "tasks")
EXAMPLES = SUITE.path / "example_predictions.jsonl"
IDS = [entry.instance_id for entry in SUITE.entries]

every_task = pytest.mark.parametrize("entry", SUITE.entries, ids=IDS)


def git(repository: Path, *arguments: str, stdin: bytes = b"") -> str:
    return checkout.run_git(arguments, repository=repository, stdin=stdin).stdout.decode().strip()


def build(out: Path, **environment: str) -> str:
    """Runs the script as a user would; returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "history"
    build(out)
    return out


def hostile_home(folder: Path) -> dict[str, str]:
    """A user whose configuration would change every commit, file and message, if it were read."""
    (folder / "git").mkdir(parents=True)
    (folder / "git" / "attributes").write_text("* text eol=crlf\n")
    (folder / "templates" / "hooks").mkdir(parents=True)
    for name in ("commit-msg", "applypatch-msg"):
        hook = folder / "templates" / "hooks" / name
        hook.write_text('#!/bin/sh\necho "Signed-off-by: hook" >> "$1"\n')
        hook.chmod(0o755)
    (folder / ".gitconfig").write_text(
        "[user]\n name = Someone\n email = someone@example.invalid\n"
        "[core]\n autocrlf = true\n eol = crlf\n fileMode = false\n"
        "[i18n]\n commitEncoding = ISO-8859-1\n"
        "[apply]\n whitespace = fix\n"
        "[am]\n threeWay = true\n"
        "[init]\n defaultBranch = trunk\n defaultObjectFormat = sha256\n"
        f" templateDir = {folder / 'templates'}\n"
    )
    return {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Kolkata",
        "GIT_AUTHOR_NAME": "Someone",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "Someone",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_DIR": str(folder / "elsewhere"),
        "GIT_TEMPLATE_DIR": str(folder / "templates"),
    }


def test_the_history_does_not_depend_on_folder_user_locale_or_umask(history: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        printed = build(tmp_path / "a folder with spaces" / "x", **hostile_home(tmp_path / "home"))
    finally:
        os.umask(before)
    other = tmp_path / "a folder with spaces" / "x"
    assert git(other, "log", "--format=%H %an %cn %cI %s", "main") == git(
        history, "log", "--format=%H %an %cn %cI %s", "main"
    )
    assert printed == git(history, "rev-parse", "main")
    assert git(other, "status", "--porcelain") == ""


def test_the_product_rebuilds_the_same_history(history: Path, tmp_path: Path) -> None:
    source = SUITE.suite.sources["rtb/tinyserve"]
    assert source.series is not None
    checkout.rebuild_series(SUITE.path / source.series, tmp_path / "again", source.committer)
    assert git(tmp_path / "again", "rev-parse", "main") == git(history, "rev-parse", "main")


def test_the_script_refuses_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "is in the way" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_suite_has_every_category() -> None:
    counts = Counter(entry.task.category for entry in SUITE.entries)
    assert len(SUITE.entries) >= 9
    assert all(counts[category] >= 3 for category in CATEGORIES), counts


@every_task
def test_commits_and_patches_are_those_of_the_history(entry: TaskEntry, history: Path) -> None:
    task = entry.task
    assert git(history, "rev-parse", f"{task.merge_commit}^") == task.base_commit
    assert git(history, "show", "-s", "--format=%s", task.merge_commit) == f"{task.title} (#{task.pull_number})"
    found, split = hydration.split_landed(entry, history)
    recorded = hydration.patches_of(entry)
    assert recorded.gold == found.gold and recorded.test == found.test
    assert task.patches.gold.paths == split.source and task.patches.test.paths == split.tests
    assert split.source and split.tests and not split.dropped


@every_task
def test_targets_exist_at_the_landed_commit_and_context_at_base(entry: TaskEntry, history: Path) -> None:
    task = entry.task
    for target in task.targets:
        source = git(history, "show", f"{task.merge_commit}:{target.path}")
        assert f"def {target.name.rpartition('.')[2]}(" in source
        assert target.path in task.patches.gold.paths
    assert any(target.kind == "triton_kernel" for target in task.targets)
    for reference in task.context:
        source = git(history, "show", f"{task.base_commit}:{reference.path}")
        assert all(f"def {name.rpartition('.')[2]}(" in source for name in reference.functions)
        assert all(f"class {name}" in source for name in reference.classes)


@every_task
def test_ids_are_in_the_files_of_the_unit_stage(entry: TaskEntry) -> None:
    tests, unit = entry.required_tests(), entry.task.unit
    assert unit is not None
    assert tests.fail_to_pass and tests.pass_to_pass and not tests.quarantined
    assert tests.gold_runs >= 3 and tests.base_runs >= 3
    assert {node.partition("::")[0] for node in tests.expected} == set(unit.files)
    assert set(unit.files) <= set(shlex.split(unit.command))


@every_task
def test_held_out_tests_are_not_in_the_base_tree(entry: TaskEntry, history: Path) -> None:
    places = {node.partition("[")[0] for node in entry.required_tests().fail_to_pass}
    for path, _, name in (place.partition("::") for place in places):
        command = ["grep", "-q", "-E", f"def {name}\\(", entry.task.base_commit, "--", path]
        found = checkout.run_git(command, repository=history, check=False)
        assert found.returncode == 1, f"{name} is in the base tree"


@every_task
def test_the_statement_names_the_interface_and_holds_no_kernel_code(entry: TaskEntry) -> None:
    statement = entry.folder.problem_statement.read_text()
    public = [t.name for t in entry.task.targets if t.kind != "triton_kernel" and not t.name.startswith("_")]
    missing = [name for name in public if name not in statement and name != "choose_num_splits"]
    assert public and not missing
    assert "tl." not in statement and "program_id" not in statement


def test_no_two_tasks_share_a_patch() -> None:
    digests = Counter(entry.task.patches.gold.sha256 for entry in SUITE.entries)
    assert None not in digests and max(digests.values()) == 1


def examples() -> dict[str, dict[str, str]]:
    lines = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]
    names = ("good", "wrong", "malformed", "empty", "cheating")
    assert len(lines) == len(names) and len({line["instance_id"] for line in lines}) == len(names)
    return dict(zip(names, lines, strict=True))


def tree_at_base(entry: TaskEntry, history: Path, folder: Path) -> Path:
    git(history, "worktree", "add", "-q", "--detach", str(folder), entry.task.base_commit)
    return folder


def applies(tree: Path, patch: str) -> bool:
    return checkout.run_git(["apply", "-"], repository=tree, stdin=patch.encode(), check=False).returncode == 0


@pytest.mark.parametrize("name, does", [("good", True), ("wrong", True), ("malformed", False), ("cheating", True)])
def test_which_examples_apply(name: str, does: bool, history: Path, tmp_path: Path) -> None:
    line = examples()[name]
    (entry,) = SUITE.select([line["instance_id"]])
    assert applies(tree_at_base(entry, history, tmp_path / "tree"), line["model_patch"]) is does


def test_the_empty_example_is_empty_and_the_cheat_leaves_the_kernel_alone() -> None:
    lines = examples()
    assert lines["empty"]["model_patch"] == ""
    assert "conftest.py" in lines["cheating"]["model_patch"] and "tinyserve/" not in lines["cheating"]["model_patch"]
    (entry,) = SUITE.select([lines["good"]["instance_id"]])
    assert lines["good"]["model_patch"].encode() != hydration.patches_of(entry).gold


def passed_ids(entry: TaskEntry, tree: Path, scratch: Path) -> set[str]:
    """Node ids that pass in a tree with the tests laid over, by the interpreter on a CPU."""
    assert entry.task.unit is not None
    git(tree, "apply", str(entry.folder.test_patch.resolve()))
    (scratch / "demo_recorder.py").write_text(
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and report.passed:\n"
        f"        open({str(scratch / 'passed')!r}, 'a').write(report.nodeid + '\\n')\n"
    )
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{tree}{os.pathsep}{scratch}", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [
            sys.executable,
            *shlex.split(entry.task.unit.command)[1:],
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "demo_recorder",
        ],
        cwd=tree,
        env=os.environ | environment | entry.task.environment.env,
        stdout=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )
    record = scratch / "passed"
    return set(record.read_text().splitlines()) if record.exists() else set()


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None,
    reason="torch and triton are not installed here",
)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("instance_id", ["rtb__tinyserve-9", "rtb__tinyserve-11", "rtb__tinyserve-24"])
@pytest.mark.parametrize("side", ["base", "gold"])
def test_recorded_ids_come_true(instance_id: str, side: str, history: Path, tmp_path: Path) -> None:
    (entry,) = SUITE.select([instance_id])
    tree = tree_at_base(entry, history, tmp_path / "tree")
    if side == "gold":
        git(tree, "apply", str(entry.folder.gold_patch.resolve()))
    tests = entry.required_tests()
    assert passed_ids(entry, tree, tmp_path) == set(tests.pass_to_pass if side == "base" else tests.expected)


@pytest.mark.slow
@needs_torch
def test_the_good_example_passes_everything(history: Path, tmp_path: Path) -> None:
    line = examples()["good"]
    (entry,) = SUITE.select([line["instance_id"]])
    tree = tree_at_base(entry, history, tmp_path / "tree")
    assert applies(tree, line["model_patch"])
    assert passed_ids(entry, tree, tmp_path) == set(entry.required_tests().expected)


@pytest.mark.slow
@needs_torch
def test_the_wrong_example_passes_some_new_tests_but_not_all(history: Path, tmp_path: Path) -> None:
    line = examples()["wrong"]
    (entry,) = SUITE.select([line["instance_id"]])
    tree = tree_at_base(entry, history, tmp_path / "tree")
    assert applies(tree, line["model_patch"])
    passed, tests = passed_ids(entry, tree, tmp_path), entry.required_tests()
    assert set(tests.pass_to_pass) <= passed
    assert 0 < len(passed & set(tests.fail_to_pass)) < len(tests.fail_to_pass)
