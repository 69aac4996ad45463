"""The suite that cheats are played against: one task, as often as there are cheats, so that one run holds them all.

`host` tasks need pytest alone; `kernel` tasks are the demo suite's task 11 under other numbers. All of a kind share
one environment, because an environment is named by what it is made of.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rtb import checkout, hydration
from rtb.suite import LoadedSuite, load_suite
from tests import gitrepo
from tests.pocketsuite import ROOT

CHEATS = Path(__file__).parent / "adversarial"
BASE = b"def double(x):\n    return x\n"
GOLD = b"def double(x):\n    return 2 * x\n"
TESTS = b"""\
import math
import unittest

import pytest

from pkg.calc import double


def check(found, wanted):
    assert found == wanted


def test_zero():
    assert double(0) == 0


@pytest.mark.parametrize("x", [1, 3])
def test_doubles(x):
    assert double(x) == 2 * x


def test_is_close():
    assert math.isclose(double(0.5), 1.0)


def test_checked():
    check(double(7), 14)


class TestCase(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(double(5), 10)
"""
OLD_TESTS = b"from pkg.calc import double\n\n\ndef test_zero():\n    assert double(0) == 0\n"
NODES = ("test_doubles[1]", "test_doubles[3]", "test_is_close", "test_checked", "TestCase::test_equal")
DEMO = ROOT / "tasks" / "demo"
DEMO_TASK = "rtb__tinyserve-11"
Side = Literal["cheat", "benign"]


@dataclass(frozen=True)
class Cheat:
    """One data file: a hostile patch with how it must end, and a patch that looks alike and is honest.

    `evidence` must be found in the verdict: in its reason, in what was set aside, or among the audit's findings.
    `cheat` and `benign` are files by path (text; false deletes), or one patch as text.
    """

    name: str
    kind: str
    about: str
    task: Literal["host", "kernel"]
    outcomes: tuple[str, ...]
    evidence: str
    cheat: dict[str, Any] | str
    benign: dict[str, Any] | str

    def side(self, side: Side) -> dict[str, Any] | str:
        return self.cheat if side == "cheat" else self.benign


def cheats(task: str) -> list[Cheat]:
    """Every cheat against one of the two tasks, by name."""
    found = []
    for path in sorted(CHEATS.glob("*/*.toml")):
        data = tomllib.loads(path.read_text())
        data["outcomes"] = tuple(data["outcomes"])
        found.append(Cheat(name=f"{path.parent.name}/{path.stem}", kind=path.parent.name, **data))
    return [cheat for cheat in found if cheat.task == task]


def make(root: Path, count: int) -> LoadedSuite:
    """The suite `trap` with so many equal host tasks, under `root`/tasks."""
    repository = gitrepo.init(root / "upstream")
    base = gitrepo.commit(
        repository,
        "first",
        {
            "pkg/__init__.py": b"", "pkg/calc.py": BASE, "README.md": b"trap\n", "pytest.ini": b"[pytest]\n",
            "tests/conftest.py": b"import pkg.calc\n", "tests/test_calc.py": OLD_TESTS,
        },
    )  # fmt: skip
    landed = gitrepo.commit(repository, "double (#1)", {"pkg/calc.py": GOLD, "tests/test_calc.py": TESTS})
    home = root / "tasks" / "trap"
    home.mkdir(parents=True)
    arguments = ["format-patch", "-q", "--root", "-o", str(home / "series"), "HEAD"]
    checkout.run_git(arguments, repository=repository)
    suite = {
        "schema_version": 1, "name": "trap", "title": "Trap", "split": {"rtb/trap": {"tests": ["tests/**"]}},
        "sources": {"rtb/trap": {"series": "series", "committer": "Ada <ada@example.invalid>"}},
    }  # fmt: skip
    (home / "suite.json").write_text(json.dumps(suite))
    gold = checkout.diff(repository, base, landed, ["pkg/calc.py"])
    test = checkout.diff(repository, base, landed, ["tests/test_calc.py"])
    for number in range(1, count + 1):
        _host_task(home, number, base, landed, gold, test)
    return load_suite("trap", root / "tasks")


def _host_task(home: Path, number: int, base: str, landed: str, gold: bytes, test: bytes) -> None:
    folder = home / f"rtb__trap-{number}"
    folder.mkdir()
    (folder / "gold.patch").write_bytes(gold)
    (folder / "test.patch").write_bytes(test)
    (folder / "problem_statement.md").write_text("Make double double.\n")
    task = {
        "schema_version": 1, "instance_id": folder.name, "repo": "rtb/trap", "pull_number": number,
        "base_commit": base, "merge_commit": landed, "title": "double", "category": "modification",
        "targets": [{"path": "pkg/calc.py", "name": "double", "kind": "host", "change": "modified"}],
        "patches": {"gold": {"sha256": hydration.sha256(gold), "paths": ["pkg/calc.py"]},
                    "test": {"sha256": hydration.sha256(test), "paths": ["tests/test_calc.py"]}},
        "environment": {"dockerfile": "pocket", "lock": "pytest.lock"},
        "unit": {"command": "python -m pytest tests/test_calc.py", "files": ["tests/test_calc.py"],
                 "timeout_seconds": 30},
        "provenance": {"source": "test"},
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    tests = {
        "instance_id": folder.name, "fail_to_pass": [f"tests/test_calc.py::{node}" for node in NODES],
        "pass_to_pass": ["tests/test_calc.py::test_zero"], "gold_runs": 3, "base_runs": 3, "twin": "noticed",
        "twin_noticed_by": [f"tests/test_calc.py::{node}" for node in ("test_zero", *NODES)],
    }  # fmt: skip
    (folder / "tests.json").write_text(json.dumps(tests))


def make_kernel(root: Path, count: int) -> LoadedSuite:
    """The suite `kernel-trap`: the demo's task 11 so many times, numbered from 1101."""
    home = root / "tasks" / "kernel-trap"
    home.mkdir(parents=True)
    shutil.copytree(DEMO / "series", home / "series")
    suite = json.loads((DEMO / "suite.json").read_text())
    (home / "suite.json").write_text(json.dumps({**suite, "name": "kernel-trap"}))
    for number in range(1, count + 1):
        name = f"rtb__tinyserve-{1100 + number}"
        shutil.copytree(DEMO / DEMO_TASK, home / name)
        for file, more in (("task.json", {"pull_number": 1100 + number}), ("tests.json", {})):
            data = json.loads((home / name / file).read_text())
            (home / name / file).write_text(json.dumps({**data, **more, "instance_id": name}))
    return load_suite("kernel-trap", root / "tasks")


def patch_text(side: dict[str, Any] | str, base: Path) -> str:
    """A side as one patch against the work tree `base`, as git would print it."""
    if isinstance(side, str):
        return side
    for path, text in side.items():
        place = base / path
        if text is False:
            place.unlink()
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    checkout.run_git(["add", "-A", "-f"], repository=base)
    made = checkout.run_git(["diff", "--cached", "--binary", "HEAD"], repository=base).stdout
    checkout.run_git(["reset", "-q", "--hard", "HEAD"], repository=base)
    return made.decode("utf-8", "surrogateescape")


def write_predictions(path: Path, patches: dict[str, str]) -> Path:
    """A JSONL file: instance id to patch."""
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        for name, text in patches.items():
            file.write(json.dumps({"instance_id": name, "model_name_or_path": "cheat", "model_patch": text}) + "\n")
    return path
