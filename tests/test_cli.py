"""What `--help` shows: every verb answers, and its example names tasks that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rtb.suite import load_suite

ROOT = Path(__file__).resolve().parent.parent
VERBS = (
    "doctor", "build-env", "evaluate", "report", "compare", "validate", "mine", "solve", "replay", "audit", "export",
    "tasks list", "tasks show", "tasks check", "tasks schema", "tasks hydrate", "tasks review", "tasks export",
    "tasks import", "predictions check", "submit", "leaderboard check", "leaderboard build", "leaderboard serve",
)  # fmt: skip


def rtb(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rtb.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_whose_tasks_are_there(verb: str) -> None:
    done = rtb(*verb.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout
    known = {
        entry.instance_id for suite in ("demo", "real-cpu") for entry in load_suite(suite, ROOT / "tasks").entries
    }
    text = done.stdout.replace("\n", " ")
    for name in re.findall(r"\b[A-Za-z0-9-]+__[A-Za-z0-9-]+-\d+\b", text[text.index("Example") :]):
        assert name in known, name


def test_the_help_of_rtb_names_every_verb() -> None:
    said = rtb("--help").stdout
    for verb in {name.split()[0] for name in VERBS}:
        assert re.search(rf"^  {verb} ", said, re.MULTILINE), verb


def test_shipped_demo_tasks_are_checked_by_the_command() -> None:
    done = rtb("tasks", "check", "--suite", "demo")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": ok") == len(load_suite("demo", ROOT / "tasks").entries)
