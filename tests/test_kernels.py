"""Which Triton functions a change touches: every way of writing a kernel, and every way of not changing one."""

from __future__ import annotations

import pytest

from rtb.kernels import Comparison, FunctionChange, compare
from rtb.triton_source import read_source

HEAD = "import triton\nimport triton.language as tl\n\n\n"
KERNEL = '''@triton.jit
def k(x, n: tl.constexpr):
    """Doc."""
    # a comment
    a = tl.load(x)
    tl.store(x, a + n)
'''
LAUNCH = "\n\ndef launch(x):\n    k[(1,)](x, 4)\n"
BASE = HEAD + KERNEL + LAUNCH


def changes(before: str | bytes | None, after: str | bytes | None, path: str = "pkg/a.py") -> Comparison:
    def side(source: str | bytes | None) -> dict[str, bytes]:
        return {} if source is None else {path: source.encode() if isinstance(source, str) else source}

    return compare(side(before), side(after))


def told(found: Comparison) -> list[tuple[str, str, str]]:
    return [(item.name, item.role, item.label) for item in found.changes]


def kernels_of(source: str | bytes, path: str = "pkg/a.py", wrappers: frozenset[str] = frozenset()) -> list[str]:
    found = read_source(source.encode() if isinstance(source, str) else source, path, wrappers)
    return [item.name for item in found.kernels]  # type: ignore[union-attr]


BODY = "(x):\n    return x\n"
SPELLINGS = {
    "plain": HEAD + "@triton.jit\ndef f" + BODY,
    "module alias": "import triton as tt\n@tt.jit\ndef f" + BODY,
    "from import": "from triton import jit\n@jit\ndef f" + BODY,
    "from import as": "from triton import jit as compile_it\n@compile_it\ndef f" + BODY,
    "runtime": "from triton.runtime.jit import jit\n@jit\ndef f" + BODY,
    "with arguments": HEAD + "@triton.jit(do_not_specialize=['x'])\ndef f" + BODY,
    "project's triton": "from vllm.triton_utils import tl, triton\n@triton.jit\ndef f" + BODY,
    "assigned alias": HEAD + "my_jit = triton.jit\n\n@my_jit\ndef f" + BODY,
    "conditional alias": HEAD + "dev = triton.jit if True else None\n\n@dev\ndef f" + BODY,
    "partial": HEAD + "import functools\nfast = functools.partial(triton.jit, debug=True)\n@fast\ndef f" + BODY,
    "autotune above": HEAD
    + "@triton.autotune(configs=[triton.Config({}, num_warps=n) for n in (1, 2)], key=['x'])\n"
    + "@triton.heuristics({'B': lambda args: 1})\n@triton.jit\ndef f"
    + BODY,
    "project wrapper above": HEAD + "from lib import libentry\n@libentry()\n@triton.jit\ndef f" + BODY,
    "as a call": HEAD + "def f" + BODY + "\nf_jitted = triton.jit(f)\n",
    "own wrapper": HEAD + "def deco(fn):\n    return triton.jit(fn)\n\n@deco\ndef f" + BODY,
    "star import": "from triton import *\nimport triton\n@jit\ndef f" + BODY,
    "under if": HEAD + "if True:\n    @triton.jit\n    def f(x):\n        return x\nelse:\n    f = None\n",
    "in a try": "try:\n    import triton\nexcept ImportError:\n    triton = None\n@triton.jit\ndef f" + BODY,
    "byte order mark": b"\xef\xbb\xbf" + (HEAD + "@triton.jit\ndef f" + BODY).encode(),
    "CRLF": (HEAD + "@triton.jit\ndef f" + BODY).replace("\n", "\r\n").encode(),
    "Latin-1 with a cookie": b"# -*- coding: latin-1 -*-\n# caf\xe9\n"
    + (HEAD + "@triton.jit\ndef f" + BODY).encode(),
    "decorator over lines": HEAD + "@triton.jit(\n    debug=True,\n)\ndef f" + BODY,
    "form feed": HEAD + "\f\n@triton.jit\ndef f" + BODY,
    "docstring at column 0": HEAD
    + '@triton.jit\ndef f(x):\n    """One.\n\nimport os\ndef other\n    """\n    return x\n',
}


@pytest.mark.parametrize("source", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_of_jit_is_found(source: str | bytes) -> None:
    assert kernels_of(source) == ["f"]


def test_tritons_own_library_imports_jit_relatively() -> None:
    source = "from ..runtime.jit import jit\nfrom . import core\n\n"
    source += "@core._tensor_member_fn\n@jit\ndef cdiv(x):\n    return x\n"
    assert kernels_of(source, "python/triton/language/standard.py") == ["cdiv"]


def test_a_projects_own_decorator_is_data() -> None:
    source = "# triton\nfrom proj.utils import jit_kernel\n\n@jit_kernel\ndef f(x):\n    return x\n"
    assert kernels_of(source) == []
    assert kernels_of(source, wrappers=frozenset(["proj.utils.jit_kernel"])) == ["f"]


def test_methods_and_nested_functions_have_qualified_names() -> None:
    source = HEAD + (
        "class A:\n    @triton.jit\n    def m(x):\n        return x\n\n"
        "def outer():\n    @triton.jit\n    def inner(x):\n        return x\n    return inner\n"
    )
    assert kernels_of(source) == ["A.m", "outer.<locals>.inner"]


def test_a_large_class_is_read_by_members_and_gives_the_same_names() -> None:
    filler = "".join(f"    def plain_{n}(self):\n        return {n}\n\n" for n in range(80))
    source = (
        HEAD + "class Big(Base):\n    size = 4\n\n" + filler + "    @triton.jit\n    def m(x):\n        return x\n"
    )
    assert kernels_of(source) == ["Big.m"]


OTHERS = {
    "cute": "import triton\nimport cutlass.cute as cute\n@cute.jit\ndef f(x):\n    return x\n",
    "gluon": "import triton\nfrom triton.experimental import gluon\n@gluon.jit\ndef f(x):\n    return x\n",
    "tilelang": "# triton\nimport tilelang\n@tilelang.jit(out_idx=[-1])\ndef f(x):\n    return x\n",
    "nki": "# triton\nfrom neuronxcc import nki\n@nki.jit\ndef f(x):\n    return x\n",
    "numba": "import triton\nfrom numba import jit, njit\n@jit\ndef f(x):\n    return x\n@njit\ndef g(x): return x\n",
    "jax": "# triton\nimport jax\n@jax.jit\ndef f(x):\n    return x\n",
    "torchscript": "import triton, torch\n@torch.jit.script\ndef f(x):\n    return x\n",
}


@pytest.mark.parametrize("source", OTHERS.values(), ids=OTHERS.keys())
def test_other_languages_are_no_triton(source: str) -> None:
    assert kernels_of(source) == []
    assert changes(None, source).kernel_edits == ()


def test_another_languages_kernel_is_named_as_such() -> None:
    assert changes(None, OTHERS["gluon"]).dialects == ("triton.experimental.gluon.jit",)


EXAMPLES = {
    "docstring": 'import triton\ndef f():\n    """So:\n\n    @triton.jit\n    def k(x): ...\n    """\n    return 1\n',
    "module docstring": '"""\n@triton.jit\ndef k(x):\n    pass\n\n@triton.jit\ndef j(x): pass\n"""\nimport triton\n',
    "comment": "import triton\n# @triton.jit\n# def k(x): pass\n",
    "generated text": 'import triton\nCODE = "import triton\\n@triton.jit\\ndef k(x):\\n    return x\\n" + str(1)\n',
}


@pytest.mark.parametrize("source", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_text_that_shows_a_kernel_is_none(source: str) -> None:
    assert kernels_of(source) == []


TEMPLATE = """import triton
mm = TritonTemplate(
    name='mm',
    source=r'''
{{def_kernel("A", "B")}}
    x = 1
    # why
'''
)
"""


def test_a_template_string_is_a_kernel_of_its_own() -> None:
    assert kernels_of(TEMPLATE) == ["mm"]
    assert told(changes(TEMPLATE, TEMPLATE.replace("x = 1", "x = 2"))) == [("mm", "template", "body")]
    assert told(changes(TEMPLATE, TEMPLATE.replace("# why", "# because"))) == [("mm", "template", "text")]


def test_a_jinja_file_is_a_template() -> None:
    source = '{{def_kernel("A", "B")}}\n    x = 1  # triton jit\n'
    found = changes(source, source.replace("1", "2"), "third_party/amd_addmm.py.jinja")
    assert told(found) == [("amd_addmm", "template", "body")]


NOTHING = {
    "comment": BASE.replace("# a comment", "# another"),
    "docstring": BASE.replace('"""Doc."""', '"""Other words.\n\n    More.\n    """'),
    "no docstring": BASE.replace('    """Doc."""\n', ""),
    "layout": BASE.replace("tl.store(x, a + n)", "tl.store(\n        x,\n        (a + n),\n    )"),
    "import": BASE.replace("import triton\n", "import os\nimport triton\n"),
    "line ends": BASE.replace("\n", "\r\n"),
    "other spelling of jit": BASE.replace("@triton.jit", "@triton.jit()"),
    "local name": BASE.replace("a = tl", "value = tl").replace("a + n", "value + n"),
    "kernel's name": BASE.replace("k(x", "kk(x").replace("k[(", "kk[("),
}


@pytest.mark.parametrize("after", NOTHING.values(), ids=NOTHING.keys())
def test_what_is_only_said_differently_is_no_edit(after: str) -> None:
    found = changes(BASE, after)
    assert found.kernel_edits == () and found.launcher_edits == () and found.configurations == ()


def test_what_was_no_edit_is_said() -> None:
    assert told(changes(BASE, NOTHING["comment"])) == [("k", "kernel", "text")]
    assert ("kk", "kernel", "renamed") in told(changes(BASE, NOTHING["kernel's name"]))


def test_labels_of_real_edits() -> None:
    assert told(changes(HEAD, BASE)) == [("k", "kernel", "added"), ("launch", "launcher", "added")]
    assert told(changes(BASE, BASE.replace("a + n", "a - n"))) == [("k", "kernel", "body")]
    assert told(changes(BASE, BASE.replace("(x, n: tl.constexpr)", "(x, n)"))) == [("k", "kernel", "signature")]
    assert told(changes(BASE, BASE.replace("k[(1,)](x, 4)", "k[(2,)](x, 4)"))) == [("launch", "launcher", "body")]
    assert told(changes(BASE, HEAD)) == [("k", "kernel", "removed"), ("launch", "launcher", "removed")]
    assert not changes(BASE, HEAD).kernel_edits


def test_a_torch_function_that_becomes_a_kernel_is_added() -> None:
    before = HEAD + "def k(x, n):\n    return x + n\n"
    assert told(changes(before, BASE))[0] == ("k", "kernel", "added")


def test_configuration_only_is_told_apart() -> None:
    tuned = "@triton.autotune(configs=CONFIGS, key=['n'])\n"
    before = HEAD + "CONFIGS = [triton.Config({}, num_warps=4)]\n\n" + tuned + KERNEL
    after = before.replace("num_warps=4", "num_warps=8")
    found = changes(before, after)
    assert [(item.name, item.label) for item in found.configurations] == [("k", "config")]
    assert found.kernel_edits == ()
    function = HEAD + "def configs():\n    return [triton.Config({}, num_warps=4)]\n\n"
    function += "@triton.autotune(configs=configs(), key=['n'])\n" + KERNEL
    assert changes(function, function.replace("num_warps=4", "num_warps=8")).configurations


def test_what_stands_beside_a_kernel_in_a_condition_is_not_its_configuration() -> None:
    source = HEAD + (
        "def there():\n    return True\n\n\nif there():\n"
        "    @triton.autotune(configs=[triton.Config({'B': 1})], key=['n'])\n"
        "    @triton.jit\n    def k(x, n):\n        return n\n\n"
        "    @triton.jit\n    def other(x):\n        return 1\n"
    )
    assert told(changes(source, source.replace("return 1", "return 2"))) == [("other", "kernel", "body")]
    assert changes(source, source.replace("'B': 1", "'B': 2")).configurations


def test_what_heuristics_give_a_kernel_is_computed_with() -> None:
    source = HEAD + "@triton.heuristics({'EVEN': lambda args: args['n'] % 16 == 0})\n" + KERNEL
    assert told(changes(source, source.replace("16", "8"))) == [("k", "kernel", "constants")]


def test_a_configuration_list_inside_a_condition_is_seen() -> None:
    source = HEAD + (
        "if HAS_TRITON:\n    if HIP:\n        CONFIGS = [triton.Config({}, num_warps=4)]\n"
        "    else:\n        CONFIGS = [triton.Config({}, num_warps=8)]\n\n"
        "    @triton.autotune(configs=CONFIGS, key=['n'])\n    @triton.jit\n    def k(x, n):\n        return n\n"
    )
    for old in ("num_warps=4", "num_warps=8"):
        assert [item.name for item in changes(source, source.replace(old, "num_warps=2")).configurations] == ["k"]


def test_a_constant_a_kernel_reads_is_part_of_it() -> None:
    source = HEAD + "LOG2E: tl.constexpr = 1.44\n\n" + KERNEL.replace("a + n", "a * LOG2E")
    assert told(changes(source, source.replace("1.44", "1.4427"))) == [("k", "kernel", "constants")]


def test_a_device_function_is_told_from_a_kernel() -> None:
    source = (
        HEAD + "@triton.jit\ndef helper(a):\n    return a + 1\n\n\n" + KERNEL.replace("a + n", "helper(a)") + LAUNCH
    )
    found = changes(HEAD, source)
    assert [(item.name, item.role) for item in found.changes] == [
        ("helper", "device"),
        ("k", "kernel"),
        ("launch", "launcher"),
    ]


def test_functions_of_one_name_are_numbered() -> None:
    two = HEAD + (
        "if NEW:\n    @triton.jit\n    def f(x):\n        return x + 1\n"
        "else:\n    @triton.jit\n    def f(x):\n        return x + 2\n"
    )
    found = changes(two, two.replace("x + 2", "x + 3"))
    assert [(item.name, item.index, item.label) for item in found.changes] == [("f", 1, "body")]


def moved(before: dict[str, str], after: dict[str, str]) -> list[FunctionChange]:
    found = compare({k: v.encode() for k, v in before.items()}, {k: v.encode() for k, v in after.items()})
    return [item for item in found.changes if item.is_kernel]


LONG = HEAD + "@triton.jit\ndef k(x):\n" + "".join(f"    a{n} = tl.load(x + {n})\n" for n in range(12))


def test_moves_renames_and_copies_between_files() -> None:
    assert [item.label for item in moved({"a.py": LONG}, {"b.py": LONG})] == ["moved"]
    assert [item.label for item in moved({"a.py": LONG}, {"b.py": LONG.replace("def k", "def kk")})] == ["moved"]
    changed = moved({"a.py": LONG}, {"b.py": LONG.replace("x + 3", "x + 33")})
    assert [(item.label, item.origin) for item in changed] == [("moved_modified", "a.py:k")]
    copied = moved({"a.py": LONG}, {"a.py": LONG + "# more\n", "b.py": LONG})
    assert [item.label for item in copied] == ["copied"]


def test_a_helper_renamed_with_its_callers_is_no_edit() -> None:
    source = HEAD + "@triton.jit\ndef helper(a):\n    return a + 1\n\n\n" + KERNEL.replace("a + n", "helper(a)")
    assert {item.label for item in moved({"a.py": source}, {"a.py": source.replace("helper", "assist")})} == {
        "renamed"
    }


def test_a_call_of_another_helper_is_an_edit() -> None:
    helpers = (
        HEAD + "@triton.jit\ndef one(a):\n    return a + 1\n\n\n@triton.jit\ndef two(a):\n    return a + 2\n\n\n"
    )
    source = helpers + KERNEL.replace("a + n", "one(a)")
    found = changes(source, source.replace("tl.store(x, one(a))", "tl.store(x, two(a))"))
    assert ("k", "kernel", "body") in told(found)


UNREADABLE = {
    "python 2": (HEAD + "@triton.jit\ndef f(x):\n    print 'x'\n", "syntax_error"),
    "conflict markers": (
        HEAD + "@triton.jit\ndef f(x):\n<<<<<<< HEAD\n    return x\n=======\n>>>>>>> b\n",
        "syntax_error",
    ),
    "not UTF-8": (HEAD.encode() + b"@triton.jit\ndef f(x):\n    return '\xff'\n", "not_text"),
    "binary": (HEAD.encode() + b"@triton.jit\0", "binary"),
    "huge": (HEAD + "@triton.jit\ndef f(x): pass\n" + "#" * 1_100_000, "huge"),
    "unknown encoding": (b"# coding: nonesuch\n" + HEAD.encode() + b"@triton.jit\ndef f(x): pass\n", "not_text"),
}


@pytest.mark.parametrize(("source", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_is_a_counted_value(source: str | bytes, reason: str) -> None:
    found = changes(BASE, source)
    assert [why.reason for _, why in found.unreadable] == [reason]
    assert found.changes == (), "a file unreadable on one side must not look like removed kernels"


def test_a_launcher_of_an_imported_kernel_is_a_launcher() -> None:
    source = "from pkg.ops import copy_kernel  # triton\n\ndef launch(x):\n    copy_kernel[(1,)](x)\n"
    assert told(changes(None, source)) == [("launch", "launcher", "added")]


def test_a_table_of_functions_is_no_launcher() -> None:
    source = HEAD + "def choose(table, x):\n    return table[x](x)\n"
    assert told(changes(HEAD, source)) == []


def test_annotations_of_host_code_do_not_count() -> None:
    assert changes(BASE, BASE.replace("def launch(x):", "def launch(x: int | None) -> None:")).launcher_edits == ()
