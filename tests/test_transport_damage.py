"""What transport does to a patch: undone, proven and named, or refused."""

from __future__ import annotations

import zlib
from base64 import b85encode
from hashlib import sha1

import pytest

from harness.patching import apply_patch
from rtb.git_objects import GitObjects
from tests.patched_trees import BASE, EDIT, EDITED, colour, diff_of, files_of, outcome, tree_of


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
