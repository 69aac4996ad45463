"""Many diffs from two git processes are byte for byte those of a process each."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from rtb.checkout import changed_paths, diff
from rtb.errors import GitFailed
from rtb.landed_diff import landed_diffs

WHO = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x.invalid", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@x.invalid", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip
ID = b"0123456789abcdef0123456789abcdef01234567\n"


def git(where: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=where, env={**os.environ, **WHO}, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """Five commits with everything that could be taken for a border between files or commits."""
    git(tmp_path, "init", "-q", "-b", "main")
    commits = []

    def commit(files: dict[str, bytes | None]) -> None:
        for name, data in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True) if data is None else path.write_bytes(data)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", f"{len(commits)}")
        commits.append(git(tmp_path, "rev-parse", "HEAD"))

    commit({"a.py": b"x = 1\n", "b c.py": b"one\r\ntwo\r\n", "gone.txt": b"bye\n", "bin": bytes(range(256)) * 40})
    commit({
        "a.py": ID + b"diff --git a/x b/x\n" + ID, "b c.py": b"one\r\n2\r\n", "gone.txt": None, "empty": b"",
        "bin": os.urandom(9000), "t\xe4st \"q\".py": b"no newline at the end", "d/new.py": b"def f():\n    pass\n",
    })  # fmt: skip
    git(tmp_path, "mv", "a.py", "moved.py")
    (tmp_path / "link").symlink_to("moved.py")
    (tmp_path / "d" / "new.py").chmod(0o755)
    commit({"empty": b"diff --git a/y b/y\n"})
    commit({})  # nothing landed
    commit({"bin": None, "link": None, "big.py": b"".join(b"line %d\n" % number for number in range(5000))})
    return tmp_path, commits


def test_every_landed_diff_is_the_one_of_a_process_of_its_own(history: tuple[Path, list[str]]) -> None:
    where, commits = history
    # Bases need not be parents: a pull request's base may lie further back.
    pairs = [*pairwise(commits)]
    pairs[-1] = (commits[0], commits[-1])
    found = landed_diffs(where, pairs)
    assert list(found) == [landed for _, landed in pairs]
    for base, landed in pairs:
        paths = changed_paths(where, base, landed)
        assert sorted(found[landed].paths) == sorted(paths)
        assert found[landed].over(paths) == diff(where, base, landed, paths)
        for path in paths:
            assert found[landed].over([path]) == diff(where, base, landed, [path])
    assert found[commits[3]].paths == ()


def test_no_change_asks_git_nothing_and_an_unknown_commit_is_said(history: tuple[Path, list[str]]) -> None:
    where, commits = history
    assert landed_diffs(where / "nowhere", []) == {}
    for base, landed in ((commits[0], "f" * 40), ("f" * 40, commits[1])):
        with pytest.raises(GitFailed, match="f" * 40):
            landed_diffs(where, [(commits[0], commits[1]), (base, landed)][landed == commits[1] :])
