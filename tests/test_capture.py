"""An agent's work as one patch, whatever it did to the tree; what is captured applies strictly to the base."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.patching import apply_patch
from rtb.artefacts import artefact, rules_file
from rtb.capture import Capture, capture, capture_tree
from rtb.checkout import run_git
from rtb.errors import ExpectedError
from rtb.git_objects import borrow_objects

CASES = Path(os.environ.get("RTB_CASES", Path(__file__).resolve().parents[2] / "shared" / "cases"))
IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]


def committed(top: Path, files: dict[str, bytes]) -> str:
    top.mkdir(exist_ok=True)
    for path, data in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(data)
    run_git(["init", "-q", "-b", "main"], repository=top)
    return commit(top)


def commit(top: Path) -> str:
    run_git(["add", "-A"], repository=top)
    run_git([*IDENTITY, "commit", "-q", "-m", "c"], repository=top)
    return run_git(["rev-parse", "HEAD"], repository=top).stdout.decode().strip()


def applied(top: Path, base: str, patch: bytes) -> dict[str, bytes]:
    """The files after strict application to the base."""
    with borrow_objects(top) as objects:
        start = objects.tree_of(base)
        result = apply_patch(objects, start, patch)
        assert (result.status, result.method) in (("applied", "strict"), ("empty_patch", "")), result.reason
        entries = objects.listing(result.tree or start)
        blobs = objects.blobs(entry.id for entry in entries.values())
        return {path: blobs[entry.id] for path, entry in entries.items()}


def left_out(result: Capture) -> list[str]:
    return [path for path, _ in result.left_out]


def test_committed_staged_edited_new_deleted_moved_and_binary(tmp_path: Path) -> None:
    top = tmp_path / "t"
    base = committed(
        top, {"a.py": b"a\n", "b.py": b"b\n", "gone.py": b"g\n", "old/name.py": b"n\n" * 30, "run": b"r\n"}
    )
    (top / "a.py").write_bytes(b"a committed\n")
    commit(top)
    (top / "b.py").write_bytes(b"b staged\n")
    run_git(["add", "b.py"], repository=top)
    (top / "b.py").write_bytes(b"b edited\r\n")
    (top / "gone.py").unlink()
    (top / "new").mkdir()
    (top / "old" / "name.py").rename(top / "new" / "name.py")
    (top / "new" / "tuned.bin").write_bytes(bytes(range(256)) * 3)
    (top / "new" / "empty.py").write_bytes(b"")
    (top / "no newline \u00e9.py").write_bytes(b"x = 1")
    (top / "run").chmod(0o755)
    patch = capture(top, base)
    assert applied(top, base, patch) == {
        "a.py": b"a committed\n", "b.py": b"b edited\r\n", "new/name.py": b"n\n" * 30, "run": b"r\n",
        "new/tuned.bin": bytes(range(256)) * 3, "new/empty.py": b"", "no newline \u00e9.py": b"x = 1",
    }  # fmt: skip
    assert b"new mode 100755" in patch


def test_nothing_done_is_an_empty_patch_and_the_tree_stays(tmp_path: Path) -> None:
    base = committed(tmp_path / "t", {"a.py": b"a\n"})
    before = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert capture_tree(tmp_path / "t", base) == Capture(b"", ())
    assert {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()} == before


def test_artefacts_ignored_and_large_files_are_left_out_and_named(tmp_path: Path) -> None:
    top = tmp_path / "t"
    base = committed(top, {"a.py": b"a\n", ".gitignore": b"*.tmp\nbuild/\n", "kept.so": b"\0tracked"})
    for path in (
        "x.tmp",
        "build/gen.py",
        "__pycache__/a.cpython-311.pyc",
        ".triton/cache/k.cubin",
        "a.py.orig",
        "lib.so",
    ):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(b"artefact")
    (top / "weights.bin").write_bytes(b"\0" * 2000)
    (top / "kept.so").write_bytes(b"\0changed")
    result = capture_tree(top, base, max_untracked_bytes=1000)
    assert applied(top, base, result.patch) == {
        "a.py": b"a\n",
        ".gitignore": b"*.tmp\nbuild/\n",
        "kept.so": b"\0changed",
    }
    assert left_out(result) == [
        ".triton/cache/k.cubin", "__pycache__/a.cpython-311.pyc", "a.py.orig", "lib.so", "weights.bin",
    ]  # fmt: skip
    assert "over the limit of 1000" in dict(result.left_out)["weights.bin"]


def test_the_rules_mean_to_us_what_they_mean_to_git(tmp_path: Path) -> None:
    """An agent's sandbox hands the same file to git itself."""
    paths = [
        "core/ops.py", "conf.d/a.py", "lib/a.py", "build/a.py", "core", "core.12", "a.so", "a.sox", "m.pyc",
        "x/.triton/k", ".triton", "venv/bin/python", "venv", "a.egg-info/PKG-INFO", "a.egg-info", "c$py.class", "b~",
        "log",
        "a.log", "a.log/b.py", "deep/__pycache__/m.py", "patch.txt", "my-patch.txt", ".coverage.host", "k.ptx/x",
        "CMakeLists.txt",
    ]  # fmt: skip
    for number, path in enumerate(paths):  # a tree for each: some are file and folder
        top = tmp_path / str(number)
        run_git(["init", "-q", str(top)], repository=tmp_path)
        (top / ".git" / "info").mkdir(exist_ok=True)
        (top / ".git" / "info" / "exclude").write_bytes(rules_file())
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).touch()
        seen = run_git(["ls-files", "-o", "--exclude-standard"], repository=top).stdout
        assert bool(artefact(path)) is (seen == b""), path
    assert not any(map(artefact, ("core/ops.py", "conf.d/a.py", "lib/a.py", "build/a.py", "core", "CMakeLists.txt")))


def test_nested_repositories(tmp_path: Path) -> None:
    """Work in a repository the agent made is taken; a clone of somebody else's is not; neither is a pointer."""
    top = tmp_path / "t"
    base = committed(top, {"a.py": b"a\n", ".gitignore": b"*.tmp\n", "tracked/x.py": b"x\n"})
    committed(top / "own", {"z.py": b"z\n", "x.tmp": b"t\n"})
    (top / "own" / "__pycache__").mkdir()
    (top / "own" / "__pycache__" / "z.pyc").write_bytes(b"p")
    run_git(["clone", "-q", str(top / "own"), str(top / "foreign")], repository=tmp_path)
    run_git(["init", "-q"], repository=top / "tracked")
    (top / "tracked" / "x.py").write_bytes(b"x2\n")
    result = capture_tree(top, base)
    files = applied(top, base, result.patch)
    assert files == {"a.py": b"a\n", ".gitignore": b"*.tmp\n", "tracked/x.py": b"x2\n", "own/z.py": b"z\n"}
    assert left_out(result) == ["foreign/", "own/__pycache__/z.pyc"]
    assert b"Subproject" not in result.patch


def test_links_and_things_that_are_no_files(tmp_path: Path) -> None:
    top = tmp_path / "t"
    base = committed(top, {"a.py": b"a\n", "pipe.py": b"p\n", "dir/x.py": b"x\n", "dir/y.py": b"y\n"})
    (top / "inside").symlink_to("a.py")
    (top / "outside").symlink_to("/etc/passwd")
    (top / "up").symlink_to("../elsewhere")
    (top / "pipe.py").unlink()
    os.mkfifo(top / "pipe.py")
    for name in ("x.py", "y.py"):
        (top / "dir" / name).unlink()
    (top / "dir").rmdir()
    (top / "dir").symlink_to("a.py")
    result = capture_tree(top, base)
    assert applied(top, base, result.patch) == {"a.py": b"a\n", "inside": b"a.py", "dir": b"a.py"}
    assert left_out(result) == ["outside", "up"]


def test_the_trees_own_git_settings_have_no_say(tmp_path: Path) -> None:
    """Filters, monitors, excludes and attributes an agent may set neither run nor change bytes."""
    top, witness = tmp_path / "t", tmp_path / "ran"
    base = committed(top, {"a.py": b"a\n", "crlf.py": b"c\r\n"})
    with (top / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {witness}"\n\tautocrlf = input\n')
        config.write(f'[filter "evil"]\n\tclean = "touch {witness}; cat"\n\tsmudge = cat\n')
    (top / ".git" / "info").mkdir(exist_ok=True)
    (top / ".git" / "info" / "exclude").write_text("hidden.py\n")
    (top / ".gitattributes").write_text("*.py text eol=lf filter=evil -diff\n")
    (top / "hidden.py").write_bytes(b"h\r\n")
    (top / "a.py").write_bytes(b"a\r\nb\n")
    files = applied(top, base, capture(top, base))
    assert {path: files[path] for path in ("a.py", "crlf.py", "hidden.py")} == {
        "a.py": b"a\r\nb\n", "crlf.py": b"c\r\n", "hidden.py": b"h\r\n",
    }  # fmt: skip
    assert not witness.exists()


def test_line_ends_a_checkout_filter_made_are_no_work_of_the_agent(tmp_path: Path) -> None:
    base = committed(tmp_path / "t", {"a.bat": b"a\nb\n", "b.bat": b"a\nb\n"})
    (tmp_path / "t" / "a.bat").write_bytes(b"a\r\nb\r\n")
    (tmp_path / "t" / "b.bat").write_bytes(b"a\r\nc\r\n")
    result = capture_tree(tmp_path / "t", base)
    assert applied(tmp_path / "t", base, result.patch) == {"a.bat": b"a\nb\n", "b.bat": b"a\r\nc\r\n"}
    assert left_out(result) == ["a.bat"]


def test_base_objects_may_come_from_another_repository(tmp_path: Path) -> None:
    """The agent may have thrown away the tree's history, or the whole git directory."""
    base = committed(tmp_path / "trusted", {"a.py": b"a\n"})
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.py").write_bytes(b"b\n")
    patch = capture(tmp_path / "t", base, repository=tmp_path / "trusted")
    assert applied(tmp_path / "trusted", base, patch) == {"a.py": b"b\n"}
    with pytest.raises(ExpectedError, match="not a git repository"):
        capture(tmp_path / "t", base)
    with pytest.raises(ExpectedError, match="no commit or tree"):
        capture(tmp_path / "trusted", "1" * 40)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a tree to another user")
def test_a_tree_of_another_owner_is_captured(tmp_path: Path) -> None:
    base = committed(tmp_path / "t", {"m.py": b"x = 1\n"})
    (tmp_path / "t" / "m.py").write_bytes(b"x = 2\n")
    for path in [tmp_path / "t", *(tmp_path / "t").rglob("*")]:
        os.chown(path, 1234, 1234)
    assert applied(tmp_path / "t", base, capture(tmp_path / "t", base)) == {"m.py": b"x = 2\n"}


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases at {CASES} (set RTB_CASES)")
def test_case_47_everything_is_captured(tmp_path: Path) -> None:
    subprocess.run(["bash", CASES / "47-capture-everything" / "setup.sh"], cwd=tmp_path, check=True, timeout=60)
    base = (tmp_path / "BASE").read_text().strip()
    patch = capture(tmp_path / "repo", base)
    files = applied(tmp_path / "repo", base, patch)
    assert files == {
        ".gitignore": b"*.log\nbuild/\n", "m.py": b"x = 2\n", "new_mod.py": b"n = 1\n", "lib/z.py": b"z = 1\n",
        "dump.rdb": b"REDIS\0\1\2",
    }  # fmt: skip
    assert b"Subproject commit" not in patch


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases at {CASES} (set RTB_CASES)")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a tree to another user")
def test_case_51_dubious_ownership(tmp_path: Path) -> None:
    subprocess.run(["bash", CASES / "51-dubious-ownership" / "setup.sh"], cwd=tmp_path, check=True, timeout=60)
    base = run_git(["rev-parse", "HEAD"], repository=tmp_path / "repo").stdout.decode().strip()
    assert applied(tmp_path / "repo", base, capture(tmp_path / "repo", base)) == {"m.py": b"x = 2\n"}


NAMES = st.sampled_from(["a.py", "b/c.py", "b/d e.py", 'q"x.py', "\u00e9.py", "-dash.py"])
CONTENTS = st.one_of(st.binary(max_size=30), st.sampled_from([b"", b"x\n", b"x\r\n", b"x", b"\xff\n", b"a\nb\nc\n"]))
TREES = st.dictionaries(NAMES, CONTENTS, min_size=1, max_size=4)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=TREES, after=TREES)
def test_any_tree_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    top = tmp_path_factory.mktemp("any")
    base = committed(top, before)
    for path in before:
        (top / path).unlink()
    for path, data in after.items():
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).write_bytes(data)
    result = capture_tree(top, base)
    same = {path: before[path] for path in left_out(result)}
    assert applied(top, base, result.patch) == {**after, **same}


def test_capture_needs_no_terminal_or_home(tmp_path: Path) -> None:
    """In a bare environment, as in a container without a user entry."""
    base = committed(tmp_path / "t", {"m.py": b"x = 1\n"})
    (tmp_path / "t" / "m.py").write_bytes(b"x = 2\n")
    code = "import sys; from pathlib import Path; from rtb.capture import capture; "
    code += "sys.stdout.buffer.write(capture(Path(sys.argv[1]), sys.argv[2]))"
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t"), base],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": root},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == capture(tmp_path / "t", base)
