"""The work tree's state as a patch: everything an agent did, bytes exact, whatever it did to the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rtb.capture import capture
from rtb.checkout import run_git
from rtb.errors import SandboxGone
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits
from scaffold.workbench import Workbench, workbench
from tests import gitrepo
from tests.cases import case_folder

BASE: dict[str, bytes | None] = {
    "m.py": b"x = 1\n",
    "gone.py": b"y = 1\n",
    "crlf.txt": b"a\r\nb\r\n",
    "latin.txt": b"caf\xe9\n",
    "old name.py": b"".join(b"line %d\n" % number for number in range(50)),
    "tool.sh": b"#!/bin/sh\n",
    "data.bin": bytes(range(256)),
    "keep.log": b"tracked, though ignored\n",
    ".gitignore": b"*.log\nbuild/\n",
    ".gitattributes": b"*.txt text=auto eol=lf filter=evil\n*.dat -diff\n",
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    repository = gitrepo.init(tmp_path / "base")
    gitrepo.commit(repository, "base", BASE)
    return repository


@contextmanager
def bench_on(tree: Path, parent: Path) -> Iterator[Workbench]:
    with ExitStack() as stack:
        box = stack.enter_context(
            open_local_sandbox(tree, env={}, path=os.environ["PATH"], limits=Limits(), parent=parent)
        )
        yield stack.enter_context(workbench(box))


@pytest.fixture
def bench(base: Path, tmp_path: Path) -> Iterator[Workbench]:
    with bench_on(base, tmp_path) as opened:
        yield opened


def apply(patch: bytes, base: Path, copy: Path) -> Path:
    """The base with a patch on it, by strict git apply."""
    shutil.copytree(base, copy, symlinks=True)
    run_git(["apply", "--whitespace=nowarn", "-"], repository=copy, stdin=patch)
    return copy


def do(bench: Workbench, script: str) -> None:
    seen = bench.execute(script, 60.0)
    assert seen.returncode == 0, seen.render()


def test_the_first_snapshot_is_no_part_of_the_attempts_own_time(bench: Workbench) -> None:
    assert bench.busy_seconds == 0.0
    seen = bench.execute("true", 60.0)
    after = bench.busy_seconds
    bench.snapshot()
    assert seen.seconds <= after < bench.busy_seconds


def test_an_untouched_tree_has_no_patch(bench: Workbench) -> None:
    do(bench, "ls && python3 -c 'print(1)' && git status")
    assert bench.snapshot(final=True).patch == b""


def test_every_kind_of_change_is_in_the_patch_and_applies_to_the_base(
    bench: Workbench, base: Path, tmp_path: Path
) -> None:
    do(
        bench,
        r"""
        printf 'x = 2\n' > m.py; rm gone.py; printf 'c\r\n' >> crlf.txt; printf '\351\n' >> latin.txt
        mv 'old name.py' 'new name.py'; chmod +x tool.sh; printf '\000\001' >> data.bin
        mkdir -p 'pkg/ü'; printf 'no newline' > 'pkg/ü/n.py'; : > empty.py; ln -s m.py link; ln -s /etc/passwd out
        ln -s ../../.. up; echo more >> keep.log; mkdir build; echo x > build/gen.py; echo x > a.log
        mkdir __pycache__ .triton; touch __pycache__/m.cpython-311.pyc .triton/k.ptx
        head -c 11000000 /dev/urandom > huge.bin; mkfifo pipe
        """,
    )
    found = bench.snapshot(final=True)
    tree = apply(found.patch, base, tmp_path / "copy")
    here = Path(bench.tree)
    for name in ("m.py", "crlf.txt", "latin.txt", "new name.py", "data.bin", "pkg/ü/n.py", "empty.py", "keep.log"):
        assert (tree / name).read_bytes() == (here / name).read_bytes(), name
    assert (tree / "tool.sh").stat().st_mode & 0o111
    assert (tree / "link").readlink() == Path("m.py")
    left = {"gone.py", "old name.py", "build", "a.log", "__pycache__", ".triton", "huge.bin", "out", "up"}
    assert not [name for name in left if (tree / name).exists() or (tree / name).is_symlink()]
    reasons = dict(found.left_out)
    assert "10485760 bytes" in reasons["huge.bin"]
    assert reasons["out"] == reasons["up"] == "a symbolic link out of the tree"
    assert reasons["build/"] == reasons["a.log"] == "ignored"


@pytest.mark.parametrize(
    "sabotage",
    [
        "git -c user.name=a -c user.email=a@e commit -qam work && git checkout -q --orphan other",
        "rm -rf .git",
        "rm -rf .git && git init -q . && git add -A && git -c user.name=a -c user.email=a@e commit -qm all",
        "rm -rf .git && echo gitdir: /nowhere > .git",
        "git config core.worktree /tmp && git config filter.evil.clean 'sed s/2/3/' && git config core.bare true",
        "mkdir -p .git/hooks; printf 'exit 1' > .git/hooks/pre-commit; chmod +x .git/hooks/*; touch .git/index.lock",
        "git update-index --assume-unchanged m.py && echo m.py > .git/info/exclude",
        "export GIT_DIR=/nowhere; git stash; true",
        "printf '[core]\\n\\texcludesFile = /dev/stdin\\n' > \"$HOME\"/.gitconfig",
    ],
)
def test_what_is_done_to_the_repository_itself_changes_nothing(bench: Workbench, sabotage: str) -> None:
    do(bench, "printf 'x = 2\\n' > m.py")
    do(bench, sabotage)
    patch = bench.snapshot(final=True).patch
    assert b"diff --git a/m.py b/m.py" in patch and b"-x = 1\n+x = 2\n" in patch
    assert patch.count(b"diff --git") == 1


def test_a_later_state_that_equals_the_first_has_no_patch(bench: Workbench) -> None:
    do(bench, "echo 'x = 2' > m.py")
    changed = bench.snapshot()
    do(bench, "echo 'x = 1' > m.py")
    assert changed.patch and bench.snapshot().patch == b""
    assert bench.last.tree == bench.first != changed.tree


def test_files_that_were_there_at_the_start_are_no_change(base: Path, tmp_path: Path) -> None:
    (base / "built.so").write_bytes(b"\x7fELF")  # an environment's build left it
    (base / "generated.py").write_bytes(b"g = 1\n")
    with bench_on(base, tmp_path) as bench:
        do(bench, "echo 'g = 2' > generated.py")
        patch = bench.snapshot(final=True).patch
    assert patch.count(b"diff --git") == 1 and b"-g = 1\n+g = 2\n" in patch


def test_case_47_capture_everything(tmp_path: Path) -> None:
    script = (case_folder("47-capture-everything") / "setup.sh").read_text()
    before, after = script.split("# the agent commits part of its work ...\n")
    subprocess.run(["bash", "-c", before], cwd=tmp_path, check=True, timeout=60)
    with bench_on(tmp_path / "repo", tmp_path) as bench:
        do(bench, f"git config user.email t@example.invalid && git config user.name t\n{after}")
        found = bench.snapshot(final=True)
        base = (tmp_path / "BASE").read_text().strip()
        other = capture(Path(bench.tree), base, repository=tmp_path / "repo")
    touched = {line.split(b" b/")[1] for line in found.patch.splitlines() if line.startswith(b"diff --git ")}
    assert touched == {b"m.py", b"new_mod.py", b"gone.py", b"lib/z.py", b"dump.rdb"}
    assert b"Subproject" not in found.patch and b"GIT binary patch" in found.patch
    assert ("build/", "ignored") in found.left_out
    # The capture of a tree on the host means the same (its binary data may be packed otherwise).
    trees = [apply(patch, tmp_path / "repo", tmp_path / name) for name, patch in (("a", found.patch), ("b", other))]
    for tree in trees:
        run_git(["add", "-A", "-f"], repository=tree)
    ids = {run_git(["write-tree"], repository=tree).stdout for tree in trees}
    assert len(ids) == 1


def test_case_51_a_tree_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a tree to another user")
    repository = gitrepo.init(tmp_path / "repo")
    gitrepo.commit(repository, "b", {"m.py": b"x = 1\n"})
    subprocess.run(["chown", "-R", "1234:1234", str(repository)], check=True, timeout=60)
    with bench_on(repository, tmp_path) as bench:
        assert (Path(bench.tree) / "m.py").stat().st_uid == 1234
        do(bench, "printf 'x = 2\\n' > m.py")
        assert b"-x = 1\n+x = 2\n" in bench.snapshot().patch


def test_a_repository_inside_is_taken_as_files(bench: Workbench, base: Path, tmp_path: Path) -> None:
    do(
        bench,
        "mkdir -p third/deep && cd third && git init -q && echo a > a.py && echo b > 'deep/b c.py' && git add -A && "
        "git -c user.name=a -c user.email=a@e commit -qm in && mkdir deep/inner && cd deep/inner && git init -q && "
        "echo c > c.py",
    )
    tree = apply(bench.snapshot(final=True).patch, base, tmp_path / "copy")
    files = {str(path.relative_to(tree)) for path in (tree / "third").rglob("*") if path.is_file()}
    assert files == {"third/a.py", "third/deep/b c.py", "third/deep/inner/c.py"}


def test_a_time_out_is_an_observation_and_kills_everything_the_command_started(bench: Workbench) -> None:
    seen = bench.execute("echo before; (sleep 7531; touch late) & sleep 7531", 1.0)
    assert (seen.returncode, seen.timed_out) == (-1, True)
    assert "stopped after 1 seconds" in seen.render() and "before" in seen.render()
    listing = bench.execute("ps -eo args | grep -c '[s]leep 7531'", 20.0)
    assert listing.output.text.strip() == "0"


def test_a_dead_sandbox_is_an_error_and_no_observation(base: Path, tmp_path: Path) -> None:
    opened = open_local_sandbox(base, env={}, path=os.environ["PATH"], limits=Limits(), parent=tmp_path)
    with opened as box, workbench(box) as bench:
        do(bench, "echo 'x = 2' > m.py")
        kept = bench.snapshot()
        box.kill()
        with pytest.raises(SandboxGone):
            bench.execute("ls", 10.0)
        assert bench.last == kept


def test_commands_do_not_wait_for_a_person(bench: Workbench) -> None:
    seen = bench.execute(
        "read -r x; echo \"got '$x'\"; git log; git diff; python3 -c 'import sys; print(sys.stdin.read())'",
        20.0,
    )
    assert not seen.timed_out and "got ''" in seen.output.text


def test_environment_variables_of_rtb_are_not_in_the_sandbox(base: Path, tmp_path: Path) -> None:
    os.environ["WORKBENCH_API_KEY"] = "sk-not-for-the-agent"
    try:
        with bench_on(base, tmp_path) as bench:
            assert "sk-not-for-the-agent" not in bench.execute("env; cat /proc/self/environ", 10.0).output.text
    finally:
        del os.environ["WORKBENCH_API_KEY"]


def test_case_49_expects_what_a_salvaged_patch_looks_like() -> None:
    """The shape that the solve tests check, from the case itself."""
    expected = json.loads((case_folder("49-agent-crash-before-submit") / "case.json").read_text())["expected"]
    assert expected["patch_origin"] == "salvaged" and expected["exit_status"] == "ContextWindowExceeded"
