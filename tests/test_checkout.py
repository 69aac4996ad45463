"""Repositories and trees with real git: splitting, diffing, series, the base tree, hydrate."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtb import checkout, hydration
from rtb.base_tree import base_tree
from rtb.errors import ExpectedError, GitFailed
from rtb.suite import DEFAULT_SPLIT, TaskEntry, load_suite
from rtb.task import SplitRules
from tests.cases import case_folder
from tests.gitrepo import commit, commit_tree_of, init, tree_id
from tests.test_task import task_document


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache of its own for each test."""
    before = os.environ.get("RTB_CACHE")
    os.environ["RTB_CACHE"] = str(tmp_path / "cache")
    yield tmp_path / "cache"
    if before is None:
        del os.environ["RTB_CACHE"]
    else:
        os.environ["RTB_CACHE"] = before


def make_task(tmp_path: Path, base: str, merge: str, source: dict[str, str], pull: int = 7) -> TaskEntry:
    """A suite of one facts-only task over two commits."""
    suite = tmp_path / "tasks" / "one"
    folder = suite / f"org__repo-{pull}"
    folder.mkdir(parents=True)
    document = {"schema_version": 1, "name": "one", "title": "One", "sources": {"org/repo": source}}
    (suite / "suite.json").write_text(json.dumps(document))
    task = task_document(base_commit=base, merge_commit=merge)
    (folder / "task.json").write_text(json.dumps(task))
    return load_suite("one", tmp_path / "tasks").entries[0]


@pytest.fixture
def landed(tmp_path: Path) -> tuple[Path, str, str]:
    """A repository in which a pull request landed, with a later commit on top, a tag and a stray branch."""
    repo = init(tmp_path / "upstream")
    commit(repo, "first", {"k.py": b"a = 1\n", "old.py": b"x\n", "latest/notes.py": b"n\n"})
    base = commit(repo, "base (#6)", {"tests/test_k.py": b"def test_a(): pass\n"})
    merge = commit(
        repo,
        "the pull request (#7)",
        {"k.py": b"a = 2\n", "latest/notes.py": b"m\n", "tests/test_k.py": b"def test_a(): assert 1\n"},
    )
    commit(repo, "later (#8)", {"k.py": b"a = 3\n"})
    checkout.run_git(["tag", "v1"], repository=repo)
    checkout.run_git(["branch", "stray"], repository=repo)
    return repo, base, merge


def test_globs_match_whole_paths_not_parts_of_words() -> None:
    rules = SplitRules(tests=("**/test/**", "**/test_*.py"), not_tests=("src/**",), dropped=("**/*.csv",))
    split = checkout.split_paths(
        [
            "latest/x.py",
            "test/a.py",
            "pkg/test/b.py",
            "src/test_data.py",
            "test_top.py",
            "a/data.csv",
            "contest/c.py",
        ],
        rules,
    )
    assert split.tests == ("pkg/test/b.py", "test/a.py", "test_top.py")
    assert split.source == ("contest/c.py", "latest/x.py", "src/test_data.py")
    assert split.dropped == ("a/data.csv",)


def test_hydrate_pins_then_checks_and_keeps_the_patches(landed: tuple[Path, str, str], tmp_path: Path) -> None:
    repo, base, merge = landed
    entry = make_task(tmp_path, base, merge, {"url": str(repo)})
    with pytest.raises(ExpectedError, match="not hydrated"):
        hydration.patches_of(entry)
    with pytest.raises(ExpectedError, match=r"latest/notes\.py is only in the clone"):
        hydration.hydrate(entry, clone=repo)
    hydration.hydrate(entry, clone=repo, pin=True)
    pinned = load_suite("one", tmp_path / "tasks").entries[0]
    assert pinned.task.patches.gold.paths == ("k.py", "latest/notes.py")
    assert pinned.task.patches.test.paths == ("tests/test_k.py",)
    hydration.hydrate(pinned, clone=repo)
    patches = hydration.patches_of(pinned)
    assert b"+a = 2" in patches.gold and b"tests/" not in patches.gold
    assert b"+def test_a(): assert 1" in patches.test and b"k.py b/k.py" not in patches.test.split(b"tests/")[0]


def test_a_patch_that_is_not_the_recorded_one_is_refused(landed: tuple[Path, str, str], tmp_path: Path) -> None:
    repo, base, merge = landed
    entry = make_task(tmp_path, base, merge, {"url": str(repo)})
    hydration.hydrate(entry, clone=repo, pin=True)
    pinned = load_suite("one", tmp_path / "tasks").entries[0]
    kept = hydration.patch_folder(pinned) / "gold.patch"
    kept.write_bytes(kept.read_bytes() + b"\n")
    with pytest.raises(ExpectedError, match="sha256"):
        hydration.patches_of(pinned)


def test_a_clone_without_the_commits_is_said_with_a_way_out(tmp_path: Path) -> None:
    other = init(tmp_path / "other")
    commit(other, "x", {"a": b"a"})
    entry = make_task(tmp_path, "a" * 40, "b" * 40, {"url": str(other)})
    with pytest.raises(ExpectedError, match="fetch the branch that holds it"):
        hydration.hydrate(entry, clone=other)
    with pytest.raises(ExpectedError, match="--clone PATH"):
        hydration.hydrate(entry)
    with pytest.raises(ExpectedError, match="not a git repository"):
        hydration.hydrate(entry, clone=tmp_path)


def test_a_blobless_fetch_gives_the_same_patches_as_a_clone(landed: tuple[Path, str, str], tmp_path: Path) -> None:
    repo, base, merge = landed
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        checkout.run_git(["config", key, "true"], repository=repo)
    entry = make_task(tmp_path, base, merge, {"url": repo.as_uri()})
    hydration.hydrate(entry, pin=True)
    fetched = load_suite("one", tmp_path / "tasks").entries[0]
    cached = tmp_path / "cache" / "repositories" / "org__repo.git"
    assert cached.is_dir()
    hydration.hydrate(fetched, clone=repo)  # would raise if a byte differed
    tree = base_tree(fetched, tmp_path / "tree")
    assert tree.commit == base


def test_the_base_tree_holds_the_base_commit_and_nothing_else(landed: tuple[Path, str, str], tmp_path: Path) -> None:
    repo, base, merge = landed
    entry = make_task(tmp_path, base, merge, {"url": str(repo)})
    tree = base_tree(entry, tmp_path / "tree", clone=repo)
    git = tree.path
    assert (tree.commit, tree.tree) == (base, tree_id(repo, base))

    def ask(*arguments: str) -> bytes:
        return checkout.run_git(list(arguments), repository=git).stdout.strip()

    assert ask("rev-list", "--all", "--reflog").decode().split() == [base]
    objects = ask("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").decode()
    assert [line.split()[0] for line in objects.splitlines() if line.endswith(" commit")] == [base]
    assert ask("status", "--porcelain") == b""
    assert ask("remote") == ask("tag") == b""
    assert ask("fsck", "--unreachable", "--no-reflogs") == b""
    assert not (git / ".git" / "logs").exists() and not (git / ".git" / "ORIG_HEAD").exists()
    assert merge not in objects


def test_blobs_missing_from_an_incomplete_clone_are_left_out_and_named(tmp_path: Path) -> None:
    repo = init(tmp_path / "upstream")
    base = commit(repo, "base", {"k.py": b"a = 1\n", "big.bin": b"\0" * 100, "dir/keep.txt": b"k"})
    merge = commit(repo, "pr", {"k.py": b"a = 2\n"})
    blob = checkout.run_git(["rev-parse", f"{base}:big.bin"], repository=repo).stdout.decode().strip()
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    entry = make_task(tmp_path, base, merge, {"url": str(repo)})
    tree = base_tree(entry, tmp_path / "tree", clone=repo)
    assert tree.omitted == ("big.bin",)
    assert tree.commit != base
    assert (tree.path / "k.py").read_bytes() == b"a = 1\n"
    assert (tree.path / "dir" / "keep.txt").exists() and not (tree.path / "big.bin").exists()
    assert checkout.run_git(["status", "--porcelain"], repository=tree.path).stdout == b""


def test_82_both_halves_of_a_landed_diff_apply_in_either_order(tmp_path: Path) -> None:
    folder = case_folder("82-split-source-and-tests")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    repo = init(tmp_path / "repo")
    base = commit_tree_of(repo, "base", folder / "base")
    head = commit_tree_of(repo, "head", folder / "head")
    split = checkout.split_paths(checkout.changed_paths(repo, base, head), DEFAULT_SPLIT)
    assert list(split.tests) == expected["test_patch_paths"]
    assert list(split.source) == expected["source_patch_paths"]
    halves = [checkout.diff(repo, base, head, paths) for paths in (split.source, split.tests)]
    for order in (halves, halves[::-1]):
        checkout.run_git(["reset", "-q", "--hard", base], repository=repo)
        for half in order:
            checkout.run_git(["apply", "--index"], repository=repo, stdin=half)
        written = checkout.run_git(["write-tree"], repository=repo).stdout.decode().strip()
        assert written == tree_id(repo, head)


def test_a_series_gives_the_same_commits_under_any_configuration(tmp_path: Path) -> None:
    source = init(tmp_path / "source")
    commit(source, "one", {"a.py": b"a = 1\r\nb = 2\n", "sp ace.txt": "ü\n".encode()})
    commit(source, "two", {"a.py": b"a = 2\r\nb = 2\n"})
    series = tmp_path / "series"
    checkout.run_git(["format-patch", "-q", "--root", "--binary", "-o", str(series), "HEAD"], repository=source)
    checkout.rebuild_series(series, tmp_path / "first", "rtb <rtb@example.invalid>")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n autocrlf = true\n[user]\n name = x\n[commit]\n gpgsign = true\n")
    script = (
        "from pathlib import Path; from rtb.checkout import rebuild_series; import sys, os; os.umask(0o077);"
        "rebuild_series(Path(sys.argv[1]), Path(sys.argv[2]), 'rtb <rtb@example.invalid>')"
    )
    env = {**os.environ, "HOME": str(home), "TZ": "Asia/Tokyo", "LC_ALL": "C", "GIT_AUTHOR_NAME": "Eve"}
    subprocess.run(["python", "-c", script, str(series), str(tmp_path / "second")], env=env, check=True, timeout=60)
    assert tree_id(tmp_path / "first") == tree_id(tmp_path / "second") == tree_id(source)
    ids = [checkout.run_git(["rev-list", "HEAD"], repository=tmp_path / name).stdout for name in ("first", "second")]
    assert ids[0] == ids[1]
    with pytest.raises(GitFailed):
        (series / "0003-bad.patch").write_text("From x\nSubject: [PATCH] bad\n\n---\nnonsense\n")
        checkout.rebuild_series(series, tmp_path / "third", "rtb <rtb@example.invalid>")
