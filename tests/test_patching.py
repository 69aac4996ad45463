"""A model's patch onto a tree: strict, repaired and proven, or refused whole."""

from __future__ import annotations

import zlib
from base64 import b85encode
from collections.abc import Iterator, Mapping
from hashlib import sha1
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.patch_result import PatchResult
from harness.patching import apply_patch
from harness.trusted_tree import trusted_tree
from harness.work_directory import apply_to_directory
from rtb.checkout import run_git
from rtb.errors import ExpectedError
from rtb.git_objects import GitObjects, TreeEntry, borrow_objects

FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
Files = Mapping[str, bytes]


@pytest.fixture(scope="module")
def objects() -> Iterator[GitObjects]:
    with borrow_objects(None) as opened:
        yield opened


def tree_of(objects: GitObjects, files: Files, modes: Mapping[str, int] | None = None) -> str:
    ids = objects.store(list(files.values()))
    entries = {
        path: TreeEntry((modes or {}).get(path, 0o100644), name) for path, name in zip(files, ids, strict=True)
    }
    return objects.with_entries(None, entries)


def files_of(objects: GitObjects, tree: str) -> dict[str, bytes]:
    entries = objects.listing(tree)
    blobs = objects.blobs(entry.id for entry in entries.values())
    return {path: blobs[entry.id] for path, entry in entries.items()}


def diff_of(objects: GitObjects, old: str, new: str, *options: str) -> bytes:
    return objects.run(["diff-tree", "-p", "--binary", *options, old, new]).stdout


def outcome(objects: GitObjects, files: Files, patch: bytes) -> tuple[PatchResult, dict[str, bytes] | None]:
    result = apply_patch(objects, tree_of(objects, files), patch)
    return result, files_of(objects, result.tree) if result.tree is not None else None


BASE = b"a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\nh = 8\n"
EDIT = b"""diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,7 +1,7 @@
 a = 1
 b = 2
 c = 3
-d = 4
+d = 40
 e = 5
 f = 6
 g = 7
"""
EDITED = BASE.replace(b"d = 4\n", b"d = 40\n")


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


# ---- transport damage


def colour(patch: bytes) -> bytes:
    def paint(line: bytes) -> bytes:
        if line.startswith((b"diff", b"---", b"+++", b"index")):
            return b"\x1b[1m" + line + b"\x1b[m"
        if line.startswith(b"@@"):
            return b"\x1b[36m" + line + b"\x1b[m"
        if line.startswith(b"-"):
            return b"\x1b[31m" + line + b"\x1b[m"
        return b"\x1b[32m+\x1b[m\x1b[32m" + line[1:] + b"\x1b[m" if line.startswith(b"+") else line

    return b"\n".join(paint(line) for line in patch.split(b"\n"))


def noprefix(patch: bytes) -> bytes:
    return b"--- sub/calc.py.orig\n+++ sub/calc.py\n" + b"".join(patch.splitlines(keepends=True)[3:])


DAMAGED = {
    "final-newline": EDIT.replace(b" g = 7\n", b" g = 7"),
    "crlf": EDIT.replace(b"\n", b"\r\n"),
    "crlf-headers": b"".join(
        line.replace(b"\n", b"\r\n") if at < 4 else line for at, line in enumerate(EDIT.splitlines(keepends=True))
    ),
    "colour": colour(EDIT),
    "recount": EDIT.replace(b"-1,7 +1,7", b"-1,3 +1,3"),
}


@pytest.mark.parametrize("method", DAMAGED)
def test_transport_damage_is_undone_and_named(objects: GitObjects, method: str) -> None:
    result, files = outcome(objects, {"calc.py": BASE}, DAMAGED[method])
    assert (result.status, result.method) == ("applied", method), result.reason
    assert files == {"calc.py": EDITED}


def test_lost_crs_of_a_crlf_file_come_back(objects: GitObjects) -> None:
    result, files = outcome(objects, {"calc.py": BASE.replace(b"\n", b"\r\n")}, EDIT)
    assert (result.method, files) == ("missing-cr", {"calc.py": EDITED.replace(b"\n", b"\r\n")})


def test_crs_are_not_invented_in_a_file_with_mixed_line_ends(objects: GitObjects) -> None:
    mixed = BASE.replace(b"a = 1\n", b"a = 1\r\n")
    result, _ = outcome(objects, {"calc.py": mixed}, EDIT)
    assert result.status == "apply_failed"
    assert "'a = 1\\r'" in result.reason


def test_stripped_blank_context_comes_back_only_where_the_file_is_blank(objects: GitObjects) -> None:
    patch = b"--- a/m.py\n+++ b/m.py\n@@ -1,5 +1,5 @@\n-x = 1\n+x = 2\n y = 3\n z = 4"
    result, files = outcome(objects, {"m.py": b"x = 1\ny = 3\nz = 4\n\n\nrest\n"}, patch)
    assert (result.method, files) == ("final-newline+blank-context", {"m.py": b"x = 2\ny = 3\nz = 4\n\n\nrest\n"})
    cut = outcome(objects, {"m.py": b"x = 1\ny = 3\nz = 4\nw = 5\nv = 6\nrest\n"}, patch)[0]
    assert cut.status == "apply_failed"


def test_stripped_blank_context_of_a_crlf_file(objects: GitObjects) -> None:
    patch = b"--- a/m.py\n+++ b/m.py\n@@ -1,4 +1,4 @@\n-x = 1\n+x = 2\n y = 3\n z = 4"
    result, files = outcome(objects, {"m.py": b"x = 1\r\ny = 3\r\nz = 4\r\n\r\nq\r\n"}, patch)
    assert files == {"m.py": b"x = 2\r\ny = 3\r\nz = 4\r\n\r\nq\r\n"}, result.reason


def test_a_cut_patch_is_refused(objects: GitObjects) -> None:
    """Never half of what the model wrote, even where that half would fit."""
    for lines in range(4, len(EDIT.splitlines())):
        cut = b"".join(EDIT.splitlines(keepends=True)[:lines])
        result, files = outcome(objects, {"calc.py": BASE}, cut)
        assert (result.status, files) == ("apply_failed", None), cut


def test_a_new_file_is_never_silently_cut(objects: GitObjects) -> None:
    head = b"diff --git a/gen.py b/gen.py\nnew file mode 100644\n--- /dev/null\n+++ b/gen.py\n"
    patch = head + b"@@ -0,0 +1,2 @@\n+x\n+y\n+z\n+w\n"
    result, files = outcome(objects, {"k.py": b""}, patch)
    assert (result.method, files) == ("recount", {"k.py": b"", "gen.py": b"x\ny\nz\nw\n"})
    blank, _ = outcome(objects, {"k.py": b""}, patch.replace(b"+z", b"prose\n+z"))
    assert blank.status == "apply_failed"
    assert "line 9" in blank.reason


def test_a_hunk_whose_header_is_damaged_is_not_dropped(objects: GitObjects) -> None:
    two = EDIT.replace(b"@@ -1,7", b"+@@ -1,7") + b"@@ -8 +8 @@\n-h = 8\n+h = 80\n"
    result, _ = outcome(objects, {"calc.py": BASE}, two)
    assert result.status == "apply_failed"
    assert "line 4" in result.reason


def test_words_and_lists_after_a_rename(objects: GitObjects) -> None:
    patch = b"diff --git a/x.py b/y.py\nsimilarity index 100%\nrename from x.py\nrename to y.py\n\nDone:\n- moved\n"
    result, files = outcome(objects, {"x.py": b"x\n"}, patch)
    assert (result.method, files) == ("strict", {"y.py": b"x\n"}), result.reason


def test_backup_copy_and_missing_prefix_in_a_folder(objects: GitObjects) -> None:
    result, files = outcome(objects, {"sub/calc.py": BASE}, noprefix(EDIT))
    assert (result.method, files) == ("paths", {"sub/calc.py": EDITED})


def test_git_diff_without_prefixes(objects: GitObjects) -> None:
    """git itself would take the first folder for the prefix, and put a new file one level up without a word."""
    base = {"pkg/calc.py": BASE, "top.py": b"t\n", "pkg/moved.py": b"m\n" * 9, "calc.py": b"other\n"}
    after = {
        "pkg/calc.py": EDITED,
        "pkg/new.py": b"n\n",
        "top.py": b"u\n",
        "pkg/gone/moved.py": b"m\n" * 9,
        "calc.py": b"other\n",
    }
    start, end = tree_of(objects, base), tree_of(objects, after)
    for names in (["pkg/new.py"], ["pkg/calc.py"], []):
        patch = objects.run(
            ["diff-tree", "-p", "-M", "--no-prefix", start, end, *(["--", *names] if names else [])]
        ).stdout
        result = apply_patch(objects, start, patch)
        assert (result.status, result.method) == ("applied", "paths"), result.reason
        assert result.tree is not None
        wanted = after if not names else {**base, **{name: after[name] for name in names}}
        assert files_of(objects, result.tree) == wanted


def test_prefixes_only_below_the_first_line(objects: GitObjects) -> None:
    """As models write it by hand; git goes by the lines below."""
    patch = EDIT.replace(b"a/calc.py b/calc.py", b"calc.py calc.py", 1)
    result, files = outcome(objects, {"calc.py": BASE}, patch)
    assert (result.method, files) == ("strict", {"calc.py": EDITED}), result.reason
    sub = EDIT.replace(b"a/calc.py b/calc.py", b"pkg/calc.py pkg/calc.py", 1).replace(
        b"/calc.py\n", b"/pkg/calc.py\n"
    )
    result, files = outcome(objects, {"pkg/calc.py": BASE}, sub.replace(b"pkg/pkg", b"pkg"))
    assert files == {"pkg/calc.py": EDITED}, result.reason


def test_a_new_file_named_without_prefix_in_a_folder_of_the_tree(objects: GitObjects) -> None:
    patch = b"--- /dev/null\n+++ pkg/new.py\n@@ -0,0 +1 @@\n+n\n"
    result, files = outcome(objects, {"pkg/calc.py": BASE}, patch)
    assert (result.method, files) == ("paths", {"pkg/calc.py": BASE, "pkg/new.py": b"n\n"})
    plain, files = outcome(objects, {"calc.py": BASE}, patch.replace(b"pkg", b"b"))
    assert (plain.method, files) == ("strict", {"calc.py": BASE, "new.py": b"n\n"})


@pytest.mark.parametrize("operation", ["modified", "created"])
def test_a_binary_stub_is_dropped_by_name(objects: GitObjects, operation: str) -> None:
    head = b"diff --git a/logo.png b/logo.png\n"
    stub = head + b"index bcd86f8..0206398 100644\nBinary files a/logo.png and b/logo.png differ\n"
    if operation == "created":
        stub = head + b"new file mode 100644\nindex 0000000..0206398\nBinary files /dev/null and b/logo.png differ\n"
    base = {"calc.py": BASE, "logo.png": b"\0\1"} if operation == "modified" else {"calc.py": BASE}
    result, files = outcome(objects, base, stub + EDIT)
    assert (result.method, files) == ("dropped-sections", {**base, "calc.py": EDITED})
    assert [path for path, _ in result.dropped] == ["logo.png"]
    alone, _ = outcome(objects, base, stub)
    assert (alone.status, "logo.png" in alone.reason) == ("apply_failed", True)


def test_an_object_id_alone_brings_no_bytes_in(objects: GitObjects) -> None:
    """git would take the contents by id from what it knows: here the id of a later fix's file."""
    (fix,) = objects.store([b"secret fix\n\0"])
    old = sha1(b"blob 2\0\0\1").hexdigest()
    head = f"diff --git a/k.bin b/k.bin\nindex {old}..{fix} 100644\n".encode()
    stub = head + b"Binary files a/k.bin and b/k.bin differ\n"
    assert outcome(objects, {"k.bin": b"\0\1", "calc.py": BASE}, stub + EDIT)[1] == {
        "k.bin": b"\0\1",
        "calc.py": EDITED,
    }
    packed = zlib.compress(b"other")
    line = bytes([64 + len(packed)]) + b85encode(packed + b"\0" * (-len(packed) % 4))
    data = head + b"GIT binary patch\nliteral 5\n" + line + b"\n\n"
    result, files = outcome(objects, {"k.bin": b"\0\1"}, data)
    assert (result.status, files) == ("apply_failed", None)


def test_a_binary_file_that_was_moved_and_changed(objects: GitObjects) -> None:
    data = b"\0" + bytes(range(200)) * 40
    start, end = tree_of(objects, {"a.bin": data}), tree_of(objects, {"b/c.bin": data + b"more\0"})
    patch = diff_of(objects, start, end, "-M", "--full-index")
    assert b"rename from a.bin" in patch
    result = apply_patch(objects, start, patch)
    assert (result.method, result.tree) == ("strict", end), result.reason
    copied = tree_of(objects, {"a.bin": data, "b/c.bin": data + b"more\0"})
    patch = diff_of(objects, start, copied, "-C", "--find-copies-harder", "--full-index")
    assert b"copy from a.bin" in patch
    assert apply_patch(objects, start, patch).tree == copied


def test_a_stripped_binary_patch_is_not_passed_over_in_silence(objects: GitObjects) -> None:
    """git exits with 0 and leaves the file as it was when the blank line after the data is missing."""
    base = {"calc.py": BASE, "k.bin": b"\0" * 90 + b"old"}
    start, end = tree_of(objects, base), tree_of(objects, {**base, "k.bin": b"\0" * 90 + b"new"})
    patch = EDIT + diff_of(objects, start, end, "--full-index").strip()
    result, files = outcome(objects, base, patch)
    assert (result.method, files) == ("final-newline", {"calc.py": EDITED, "k.bin": b"\0" * 90 + b"new"}), result
    assert outcome(objects, base, patch[:-9])[0].status == "apply_failed"


def test_a_stripped_patch_of_a_crlf_file_gets_its_last_cr_back(objects: GitObjects) -> None:
    result, files = outcome(objects, {"calc.py": BASE.replace(b"\n", b"\r\n")}, crlf_body(EDIT).rstrip())
    assert (result.method, files) == ("final-newline+missing-cr", {"calc.py": EDITED.replace(b"\n", b"\r\n")})


def crlf_body(patch: bytes) -> bytes:
    lines = patch.splitlines(keepends=True)
    return b"".join(lines[:4] + [line.replace(b"\n", b"\r\n") for line in lines[4:]])


def test_a_submodule_pointer_is_dropped_by_name(objects: GitObjects) -> None:
    for start in (b"index " + b"1" * 40 + b".." + b"2" * 40 + b" 160000\n", b"new file mode 160000\n"):
        bump = b"diff --git a/vendor b/vendor\n" + start
        bump += b"--- a/vendor\n+++ b/vendor\n@@ -1 +1 @@\n-Subproject commit " + b"1" * 40
        bump += b"\n+Subproject commit " + b"2" * 40 + b"\n"
        result, files = outcome(objects, {"calc.py": BASE}, bump + EDIT)
        assert ([path for path, _ in result.dropped], files) == (["vendor"], {"calc.py": EDITED})


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


# ---- unsafe


def created(path: bytes, mode: bytes = b"100644", text: bytes = b"x") -> bytes:
    return (
        b"diff --git a/" + path + b" b/" + path + b"\nnew file mode " + mode + b"\n--- /dev/null\n+++ b/" + path
        + b"\n@@ -0,0 +1 @@\n+" + text + b"\n\\ No newline at end of file\n"
    )  # fmt: skip


UNSAFE = [
    b"../escape.py", b"a/../../escape.py", b"/etc/passwd", b".git/hooks/post-checkout", b".GIT/config",
    b"sub/.git/config", ".g\u200cit/config".encode(), b"git~1/config", b".git./config", b".git /config",
    b".git::$INDEX_ALLOCATION/config", b"a\\..\\..\\b.py", b".git\\config", b"./x.py", b"x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("path", UNSAFE)
def test_unsafe_paths_are_rejected(objects: GitObjects, path: bytes) -> None:
    result, _ = outcome(objects, {"calc.py": BASE}, EDIT + created(path))
    assert result.status == "unsafe_rejected", result
    assert result.change is None


@pytest.mark.parametrize(
    "path", [b"..foo/x.py", b".github/x.yml", b".gitignore", b"x..y.py", b"git/x.py", "é/ü.py".encode()]
)
def test_paths_that_only_look_unsafe_are_fine(objects: GitObjects, path: bytes) -> None:
    result, files = outcome(objects, {"calc.py": BASE}, created(path))
    assert files == {"calc.py": BASE, path.decode(): b"x"}, result.reason


@pytest.mark.parametrize("target", [b"/etc", b"../../up", b"sub/../../up", b"inner/..", b".git/config", b"loop"])
def test_links_out_of_the_tree_are_rejected(objects: GitObjects, target: bytes) -> None:
    base = tree_of(objects, {"calc.py": BASE, "inner": b"sub/..", "sub/x": b""}, {"inner": 0o120000})
    result = apply_patch(objects, base, created(b"loop", b"120000", target))
    assert result.status == "unsafe_rejected", result


def test_a_link_inside_the_tree_is_carried_as_a_link(objects: GitObjects) -> None:
    result, _ = outcome(objects, {"calc.py": BASE, "sub/x": b""}, created(b"sub/here", b"120000", b"../calc.py"))
    assert result.change is not None, result.reason
    assert (result.change.write["sub/here"].mode, result.change.write["sub/here"].data) == (0o120000, b"../calc.py")


def test_nothing_goes_through_a_link(objects: GitObjects) -> None:
    base = tree_of(objects, {"calc.py": BASE, "link": b"sub", "sub/x": b"x\n"}, {"link": 0o120000})
    through = apply_patch(objects, base, created(b"link/new.py"))
    assert through.status == "unsafe_rejected"
    assert "beyond the symbolic link link" in through.reason
    both = apply_patch(objects, base, created(b"fresh", b"120000", b"sub") + created(b"fresh/new.py"))
    assert both.status == "unsafe_rejected"


@pytest.mark.parametrize("mode", [b"104755", b"102755", b"040000", b"060000"])
def test_odd_modes_are_rejected(objects: GitObjects, mode: bytes) -> None:
    assert outcome(objects, {"calc.py": BASE}, created(b"tool", mode))[0].status == "unsafe_rejected"


def test_a_file_in_the_way_of_a_folder_is_refused(objects: GitObjects) -> None:
    result, _ = outcome(objects, {"calc.py": BASE}, created(b"calc.py/inner.py"))
    assert result.status == "apply_failed"


def test_binary_bomb_is_refused(objects: GitObjects) -> None:
    delta = zlib.compress(b"\x02" + b"\xff\xff\xff\xff\x7f" + b"\x90\x01")
    line = bytes([64 + len(delta)]) + b85encode(delta + b"\0" * (-len(delta) % 4))
    ids = f"{sha1(b'blob 2' + bytes([0, 0, 1])).hexdigest()}..{'1' * 40}".encode()
    patch = b"diff --git a/k.bin b/k.bin\nindex " + ids + b" 100644\nGIT binary patch\ndelta 8\n" + line + b"\n\n"
    assert outcome(objects, {"k.bin": b"\0\1"}, patch)[0].status == "apply_failed"


def packed(data: bytes) -> bytes:
    """The lines of a binary patch that hold these bytes."""
    deflated, lines = zlib.compress(data), []
    for at in range(0, len(deflated), 52):
        part = deflated[at : at + 52]
        lines.append(bytes([len(part) + (64 if len(part) <= 26 else 70)]) + b85encode(part, pad=True))
    return b"\n".join(lines) + b"\n\n"


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


# git would take 192 MB for the delta and 800 MB for the literal, on this side of the sandbox; a patch may have 20 MB.
DELTA = _varint(1 << 16) + _varint(3000 << 16) + b"\x80" * 3000
SWOLLEN = {
    "a delta": (b"delta %d\n" % len(DELTA) + packed(DELTA), "the binary delta makes 196608000 bytes"),
    "a delta that only git reads": (b"delta %d x\n" % len(DELTA) + packed(DELTA), "no size of binary data"),
    "a literal": (b"literal %d\n" % (400 << 20) + packed(b""), "the binary data of the patch are 419430400 bytes"),
    "the way back": (b"literal 1\n" + packed(b"a") + b"literal 999999999\n" + packed(b""), "are 1000000000 bytes"),
    "any number": (b"literal " + b"9" * 5000 + b"\n" + packed(b""), "bytes, more than"),
}


@pytest.mark.parametrize("name", SWOLLEN)
def test_data_that_swell_are_not_given_to_git(objects: GitObjects, name: str) -> None:
    data, words = SWOLLEN[name]
    ids = sha1(b"blob 65536\0" + bytes(1 << 16)).hexdigest().encode() + b".." + b"1" * 40
    patch = b"diff --git a/k.bin b/k.bin\nindex " + ids + b" 100644\nGIT binary patch\n" + data + b"\n"
    result, _ = outcome(objects, {"k.bin": bytes(1 << 16)}, patch)
    assert result.status == "apply_failed"
    assert words in result.reason


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


# ---- trusted files


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


# ---- properties

LINE = st.sampled_from(
    [
        b"",
        b" ",
        b"x = 1",
        b"x = 1 ",
        b"\ty",
        b"-z",
        b"+z",
        b"-- a",
        b"++ b",
        b"@@ -1 +1 @@",
        b"\\ q",
        b"\xff\xfe",
        b"```",
    ]
)
TEXT = st.builds(
    lambda lines, eol, last: eol.join(lines) + (eol if last else b""),
    st.lists(LINE, max_size=14),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
NAME = st.sampled_from(
    ["a.py", "sub/b.py", "sp ace/c d.py", 'q"uote.py', "é.py", "tab\there.py", "b/b b/x.py", "new\nline"]
)
TREE = st.dictionaries(NAME, st.one_of(TEXT, st.just(b"\0bin")), min_size=1, max_size=4)


@FEW
@given(old=TREE, new=TREE, context=st.sampled_from(["-U3", "-U1", "-U10"]))
def test_any_git_diff_gives_exactly_the_edited_tree(
    objects: GitObjects, old: Files, new: Files, context: str
) -> None:
    start, end = tree_of(objects, old), tree_of(objects, new)
    patch = diff_of(objects, start, end, context, "--full-index")
    result = apply_patch(objects, start, patch)
    if start == end:
        assert result.status == "empty_patch"
    else:
        assert (result.status, result.method, result.tree) == ("applied", "strict", end), result.reason


DAMAGES = {
    "final newline": lambda patch: patch.removesuffix(b"\n"),
    "rstrip": lambda patch: patch.rstrip(),
    "strip": lambda patch: patch.strip(),
    "blank context": lambda patch: patch.replace(b"\n \n", b"\n\n"),
    "trailing white space": lambda patch: b"\n".join(line.rstrip(b" \t") for line in patch.split(b"\n")),
    "crlf": lambda patch: patch.replace(b"\n", b"\r\n"),
    "crlf once": lambda patch: patch.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "lost crs": lambda patch: patch.replace(b"\r\n", b"\n"),
    "colour": colour,
    "cut": lambda patch: patch[: len(patch) // 2],
    "cut lines": lambda patch: b"".join(patch.splitlines(keepends=True)[: patch.count(b"\n") * 2 // 3]),
    "fence": lambda patch: b"Here:\n\n```diff\n" + patch + b"```\nDone.\n",
    "counts": lambda patch: patch.replace(b",3 ", b",2 "),
}


@FEW
@given(old=TEXT, new=TEXT, damage=st.sampled_from(sorted(DAMAGES)))
def test_one_damage_gives_the_edited_tree_or_none(objects: GitObjects, old: bytes, new: bytes, damage: str) -> None:
    start, end = tree_of(objects, {"a.py": old}), tree_of(objects, {"a.py": new})
    patch = DAMAGES[damage](diff_of(objects, start, end, "--full-index"))
    result = apply_patch(objects, start, patch)
    assert result.status in ("applied", "apply_failed", "empty_patch"), result.reason
    if result.status == "applied":
        assert result.tree is not None
        # What git itself takes is taken, but never without a word when the header knows better.
        said = any("index line" in note for note in result.notes)
        assert files_of(objects, result.tree) == {"a.py": new} or (result.method == "strict" and said), patch


@FEW
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from(
                [
                    *EDIT.splitlines(keepends=True),
                    b"diff --git ",
                    b"@@ -",
                    b"GIT binary patch\n",
                    b"literal 5\n",
                    b"\0",
                    b"rename to \n",
                ]
            ),
            max_size=30,
        ).map(b"".join),
    )
)
def test_garbage_is_a_value(objects: GitObjects, garbage: bytes) -> None:
    result = apply_patch(objects, tree_of(objects, {"calc.py": BASE}), garbage)
    assert (result.tree is not None) == (result.status == "applied")
    assert result.status == "applied" or result.reason


def test_scratch_stores_go_away() -> None:
    with borrow_objects(None) as opened:
        home = opened.home
        assert home.is_dir()
    assert not home.exists()
