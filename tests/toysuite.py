"""A suite of two tiny tasks without any package, in a temporary folder: an environment for it takes seconds."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb import checkout
from rtb.checkout import run_git
from rtb.suite import LoadedSuite, load_suite
from tests import gitrepo
from tests.variables import variables

SPLIT = {"tests": ["tests/**"]}
TASKS = {
    1: (
        "Double the double",
        "pkg/twice.py",
        "twice",
        b"def twice(x):\n    return x\n",
        b"def twice(x):\n    return 2 * x\n",
    ),
    2: ("Half of it", "pkg/half.py", "half", None, b"def half(x):\n    return x // 2\n"),
}


@contextmanager
def toy_home(root: Path, **more: str) -> Iterator[LoadedSuite]:
    """The suite under `root`, found by its name too. Environments are named by content, so all tests share them."""
    cache = Path(tempfile.gettempdir()) / f"rtb-tests-{os.getuid()}"
    wanted = {"RTB_TASKS": str(root / "tasks"), "RTB_CACHE": str(cache), **more}
    with variables(wanted):
        yield make_suite(root)


def make_suite(root: Path, name: str = "toy") -> LoadedSuite:
    """Write the suite under `root` and load it. Task 1 changes a file, task 2 adds one; each brings a test."""
    repository = gitrepo.init(root / "repository")
    gitrepo.commit(
        repository,
        "first",
        {
            "README.md": b"toy\n",
            ".gitignore": b"*.log\nbuild/\n",
            "pkg/__init__.py": b"",
            "pkg/twice.py": TASKS[1][3],
            "tests/test_twice.py": b"from pkg.twice import twice\n\n\ndef test_zero():\n    assert twice(0) == 0\n",
            "data.bin": bytes(range(256)),
        },
    )
    suite = root / "tasks" / name
    suite.mkdir(parents=True)
    facts = {
        "schema_version": 1, "name": name, "title": "Toy", "split": {"toy/toy": SPLIT},
        "sources": {"toy/toy": {"series": "series", "committer": "Ada <ada@example.invalid>"}},
    }  # fmt: skip
    commits = [gitrepo.head(repository)]
    for number, (title, path, function, _, after) in TASKS.items():
        test = (
            f"from {path[:-3].replace('/', '.')} import {function}\n\n\ndef test_four():\n    assert {function}(4)\n"
        )
        files: dict[str, bytes | None] = {path: after, f"tests/test_{function}.py": test.encode()}
        commits.append(gitrepo.commit(repository, f"{title} (#{number})", files))
    run_git(["format-patch", "-q", "--root", "-o", str(suite / "series"), "HEAD"], repository=repository)
    (suite / "suite.json").write_text(json.dumps(facts))
    for number in TASKS:
        _write_task(suite, repository, number, commits[number - 1], commits[number])
    return load_suite(name, root / "tasks")


def _write_task(suite: Path, repository: Path, number: int, base: str, landed: str) -> None:
    title, path, function, before, _ = TASKS[number]
    source = checkout.diff(repository, base, landed, [path])
    tests = checkout.diff(repository, base, landed, [f"tests/test_{function}.py"])
    folder = suite / f"toy__toy-{number}"
    folder.mkdir()
    (folder / "gold.patch").write_bytes(source)
    (folder / "test.patch").write_bytes(tests)
    (folder / "problem_statement.md").write_text(f"# {title}\n\nMake `{function}` right. {{{{ not a template }}}}\n")
    task = {
        "schema_version": 1, "instance_id": folder.name, "repo": "toy/toy", "pull_number": number,
        "base_commit": base, "merge_commit": landed, "title": title,
        "category": "new_kernel" if before is None else "modification",
        "targets": [{
            "path": path, "name": function, "signature": "(x)", "kind": "host",
            "change": "added" if before is None else "modified",
        }],
        "context": [{"path": "pkg/context_of_it.py", "functions": ["neighbour_function"]}],
        "patches": {"gold": _facts(source, path), "test": _facts(tests, f"tests/test_{function}.py")},
        "environment": {"dockerfile": "cpu"},
        "unit": {"command": f"python -m pytest tests/test_{function}.py", "files": [f"tests/test_{function}.py"]},
        "provenance": {"source": "toy"},
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))


def _facts(patch: bytes, path: str) -> dict[str, object]:
    return {"sha256": hashlib.sha256(patch).hexdigest(), "paths": [path]}


def solutions(suite: LoadedSuite) -> dict[str, tuple[str, str]]:
    """What the scripted model knows: title to gold patch and target."""
    return {
        entry.task.title: (entry.folder.gold_patch.read_text(), entry.task.targets[0].path) for entry in suite.entries
    }
