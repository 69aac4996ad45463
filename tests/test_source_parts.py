"""Parts of a file: another version shares what is the same, and reads as if it had been read alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rtb.python_source import parts
from rtb.source_parts import Part, parts_again, parts_of
from rtb.triton_source import read

LINES = st.sampled_from(
    [
        "import triton\n", "from triton import jit\n", "BLOCK = 64\n", "BLOCK = 128\n", "@triton.jit\n", "@jit\n",
        "def kernel(x, n):\n    tl.store(x, n * BLOCK)\n", "def kernel(x, n):\n    tl.store(x, n)\n",
        "def run(x):\n    kernel[(1,)](x, 2)\n", "def other():\n    return 1\n", "if True:\n    y = 1\n",
        "else:\n    y = 2\n", '"""text\n', "\n", "# a comment\n", "x = [\n1,\n]\n",
        "class A:\n    def f(self):\n        kernel[(2,)](self, 1)\n",
        "make = partial(jit)\n", "@make\n",
    ]
)  # fmt: skip
FILES = st.lists(LINES, max_size=14).map("".join)


@settings(max_examples=400, deadline=None)
@given(FILES, FILES, st.booleans())
def test_a_version_read_after_another_is_as_read_alone(before: str, after: str, cut_last: bool) -> None:
    after = after.rstrip("\n") if cut_last else after
    old, _, _ = parts_again(parts_of(before), after)
    assert [part.text for part in old] == parts(after)
    first, second = (f"import triton\n# jit\n{text}".encode() for text in (before, after))
    alone = read(second, "a.py")
    assert read(second, "a.py", before=read(first, "a.py")).source == alone.source


def test_equal_parts_are_shared() -> None:
    text = "import a\n\n\ndef f():\n    return 1\n\n\ndef g():\n    return 2\n\n\ndef h():\n    return 3\n"
    old = parts_of(text)
    new, first, last = parts_again(old, text.replace("return 2", "return 22"))
    assert (first, last) == (1, 1) and new[0] is old[0] and new[-1] is old[-1]
    assert "".join(part.text for part in new) == text.replace("return 2", "return 22")


def test_launches_are_seen_through_brackets() -> None:
    assert Part("kernel[grid](x)").launches
    assert Part("kernel[(cdiv(n, m['BLOCK']),)](x)").launches
    assert Part("kernel [\n  grid\n](x)").launches
    assert not Part("x = [f](y)").launches
    assert not Part("a[b[c[d]]](x)").launches, "two levels are no grid anybody writes"
    assert not Part("[see](https://example.org)").launches
