"""Small trees and patches over them, as tests of patching use them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.patch_result import PatchResult
from harness.patching import apply_patch
from rtb.git_objects import GitObjects, TreeEntry

Files = Mapping[str, bytes]


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


def created(path: bytes, mode: bytes = b"100644", text: bytes = b"x") -> bytes:
    return (
        b"diff --git a/" + path + b" b/" + path + b"\nnew file mode " + mode + b"\n--- /dev/null\n+++ b/" + path
        + b"\n@@ -0,0 +1 @@\n+" + text + b"\n\\ No newline at end of file\n"
    )  # fmt: skip
