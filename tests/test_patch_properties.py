"""Properties of patching: any diff git makes, any one damage, any garbage."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.patching import apply_patch
from rtb.git_objects import GitObjects
from tests.patched_trees import BASE, EDIT, Files, colour, diff_of, files_of, tree_of

FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
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
