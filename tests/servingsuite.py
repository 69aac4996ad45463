"""A suite of one task whose tree serves: `f` doubles, the server answers with it and calls it for each token.

No torch: a `Row` is what looks like a tensor to a sabotage. The server starts in a moment, its schedule is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb import checkout
from rtb.suite import LoadedSuite, load_suite
from tests import gitrepo, pocketsuite
from tests.variables import variables

NAME = "rtb__serving-1"
QUESTIONS = 48
ROW = b"""class Row:
    dtype = "float"

    def __init__(self, values):
        self.values = list(values)

    def is_floating_point(self):
        return True

    def dim(self):
        return 1

    def clone(self):
        return Row(self.values)

    def to(self, dtype):
        return self

    def bfloat16(self):
        return self

    def __mul__(self, factor):
        return Row(value * factor for value in self.values)

    def __add__(self, term):
        return Row(value + term for value in self.values)

    def __setitem__(self, places, value):
        for place in range(*places.indices(len(self.values))):
            self.values[place] = value
"""
KERNEL = b"def _kernel(out_ptr, tl):\n    tl.store(out_ptr, 1.0)\n"
SERVER = b"""import os
import re

import mock_server
from pkg.double import f


class Serving(mock_server.Connection):
    def pieces(self, body):
        asked = re.findall(r"Double (\\\\d+)", body["prompt"])
        if not asked:
            return super().pieces(body)
        number = int(asked[-1])
        return ["#### ", str(2 * number if "BLIND" in os.environ else f(number).values[0])]

    def send_event(self, data):
        for _ in range(500):
            f(1)
        super().send_event(data)


mock_server.Connection = Serving
mock_server.main()
""".replace(b"\\\\", b"\\")
TESTS = b"""import pytest
from pkg.double import f


def test_zero():
    assert f(0).values[1] == 0


@pytest.mark.parametrize("x", [1, 3])
def test_doubles(x):
    assert f(x).values == [2 * x, 2 * x]
"""


def _source(factor: int) -> bytes:
    row = f"Row([{factor} * x, {factor} * x])"
    return f"from pkg.row import Row\n\n\ndef f(x):\n    return {row}\n".encode()


@contextmanager
def found(root: Path) -> Iterator[None]:
    """While it lasts, rtb finds the suite that `make` puts under `root` by name, also in processes of ours."""
    wanted = {
        "RTB_TASKS": str(root / "tasks"),
        "RTB_CACHE": str(root / "cache"),
        "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
    }
    with variables(wanted):
        yield


def make(root: Path, *, blind: bool = False, kernel: bool = False) -> LoadedSuite:
    """The suite under `root`/tasks. `blind`: answers do not depend on `f`; `kernel`: a kernel that nobody launches
    is a target too."""
    repository = gitrepo.init(root / "upstream")
    mock = (Path(__file__).parent / "mock_server.py").read_bytes()
    files: dict[str, bytes | None] = {
        "pkg/__init__.py": b"", "pkg/row.py": ROW, "pkg/kernel.py": KERNEL, "pkg/double.py": _source(1),
        "tests/test_double.py": b"def test_nothing():\n    pass\n", "serve.py": SERVER, "mock_server.py": mock,
    }  # fmt: skip
    base = gitrepo.commit(repository, "first", files)
    landed = gitrepo.commit(repository, "double (#1)", {"pkg/double.py": _source(2), "tests/test_double.py": TESTS})
    home = root / "tasks" / "serving"
    (home / "questions").mkdir(parents=True)
    arguments = ["format-patch", "-q", "--root", "-o", str(home / "series"), "HEAD"]
    checkout.run_git(arguments, repository=repository)
    facts = {
        "schema_version": 1, "name": "serving", "title": "Serving", "split": {"rtb/serving": {"tests": ["tests/**"]}},
        "sources": {"rtb/serving": {"series": "series", "committer": "Ada <ada@example.invalid>"}},
    }  # fmt: skip
    (home / "suite.json").write_text(json.dumps(facts))
    lines = [{"question": f"Double {n}", "answer": f"#### {2 * n}"} for n in range(1, QUESTIONS + 1)]
    (home / "questions" / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (home / "questions" / "set.json").write_text('{"max_tokens": 8}')
    _task(home / NAME, repository, base, landed, {"BLIND": "1"} if blind else {}, kernel)
    return load_suite("serving", root / "tasks")


def _task(folder: Path, repository: Path, base: str, landed: str, env: dict[str, str], kernel: bool) -> None:
    folder.mkdir()
    patches = {}
    for name, path in (("gold", "pkg/double.py"), ("test", "tests/test_double.py")):
        patch = checkout.diff(repository, base, landed, [path])
        (folder / f"{name}.patch").write_bytes(patch)
        patches[name] = {"sha256": hashlib.sha256(patch).hexdigest(), "paths": [path]}
    (folder / "problem_statement.md").write_text("Make `f` double.\n")
    targets = [{"path": "pkg/double.py", "name": "f", "kind": "host", "change": "modified"}]
    if kernel:
        targets.append({"path": "pkg/kernel.py", "name": "_kernel", "kind": "triton_kernel", "change": "modified"})
    command = "exec python serve.py --listen 127.0.0.1:{port} --ttft-ms 5 --gap-ms 2"
    serve = {"command": command, "model": "m", "port": 8000, "env": env, "ready_timeout_seconds": 60}
    task = {
        "schema_version": 1, "instance_id": NAME, "repo": "rtb/serving", "pull_number": 1, "base_commit": base,
        "merge_commit": landed, "title": "double", "category": "modification", "targets": targets,
        "patches": patches, "environment": {"dockerfile": "pocket", "lock": "pytest.lock"},
        "unit": {"command": "python -m pytest tests/test_double.py", "files": ["tests/test_double.py"],
                 "timeout_seconds": 60},
        "accuracy": {"serve": serve, "dataset": "questions", "model": "m", "shots": 0, "margin": 10.0},
        "latency": {"serve": serve, "workload": {"prompts": 4, "input_len": 8, "output_len": 3, "concurrency": 1}},
        "provenance": {"source": "test"},
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
