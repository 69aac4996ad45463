"""What an honest attempt does not need, looked for in trajectories. Evidence, never a verdict; rules are data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field

from rtb.checkout import matches
from rtb.errors import ExpectedError
from rtb.steps import read_step_file
from rtb.suite import DEFAULT_SPLIT
from rtb.task import Frozen
from scaffold.recorder import AttemptFolder
from scaffold.trajectory import Result, Trajectory, read_trajectory

_PATCHED = re.compile(r"^diff --git a/(?P<path>.+?) b/", re.MULTILINE)
_GRADING = ("**/conftest.py", "conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "**/sitecustomize.py", "**/*.pth")


class Finding(Frozen):
    """One thing worth a look. `text` is the line of the command, or the path; `worked` the command's exit code 0."""

    instance_id: str
    trajectory: str
    step: int = Field(ge=0)
    kind: str
    what: str
    text: str
    worked: bool | None


class Audit(Frozen):
    """What was looked at, and what was found in it."""

    trajectories: int
    commands: int
    findings: tuple[Finding, ...]

    @property
    def by_kind(self) -> dict[str, int]:
        """How many findings of each kind; kinds without one are there with 0."""
        counts = {kind: 0 for kind, _ in _rules()}
        for finding in self.findings:
            counts[finding.kind] = counts.get(finding.kind, 0) + 1
        return counts


@dataclass(frozen=True)
class _Rule:
    what: str
    patterns: tuple[re.Pattern[str], ...]


@cache
def _rules() -> tuple[tuple[str, _Rule], ...]:
    document = tomllib.loads(resources.files("scaffold").joinpath("audit_rules.toml").read_text(encoding="utf-8"))
    return tuple(
        (kind, _Rule(rule["what"], tuple(re.compile(text, re.MULTILINE) for text in rule["patterns"])))
        for kind, rule in document.items()
    )


def find_trajectories(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Trajectory files under files and folders. Raises ExpectedError when there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_file() or AttemptFolder(path).journal.is_file():
            found.append(path)
        else:
            found += sorted(path.rglob("*.traj.json"))
    if not found:
        raise ExpectedError(f"no trajectory (*.traj.json) in {', '.join(map(str, paths)) or 'nothing'}")
    return tuple(found)


def audit(paths: Sequence[Path]) -> Audit:
    """Look through trajectories, named by file or by a folder that holds them. Raises ExpectedError, InvalidFile."""
    findings: list[Finding] = []
    commands = 0
    files = find_trajectories(paths)
    for path in files:
        trajectory = read_trajectory(path)
        commands += sum(1 for _ in trajectory.commands)
        findings += audit_one(trajectory)
    return Audit(trajectories=len(files), commands=commands, findings=tuple(findings))


def audit_one(trajectory: Trajectory) -> list[Finding]:
    """Findings in one trajectory: in its commands, and in the paths its patches touch."""
    found = [
        _finding(trajectory, step, kind, rule.what, line, result.returncode == 0)
        for step, result in trajectory.commands
        for kind, rule in _rules()
        if (line := _match(rule, result)) is not None
    ]
    return found + _edited_tests(trajectory)


def _match(rule: _Rule, result: Result) -> str | None:
    """The line of a command that a rule finds first."""
    for pattern in rule.patterns:
        if hit := pattern.search(result.command):
            start = result.command.rfind("\n", 0, hit.end() - 1 if hit.end() > hit.start() else hit.end()) + 1
            return result.command[start:].split("\n", 1)[0].strip()[:300]
    return None


def _edited_tests(trajectory: Trajectory) -> list[Finding]:
    """Tests and test configuration that the tree's patch touches, with the step that first did so."""
    steps = AttemptFolder(trajectory.path.parent)
    seen: set[str] = set()
    found = []
    for step in read_step_file(steps.steps) if steps.steps.is_file() else ():
        for path in _PATCHED.findall(step.prediction.model_patch):
            if path not in seen and (matches(path, DEFAULT_SPLIT.tests) or matches(path, _GRADING)):
                seen.add(path)
                what = "the tree's patch touches a test file"
                found.append(_finding(trajectory, step.number, "tests", what, path, None))
    return found


def _finding(trajectory: Trajectory, step: int, kind: str, what: str, text: str, worked: bool | None) -> Finding:
    return Finding(
        instance_id=trajectory.instance_id,
        trajectory=str(trajectory.path),
        step=step,
        kind=kind,
        what=what,
        text=text,
        worked=worked,
    )
