"""A model's patch onto a tree: strict, repaired and proven, or refused whole."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest

from harness.patching import apply_patch
from harness.work_directory import apply_to_directory
from rtb.checkout import run_git
from rtb.errors import ExpectedError
from rtb.git_objects import GitObjects, borrow_objects
from tests.patched_trees import BASE, EDIT, EDITED, created, outcome, tree_of

# ---- strict


def test_a_clean_patch_is_applied_as_it_is(objects: GitObjects) -> None:
    result, files = outcome(objects, {"calc.py": BASE, "other.py": b"x\n"}, EDIT)
    assert (result.status, result.method, result.reason) == ("applied", "strict", "")
    assert files == {"calc.py": EDITED, "other.py": b"x\n"}
    assert [(item.path, item.old_mode, item.new_mode) for item in result.touched] == [("calc.py", 0o100644, 0o100644)]
    assert result.change is not None
    assert {path: entry.data for path, entry in result.change.write.items()} == {"calc.py": EDITED}
    assert result.change.delete == ()


def test_an_offset_is_taken_and_noted(objects: GitObjects) -> None:
    result, files = outcome(
        objects, {"calc.py": b"z = 0\ny = 0\n" + BASE}, EDIT.replace(b"@@ -1,7 +1,7", b"@@ -2,7 +2,7")
    )
    assert result.status == "applied"
    assert files == {"calc.py": b"z = 0\ny = 0\n" + EDITED}
    assert result.notes == ("calc.py: hunk 1 stands at line 3, 1 from the line it names",)


@pytest.mark.parametrize("patch", [b"", b"\n \t\n"])
def test_white_space_is_an_empty_patch(objects: GitObjects, patch: bytes) -> None:
    assert outcome(objects, {"calc.py": BASE}, patch)[0].status == "empty_patch"


def test_headers_without_hunks_are_no_empty_patch(objects: GitObjects) -> None:
    patch = (
        b"diff --git a/old/a b.py b/new/a b.py\nsimilarity index 100%\nrename from old/a b.py\nrename to new/a b.py\n"
        b"diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n"
        b"diff --git a/__init__.py b/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    )
    result, files = outcome(objects, {"old/a b.py": b"x\n", "run.sh": b"true\n"}, patch)
    assert files == {"new/a b.py": b"x\n", "run.sh": b"true\n", "__init__.py": b""}
    assert {item.path: item.new_mode for item in result.touched} == {
        "old/a b.py": None, "new/a b.py": 0o100644, "run.sh": 0o100755, "__init__.py": 0o100644,
    }  # fmt: skip
    assert result.change is not None
    assert result.change.delete == ("old/a b.py",)
    assert result.change.write["run.sh"].mode == 0o755


def test_prose_fence_and_signature_are_passed_over(objects: GitObjects) -> None:
    plain = EDIT.partition(b"\n")[2]
    for text in (
        b"I changed:\n- one thing\n\n```diff\n" + plain + b"```\n- and nothing else\n",
        plain + b"-- \n2.39.5\n\n",
        plain + b"\nWhat it does:\n\n- one thing\n  - and another\n",
    ):
        result, files = outcome(objects, {"calc.py": BASE}, text)
        assert (result.method, files) == ("strict", {"calc.py": EDITED})


def test_a_patch_is_data_whatever_its_lines_say(objects: GitObjects, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    _, files = outcome(
        objects, {"calc.py": BASE}, EDIT + b"EOF\ntouch %s\n$(touch %s)\n" % ((str(witness).encode(),) * 2)
    )
    assert files == {"calc.py": EDITED}
    assert not witness.exists()


def test_a_patch_over_the_argument_limit(objects: GitObjects) -> None:
    lines = b"".join(b"+v%05d = 1\n" % number for number in range(20_000))
    patch = b"--- a/calc.py\n+++ b/calc.py\n@@ -8 +8,20001 @@\n h = 8\n" + lines
    result, files = outcome(objects, {"calc.py": BASE}, patch)
    assert result.status == "applied", result.reason
    assert files is not None
    assert files["calc.py"].count(b"\n") == 20_008


def test_over_the_size_limit_is_refused(objects: GitObjects) -> None:
    result = apply_patch(objects, tree_of(objects, {"calc.py": BASE}), EDIT, limit_bytes=100)
    assert result.status == "apply_failed"
    assert "limit of 100" in result.reason
    assert "lines" in apply_patch(objects, tree_of(objects, {"calc.py": BASE}), b"+\n" * 700_000).reason
    many = EDIT + b"@@ -1 +1 @@\n" * 60_000
    assert "hunks" in apply_patch(objects, tree_of(objects, {"calc.py": BASE}), many).reason


# ---- refused whole, with a reason


def test_one_hunk_that_does_not_fit_refuses_all(objects: GitObjects) -> None:
    second = (
        b"diff --git a/b.py b/b.py\n--- a/b.py\n+++ b/b.py\n@@ -1,2 +1,2 @@\n-three = 33\n+three = 333\n four = 4\n"
    )
    result, files = outcome(objects, {"calc.py": BASE, "b.py": b"three = 3\nfour = 4\n"}, EDIT + second)
    assert (result.status, files, result.change) == ("apply_failed", None, None)
    for part in ("b.py", "hunk 1", "line 16 of the patch", "'three = 33'", "'three = 3'"):
        assert part in result.reason


def test_no_fuzz(objects: GitObjects) -> None:
    """A twin of the function that the context names is left alone."""
    base = b"".join(b"def f%d(x):\n    y = x\n    return 0\n\n\n" % number for number in (1, 2, 3))
    patch = b"--- a/d.py\n+++ b/d.py\n@@ -1,4 +1,4 @@\n def f0(x):\n     y = x\n-    return 0\n+    return 1\n \n"
    result, _ = outcome(objects, {"d.py": base}, patch)
    assert result.status == "apply_failed"
    assert "def f0(x):" in result.reason


def test_a_repaired_patch_with_two_possible_places_is_refused(objects: GitObjects) -> None:
    base = b"top\n" + b"a\nb\nc\n" * 3 + b"end\n"
    patch = b"--- a/d.py\n+++ b/d.py\n@@ -4,2 +4,2 @@\n a\n-b\n+B\n c\n"
    result, _ = outcome(objects, {"d.py": base}, patch)
    assert result.status == "apply_failed"
    assert "more than one place" in result.reason
    sure, files = outcome(objects, {"d.py": base}, patch.replace(b"@@ -4,2 +4,2", b"@@ -5,2 +5,2"))
    assert (sure.method, files) == ("recount", {"d.py": b"top\na\nb\nc\na\nB\nc\na\nb\nc\nend\n"})


@pytest.mark.parametrize(
    ("patch", "part"),
    [
        (b"I could not do it, sorry.\n", "no unified diff"),
        (EDIT.replace(b"calc.py", b"gone.py"), "gone.py is not in the base tree"),
        (b"diff --cc calc.py\n--- a/calc.py\n+++ b/calc.py\n@@@ -1,1 -1,1 +1,1 @@@\n++x\n", "merge diff"),
        (EDIT + b"diff --cc calc.py\n@@@ -1,1 -1,1 +1,1 @@@\n++x\n", "merge diff"),
        (EDIT.replace(b"--- a/calc.py\n", b"--- /dev/null\n").replace(b"diff --git", b"x"), "is there already"),
    ],
)
def test_reasons_say_what_and_where(objects: GitObjects, patch: bytes, part: str) -> None:
    result, _ = outcome(objects, {"calc.py": BASE}, patch)
    assert result.status == "apply_failed"
    assert part in result.reason


def test_stale_index_line_refuses_a_repair(objects: GitObjects) -> None:
    """The old id is the base's, so the new one is to be believed: the cut line `d = 4` is not what was meant."""
    old = sha1(b"blob %d\0" % len(BASE) + BASE).hexdigest()[:10]
    new = sha1(b"blob %d\0" % len(EDITED) + EDITED).hexdigest()[:10]
    edit = EDIT.replace(b"--- a", f"index {old}..{new} 100644\n--- a".encode())
    good = edit.replace(b" e = 5\n f = 6\n g = 7\n", b"").replace(b",7", b",4")
    base = {"calc.py": BASE}
    assert outcome(objects, base, edit[:-1])[0].method == "final-newline"
    assert outcome(objects, base, good[:-2])[0].status == "apply_failed"


# ---- isolation


def test_nothing_of_the_repository_has_a_say_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration, attributes and hooks of the repository, an outer one and the user's are not read."""
    run_git(["init", "-q"], repository=tmp_path)
    top = tmp_path / "inner"
    top.mkdir()
    run_git(["init", "-q"], repository=top)
    (top / "calc.py").write_bytes(BASE)
    (top / ".gitattributes").write_text("* text eol=crlf filter=evil whitespace=trailing-space\n")
    run_git(["add", "-A"], repository=top)
    run_git(["-c", "user.name=t", "-c", "user.email=t@e.invalid", "commit", "-qm", "b"], repository=top)
    base = run_git(["rev-parse", "HEAD"], repository=top).stdout.decode().strip()
    witness = tmp_path / "ran"
    with (top / ".git" / "config").open("a") as config:
        config.write(f'[apply]\n\twhitespace = error\n[core]\n\tfsmonitor = "touch {witness}"\n\tautocrlf = true\n')
        config.write(f'[filter "evil"]\n\tsmudge = touch {witness}\n\tclean = touch {witness}\n')
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with borrow_objects(top) as objects:
        result = apply_patch(objects, objects.tree_of(base), EDIT.replace(b"+d = 40", b"+d = 40 "))
        assert result.change is not None, result.reason
        assert result.change.write["calc.py"].data == EDITED.replace(b"d = 40", b"d = 40 ")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_outer_repository_is_not_taken_for_the_one_asked_for(tmp_path: Path) -> None:
    run_git(["init", "-q"], repository=tmp_path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(ExpectedError, match="not a git repository"), borrow_objects(tmp_path / "plain"):
        pass


def test_bare_and_linked_work_trees_are_read(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    run_git(["init", "-q"], repository=top)
    (top / "calc.py").write_bytes(BASE)
    run_git(["add", "-A"], repository=top)
    run_git(["-c", "user.name=t", "-c", "user.email=t@e.invalid", "commit", "-qm", "b"], repository=top)
    run_git(["worktree", "add", "-q", "--detach", str(tmp_path / "linked")], repository=top)
    run_git(["clone", "-q", "--bare", str(top), str(tmp_path / "bare.git")], repository=tmp_path)
    base = run_git(["rev-parse", "HEAD"], repository=top).stdout.decode().strip()
    for place in (top, tmp_path / "linked", tmp_path / "bare.git"):
        with borrow_objects(place) as objects:
            assert apply_patch(objects, objects.tree_of(base), EDIT).status == "applied"
            with pytest.raises(ExpectedError, match="no commit or tree"):
                objects.tree_of("1" * 40)


# ---- plain folders


def test_a_folder_is_patched_with_modes_links_and_removals(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "gone.py").write_bytes(b"x")
    (tmp_path / "calc.py").write_bytes(BASE)
    removal = created(b"old/gone.py").replace(b"new file", b"deleted file").replace(b"+x", b"-x")
    removal = removal.replace(
        b"--- /dev/null\n+++ b/old/gone.py\n@@ -0,0 +1 @@", b"--- a/old/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@"
    )
    patch = EDIT + created(b"bin/tool", b"100755") + created(b"bin/calc", b"120000", b"../calc.py") + removal
    result = apply_to_directory(tmp_path, patch)
    assert result.status == "applied", result.reason
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "bin",
        "bin/calc",
        "bin/tool",
        "calc.py",
    ]
    assert (tmp_path / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "bin" / "calc").read_bytes() == EDITED


def test_a_folder_is_left_alone_when_one_part_fails(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_bytes(BASE)
    (tmp_path / "taken.py").mkdir()
    for patch in (EDIT + created(b"taken.py"), EDIT + created(b"calc.py/x"), EDIT + created(b"../x"), EDIT[:-8]):
        assert apply_to_directory(tmp_path, patch).status in ("apply_failed", "unsafe_rejected")
        assert (tmp_path / "calc.py").read_bytes() == BASE
        assert sorted(path.name for path in tmp_path.iterdir()) == ["calc.py", "taken.py"]


def test_a_link_on_the_way_keeps_a_folder_closed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    assert apply_to_directory(tmp_path / "top", created(b"link/x.py")).status == "unsafe_rejected"
    assert list((tmp_path / "outside").iterdir()) == []


def test_scratch_stores_go_away() -> None:
    with borrow_objects(None) as opened:
        home = opened.home
        assert home.is_dir()
    assert not home.exists()
