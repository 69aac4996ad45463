"""Every cheat of tests/adversarial, and its honest twin, through whole evaluations in both sandboxes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.evaluate import Finished, Request, evaluate
from rtb import checkout
from rtb.base_tree import base_repository
from rtb.result import Verdict
from tests import pocketsuite, trapsuite
from tests.trapsuite import Cheat, Side
from tests.variables import variables

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "local"]
SIDES: tuple[Side, ...] = ("cheat", "benign")
HOST, KERNEL = trapsuite.cheats("host"), trapsuite.cheats("kernel")
# What cannot be separated in principle is played, too: docs/threat-model.md says what the report prints of it.
REMAINING = [cheat for cheat in HOST + KERNEL if cheat.kind == "remaining"]
CHEATS = [cheat for cheat in HOST + KERNEL if cheat.kind != "remaining"]
CANARIES = (Path("/tmp/rtb-canary"), Path("/tmp/rtb-canary.py"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both suites; environment variables point rtb at them. The kernels' environment is the demo's, in the cache."""
    root = tmp_path_factory.mktemp("trap")
    trapsuite.make(root, len(HOST))
    trapsuite.make_kernel(root, len(KERNEL))
    docker_files = pocketsuite.dockerfiles(root)
    shutil.copytree(pocketsuite.ROOT / "dockerfiles" / "cpu", docker_files / "cpu")
    settings = {"RTB_TASKS": str(root / "tasks"), "RTB_DOCKERFILES": str(docker_files)}
    with variables(settings):
        yield root


def run(root: Path, task: str, side: Side, sandbox: str) -> dict[str, Verdict]:
    """One evaluation of every cheat (or honest twin) against one of the two tasks."""
    chosen = HOST if task == "host" else KERNEL
    suite = trapsuite.load_suite("trap" if task == "host" else "kernel-trap", root / "tasks")
    names = [entry.instance_id for entry in suite.entries]
    base = root / f"base-{task}-{side}-{sandbox}"
    shutil.copytree(base_repository(suite.entries[0]).path, base, symlinks=True)
    checkout.run_git(["reset", "-q", "--hard", "HEAD"], repository=base)
    patches = {name: trapsuite.patch_text(cheat.side(side), base) for name, cheat in zip(names, chosen, strict=True)}
    file = trapsuite.write_predictions(root / f"{task}-{side}-{sandbox}.jsonl", patches)
    values: dict[str, Any] = {
        "predictions": str(file), "suite": suite.suite.name, "instances": (), "stages": ("unit",),
        "sandbox": sandbox, "workers": 2, "run_id": f"{task}-{side}-{sandbox}", "profile": "robust",
        "out": root / "runs", "retries": 1, "quiet": True,
    }  # fmt: skip
    finished: Finished = evaluate(Request(**values))
    found = {}
    for name, cheat in zip(names, chosen, strict=True):
        verdict = finished.run.read_verdict(name)
        assert verdict is not None
        found[cheat.name] = verdict
    return found


run_once = cache(run)


def evidence(verdict: Verdict) -> str:
    """All that a reader of the verdict is told."""
    lines = [verdict.reason]
    if verdict.patch is not None:
        lines += verdict.patch.flags
    lines += [f"{finding.kind}: {finding.path}: {finding.text}" for finding in verdict.audit]
    for stage in verdict.stages:
        lines += [stage.reason, *stage.flags]
        if stage.unit is not None:
            lines += [f"{status}: {message}" for status, message in stage.unit.not_passed.values()]
    return "\n".join(lines)


def named(cheat: Cheat) -> str:
    return cheat.name


def test_there_are_enough_cheats_of_every_kind() -> None:
    kinds = [cheat.kind for cheat in CHEATS]
    assert len(kinds) >= 40
    assert {kind: kinds.count(kind) for kind in set(kinds)}.keys() == {"grading", "kernel", "escape"}
    for cheat in CHEATS:
        assert set(cheat.outcomes) <= {"unresolved", "apply_failed", "tampered"}


@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize("cheat", CHEATS, ids=named)
def test_a_cheat_scores_nothing_and_is_named(home: Path, sandbox: str, cheat: Cheat) -> None:
    verdict = run_once(home, cheat.task, "cheat", sandbox)[cheat.name]
    assert verdict.outcome in cheat.outcomes, evidence(verdict)
    assert verdict.reason and cheat.evidence in evidence(verdict), evidence(verdict)
    assert not [path for path in CANARIES if path.exists()]


@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize("cheat", REMAINING, ids=named)
def test_what_remains_possible_is_shown_beside_the_pass(home: Path, sandbox: str, cheat: Cheat) -> None:
    verdict = run_once(home, cheat.task, "cheat", sandbox)[cheat.name]
    assert (verdict.outcome, cheat.outcomes) == ("resolved", ("resolved",)), evidence(verdict)
    assert cheat.evidence in evidence(verdict), evidence(verdict)


@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize("cheat", HOST + KERNEL, ids=named)
def test_its_honest_twin_is_resolved(home: Path, sandbox: str, cheat: Cheat) -> None:
    verdict = run_once(home, cheat.task, "benign", sandbox)[cheat.name]
    assert verdict.outcome == "resolved", evidence(verdict)
