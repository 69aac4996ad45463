"""Sabotage must change results (or time) of the target and nothing else of the file; kernels must still run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtb.sabotage import SABOTAGES, CannotSabotage, Effort, Sabotage, sabotage, sabotage_files
from rtb.task import Target

KERNELS = '''\
"""Kernels. \u00e9\u00e8: columns count bytes."""
import torch
import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


@triton.jit
def row_norm(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """Each row by its root mean square."""
    row = tl.program_id(0)  # \u00e9
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    mean = tl.sum(square(x), axis=0) / columns
    tl.store(out_ptr + row * columns + offsets, (x / tl.sqrt(mean + 1e-6)).to(out_ptr.dtype.element_ty),
             mask=offsets < columns)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr):
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.arange(0, B)
    k = tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, K, B):
        a = tl.load(a_ptr + m[:, None] * K + (start + k)[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * B + n[None, :])
        acc += tl.dot(a, b)
    tl.store(c_ptr + m[:, None] * B + n[None, :], acc)


@triton.jit
def count(x_ptr, out_ptr, N: tl.constexpr):
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N)), axis=0))


@triton.jit
def nothing(x_ptr):
    pass


def run_norm(x):
    out = torch.empty_like(x)
    row_norm[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def run_norm_into(x, out):
    if x.numel() == 0:
        return
    out.copy_(run_norm(x))


class Runner:
    def matmul(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        matmul[(a.shape[0] // 16,)](a, b, c, a.shape[1], B=16)
        return c, a.shape


def run_count(x):
    out = torch.zeros(1, dtype=torch.int32)
    count[(4,)](x, out, N=16)
    return out
'''

RUN = """
import importlib, json, sys, torch

def results(module):
    torch.manual_seed(0)
    k = importlib.import_module(module)
    x = torch.randn(6, 24)
    a, b = torch.randn(32, 256), torch.randn(256, 16)
    into = torch.empty_like(x)
    k.run_norm_into(x, into)
    found = {"norm": k.run_norm(x), "half": k.run_norm(x.half()), "brain": k.run_norm(x.bfloat16()), "into": into,
             "matmul": k.Runner().matmul(a, b)[0], "count": k.run_count(torch.ones(64, dtype=torch.int32))}
    return {name: value.double().tolist() for name, value in found.items()}

print(json.dumps([results(f"variant{n}") for n in range(int(sys.argv[1]))]))
"""


def target(name: str, kind: str = "triton_kernel", index: int = 0) -> Target:
    return Target.model_validate(
        {"path": "kernels.py", "name": name, "kind": kind, "change": "modified", "index": index}
    )


def run(tmp_path: Path, sources: list[bytes]) -> list[dict[str, list[list[float]]]]:
    """What each variant of the file computes, in one process through the interpreter."""
    for number, source in enumerate(sources):
        (tmp_path / f"variant{number}.py").write_bytes(source)
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-c", RUN, str(len(sources))]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: list[dict[str, list[list[float]]]] = json.loads(done.stdout)
    return answer


CHANGES: list[tuple[str, str, Sabotage, set[str]]] = [
    ("row_norm", "triton_kernel", "scale", {"norm", "half", "brain", "into"}),
    ("row_norm", "triton_kernel", "drop_rows", {"norm", "half", "brain", "into"}),
    ("row_norm", "triton_kernel", "low_precision", {"norm", "half", "into"}),
    ("row_norm", "triton_kernel", "busy_loop", set()),
    ("square", "triton_kernel", "scale", {"norm", "half", "brain", "into"}),
    ("square", "triton_kernel", "drop_rows", {"norm", "half", "brain", "into"}),
    ("square", "triton_kernel", "busy_loop", set()),
    ("matmul", "triton_kernel", "scale", {"matmul"}),
    ("matmul", "triton_kernel", "drop_rows", {"matmul"}),
    ("matmul", "triton_kernel", "low_precision", {"matmul"}),
    ("matmul", "triton_kernel", "busy_loop", set()),
    ("count", "triton_kernel", "scale", {"count"}),
    ("count", "triton_kernel", "drop_rows", {"count"}),
    ("run_norm", "launcher", "scale", {"norm", "half", "brain", "into"}),
    ("run_norm", "launcher", "drop_rows", {"norm", "half", "brain", "into"}),
    ("run_norm", "launcher", "low_precision", {"norm", "half", "into"}),
    ("run_norm_into", "host", "scale", {"into"}),
    ("run_norm_into", "host", "busy_loop", set()),
    ("Runner.matmul", "host", "scale", {"matmul"}),
    ("run_count", "host", "scale", {"count"}),
]


@pytest.mark.slow
def test_every_kind_changes_what_the_target_computes_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    source = KERNELS.encode()
    effort = Effort(turns=3, microseconds=3)
    variants = [sabotage(source, target(name, kind), how, effort) for name, kind, how, _ in CHANGES]
    right, *wrongs = run(tmp_path, [source, *variants])
    assert right["count"] == [64.0]
    for (name, _, how, expected), wrong in zip(CHANGES, wrongs, strict=True):
        assert {key for key in right if right[key] != wrong[key]} == expected, (name, how)


@pytest.mark.parametrize("kind", SABOTAGES)
def test_bytes_outside_the_change_are_kept(kind: Sabotage) -> None:
    for source in (KERNELS.encode(), KERNELS.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + KERNELS.encode()):
        wrong = sabotage(source, target("matmul"), kind)
        ast.parse(wrong)
        assert wrong != source
        left = iter(wrong)
        assert all(byte in left for byte in source)  # insertions only: the source is a subsequence
        start = source.index(b"def matmul")
        assert wrong.startswith(source[:start])
        assert wrong.endswith(source[source.index(b"def count") :])


def test_a_busy_loop_counts_turns_in_a_kernel_and_microseconds_in_a_host_function() -> None:
    """One number for both made a launcher wait for 20 ms where its kernel was to lose 0.3 ms."""
    effort = Effort(turns=7, microseconds=30_000)
    kernel = sabotage(KERNELS.encode(), target("matmul"), "busy_loop", effort)
    assert b"in range(0, 7):" in kernel and b"30000" not in kernel
    space: dict[str, Any] = {}
    exec(sabotage(b"def one():\n    return 1\n", target("one", "host"), "busy_loop", effort), space)
    begun = time.perf_counter()
    assert space["one"]() == 1
    assert time.perf_counter() - begun >= 0.03


def test_a_file_in_another_encoding_keeps_it() -> None:
    source = b"# -*- coding: latin-1 -*-\n" + KERNELS.encode("latin-1")
    wrong = sabotage(source, target("matmul"), "scale")
    assert b"\xe9\xe8" in wrong
    assert wrong.count(b" + 2).to(") == 1
    assert b"((acc) * (" in wrong


def test_the_index_chooses_among_functions_of_one_name() -> None:
    twice = KERNELS.encode() + b"\nif torch:\n    @triton.jit\n    def square(x):\n        return x\n"
    assert b"return ((x) * 2 + 3)" in sabotage(twice, target("square", index=1), "scale")
    assert b"return ((x * x) * 2 + 3)" in sabotage(twice, target("square", index=0), "scale")
    with pytest.raises(CannotSabotage, match="2 functions of this name, index 2"):
        sabotage(twice, target("square", index=2), "scale")


@pytest.mark.parametrize(
    ("name", "kind", "how", "words"),
    [
        ("nothing", "triton_kernel", "scale", "neither stores nor returns"),
        ("count", "triton_kernel", "low_precision", "no cast to float32"),
        ("absent", "host", "scale", "0 functions of this name"),
    ],
)
def test_what_cannot_be_sabotaged_is_said(name: str, kind: str, how: Sabotage, words: str) -> None:
    with pytest.raises(CannotSabotage, match=words):
        sabotage(KERNELS.encode(), target(name, kind), how)


def test_a_file_that_is_no_python_is_said() -> None:
    with pytest.raises(CannotSabotage, match="cannot be read as Python"):
        sabotage(b"def f(:\n", target("f"), "scale")


def test_files_are_sabotaged_where_possible_and_the_rest_is_named() -> None:
    files = {"kernels.py": KERNELS.encode()}
    result = sabotage_files(files, [target("square"), target("matmul"), target("nothing")], "scale")
    assert result.done == ("kernels.py::square", "kernels.py::matmul")
    assert list(result.impossible) == ["kernels.py::nothing"]
    assert result.files["kernels.py"].count(b" * 2 + 3)") == 1
    assert result.files["kernels.py"].count(b" + 2).to(tl.int8)") == 1
    with pytest.raises(CannotSabotage, match="no target can be sabotaged"):
        sabotage_files(files, [target("nothing")], "scale")
    with pytest.raises(CannotSabotage, match="not in the tree"):
        sabotage_files({}, [target("square")], "scale")


def test_host_helpers_are_put_in_once() -> None:
    files = {"kernels.py": KERNELS.encode()}
    result = sabotage_files(files, [target("run_norm", "host"), target("Runner.matmul", "host")], "scale")
    assert result.files["kernels.py"].count(b"def _rtb_scale(") == 1
