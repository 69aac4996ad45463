"""Runs of the unit stage over small trees, in a local sandbox."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.stages.unit import grade_unit, run_unit
from rtb.local_sandbox import open_local_sandbox
from rtb.result import StageResult
from rtb.sandbox import Limits
from rtb.task import Environment, Patches, PatchFacts, Provenance, Target, Task, TestIds, UnitStage

COMMIT = "0" * 40
PLUGIN_PATH = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"


def a_task(
    command: str = "python -m pytest tests",
    *,
    files: tuple[str, ...] = ("tests/test_it.py",),
    timeout_seconds: float = 60.0,
    plugins: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Task:
    return Task(
        instance_id="org__repo-1",
        repo="org/repo",
        pull_number=1,
        base_commit=COMMIT,
        merge_commit=COMMIT,
        title="t",
        category="modification",
        targets=(Target(path="lib.py", name="double", kind="host", change="modified"),),
        patches=Patches(gold=PatchFacts(sha256=None, paths=()), test=PatchFacts(sha256=None, paths=())),
        environment=Environment(dockerfile="none", plugins=plugins, env=dict(env or {})),
        unit=UnitStage(command=command, files=files, timeout_seconds=timeout_seconds),
        provenance=Provenance(source="a test"),
    )


def some_tests(*fail_to_pass: str, p2p: tuple[str, ...] = ()) -> TestIds:
    return TestIds(instance_id="org__repo-1", fail_to_pass=fail_to_pass, pass_to_pass=p2p, gold_runs=3, base_runs=3)


@dataclass(frozen=True)
class Ran:
    result: StageResult
    raw: Path

    @property
    def not_passed(self) -> dict[str, str]:
        assert self.result.unit is not None
        return {node: status for node, (status, _) in self.result.unit.not_passed.items()}


Run = Callable[..., Ran]


def runner(tmp_path: Path) -> Run:
    """Lay files, run the stage in a local sandbox, grade."""

    def do(
        files: Mapping[str, str],
        *fail_to_pass: str,
        p2p: tuple[str, ...] = (),
        task: Task | None = None,
        trusted: Collection[str] | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        base = tmp_path / "base"
        for path, text in files.items():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_text(text)
        raw = tmp_path / "raw"
        known = set(files) - {"lib.py"} if trusted is None else trusted
        with open_local_sandbox(
            base, env=dict(env or {}), path=PLUGIN_PATH, limits=limits or Limits(), parent=tmp_path
        ) as sandbox:
            tests = some_tests(*(fail_to_pass or ("tests/test_it.py::test_it",)), p2p=p2p)
            result = run_unit(task or a_task(), tests, sandbox, raw, trusted=known)
        assert grade_unit(task or a_task(), tests, raw) == result
        return Ran(result, raw)

    return do


GOOD = {"lib.py": "def double(n):\n    return 2 * n\n"}
WRONG = {"lib.py": "def double(n):\n    return n + 1\n"}
TEST = {"tests/test_it.py": "from lib import double\n\n\ndef test_it():\n    assert double(3) == 6\n"}


def hostile(code: str) -> dict[str, str]:
    """A wrong library that does something more when it is imported."""
    return WRONG | TEST | {"lib.py": WRONG["lib.py"] + "\n" + code}
