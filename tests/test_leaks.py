"""Ways to later commits in a tree that must end at its base. More of them, in made trees, in test_environment.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from rtb.checkout import run_git
from rtb.leaks import find_leaks
from tests.cases import case_folder


def test_case_of_a_clone_that_was_reset(tmp_path: Path) -> None:
    folder = case_folder("86-future-commits-in-image")
    work = tmp_path / "case"
    work.mkdir()
    setup = (folder / "setup.sh").read_text()
    subprocess.run(["sh", "-c", setup], cwd=work, check=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)})
    base = (work / "BASE").read_text().strip()
    tree = work / "testbed"
    found = "\n".join(find_leaks(tree, base))
    for trace in ("refs/tags/v2", "ORIG_HEAD", "reflog", "other commits", "objects are not"):
        assert trace in found
    run_git(["tag", "-d", "v2"], repository=tree)
    run_git(["for-each-ref", "--format=delete %(refname)", "refs/remotes"], repository=tree)
    for name in ("ORIG_HEAD", "packed-refs"):
        (tree / ".git" / name).unlink(missing_ok=True)
    shutil.rmtree(tree / ".git" / "logs")
    shutil.rmtree(tree / ".git" / "refs" / "remotes", ignore_errors=True)
    run_git(["gc", "-q"], repository=tree)
    assert [leak for leak in find_leaks(tree, base) if "objects are not" in leak]  # the verified trap of the case
    run_git(["gc", "-q", "--prune=now"], repository=tree)
    assert find_leaks(tree, base) == []
