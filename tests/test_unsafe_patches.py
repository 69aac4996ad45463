"""Patches that reach out of the tree, or swell: rejected before git sees them."""

from __future__ import annotations

import zlib
from base64 import b85encode
from hashlib import sha1

import pytest

from harness.patching import apply_patch
from rtb.git_objects import GitObjects
from tests.patched_trees import BASE, EDIT, created, outcome, tree_of

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
