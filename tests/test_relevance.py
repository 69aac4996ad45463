"""Whether a file can hold a Triton function: a version alone, and what differs to another, give the same answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtb.relevance import Irrelevant, irrelevant
from rtb.triton_source import read_source

WRAPPERS = frozenset(("own.fast_jit",))
FAR = "value = [1, 2, 3]\n" * 400  # 7 kB: more than a trace reaches
PLAIN = f"# triton is spoken of\n{FAR}def middle():\n    return grid\n{FAR}"
TRACES = {
    "a kernel": "@triton.jit\ndef k(x):\n    pass\n",
    "a launch": "k[grid](x)\n",
    "a launch over lines": "k[\n    (1,\n    2)\n](x)\n",
    "the library": "from kernels.triton_kernels import f\n",
    "a wrapper": "@fast_jit\ndef k(x):\n    pass\n",
    "a template": "text = '{{def_kernel()}}'\n",
}
NO_TRACES = ("x = 2\n", "calls[0](1 + 1\n", "a[b[c[0]]] (x)\n", "# jitter, jits\n", "")


def passed_over(text: str) -> Irrelevant:
    found = irrelevant(text.encode(), "a.py", WRAPPERS)
    assert found is not None
    return found


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("place", ["# triton is spoken of\n", "def middle():\n", "return grid\n"])
def test_what_comes_into_a_file_is_seen_wherever_it_comes(name: str, place: str) -> None:
    after = PLAIN.replace(place, place + TRACES[name])
    assert irrelevant(after.encode(), "a.py", WRAPPERS, passed_over(PLAIN)) is None
    assert irrelevant((PLAIN + TRACES[name]).encode(), "a.py", WRAPPERS, passed_over(PLAIN)) is None


def test_what_two_places_make_together_is_seen() -> None:
    """A launch or a decorator of which only one letter is new, or that a removal puts together."""
    for before, after in (
        (f"{FAR}# triton\nk[\n{'  1,' * 600}\n] (x)\n{FAR}", f"{FAR}# triton\nk[\n{'  1,' * 600}\n](x)\n{FAR}"),
        (f"{FAR}# triton\n(\n{'  1,' * 600}\n](x)\n{FAR}", f"{FAR}# triton\nk[\n{'  1,' * 600}\n](x)\n{FAR}"),
        (f"{FAR}# triton\n@jix\n{FAR}", f"{FAR}# triton\n@jit\n{FAR}"),
        (f"{FAR}# triton\n# {'-' * 9000}jits\n{FAR}", f"{FAR}# triton\n@ {'-' * 9000}jits\n{FAR}"),
        (f"# triton 1\n{FAR}{FAR}x = 1\n{FAR}", f"# triton 2\n{FAR}{FAR}k[grid](x)\n{FAR}"),
        (f"# triton\n{FAR}{FAR}x = 1\n{FAR}y", f"# triton\n{FAR}{FAR}k[grid](x)\n{FAR}z"),
        (f"# trito\n@jit\n{FAR}\n{FAR}", f"# triton\n@jit\n{FAR}\n{FAR}"),
        (f"{FAR}# triton\nji{FAR}t\n", f"{FAR}# triton\njit\n"),
    ):
        assert irrelevant(after.encode(), "a.py", WRAPPERS, passed_over(before)) is None
        assert irrelevant(after.encode(), "a.py", WRAPPERS) is None


PIECES = st.lists(
    st.sampled_from([*TRACES.values(), *NO_TRACES, "triton\n", "jit", "@", "k[", "](", "]", "[", "\n", FAR]),
    max_size=8,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(PIECES, PIECES, PIECES, PIECES)
def test_another_version_changes_no_answer(begin: str, old: str, new: str, end: str) -> None:
    before, after = f"{begin}{old}{end}".encode(), f"{begin}{new}{end}".encode()
    known = irrelevant(before, "a.py", WRAPPERS)
    if known is None:
        return
    alone, again = irrelevant(after, "a.py", WRAPPERS), irrelevant(after, "a.py", WRAPPERS, known)
    assert (alone is None) == (again is None)
    if again is not None:
        assert again.data == after


def test_a_chain_of_versions_that_speak_of_triton_only_later() -> None:
    silent = passed_over(f"k[grid](x)\n{FAR}")
    assert not silent.speaks
    assert irrelevant(f"k[grid](x)\n{FAR}# triton\n".encode(), "a.py", WRAPPERS, silent) is None
    assert irrelevant(f"k[grid](x)\n{FAR}# more\n".encode(), "a.py", WRAPPERS, silent) is not None


def test_a_launch_with_a_long_grid_is_read_as_one() -> None:
    grid = "lambda meta: (triton.cdiv(n, meta['BLOCK_SIZE']), " + "1, " * 600 + ")"
    source = f"import triton\n\n\n@triton.jit\ndef k(x):\n    pass\n\n\ndef run(x, n):\n    k[{grid}](x)\n"
    found = read_source(source.encode(), "a.py")
    assert [(item.name, item.role) for item in getattr(found, "functions", ())] == [
        ("k", "kernel"),
        ("run", "launcher"),
    ]
