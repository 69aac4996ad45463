"""Stored submissions of an earlier demo suite, copied so that a test may spoil them, and sealed again."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from harness.submission_check import Checker
from rtb import submit_command
from rtb.manifest import seal
from rtb.submission import Checked, SubmissionFolder

ROOT = Path(__file__).resolve().parent.parent
TASK = "rtb__tinyserve-11"
EXAMPLES = Path(__file__).resolve().parent / "data" / "submissions"


def copy_of(name: str, to: Path) -> SubmissionFolder:
    """A submission of its own."""
    shutil.copytree(EXAMPLES / name, to)
    return SubmissionFolder(to)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place, in rtb's form."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def as_model(folder: SubmissionFolder, name: str, **metadata: Any) -> SubmissionFolder:
    """Make an example look like a model's own submission: name everywhere, a trajectory each, sealed again."""
    lines = [json.loads(line) for line in folder.predictions.read_text().splitlines()]
    for line in lines:
        line["model_name_or_path"] = name
        home = folder.trajectories / line["instance_id"]
        home.mkdir(parents=True)
        (home / "notes.txt").write_text("written by hand\n")
    folder.predictions.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def rename(document: Any) -> None:
        document["model_names"] = [name]

    edit(folder.report, rename)
    edit(folder.run.record, lambda document: (rename(document), document.update(predictions="preds.jsonl")))
    for path in (*folder.run.path.glob("*/record.json"), *folder.run.path.glob("*/verdict.json")):
        edit(path, lambda document: document.update(model_name_or_path=name))

    def describe(document: Any) -> None:
        document["model"].update(name=name, name_or_path=name)
        document.update(example=False)
        for key, value in metadata.items():
            document[key] = {**document[key], **value} if isinstance(value, dict) else value

    edit(folder.metadata, describe)
    seal(folder)
    return folder


@cache
def example_suites() -> Path:
    """Suites in a folder that goes away with this process."""
    home = tempfile.TemporaryDirectory(prefix="rtb-example-suites-")
    atexit.register(home.cleanup)
    return suites_at(Path(home.name) / "tasks")


def checker(keys: Path | None = None) -> Checker:
    """What `rtb leaderboard check` uses, against the examples' own suite."""
    return submit_command.checker(keys, example_suites())


def suites_at(root: Path) -> Path:
    """The suite the examples were evaluated with, from their own records: true when the shipped one moves on."""
    suite = root / "demo"
    suite.mkdir(parents=True)
    (suite / "suite.json").write_text(json.dumps({"schema_version": 1, "name": "demo", "title": "Demo"}))
    for path in sorted((EXAMPLES / "gold" / "run").glob("*/record.json")):
        record = json.loads(path.read_text())
        home = suite / path.parent.name
        home.mkdir()
        (home / "task.json").write_text(json.dumps(record["task"]))
        (home / "tests.json").write_text(json.dumps(record["tests"]))
    return root


def rtb(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rtb.cli", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RTB_TASKS": str(example_suites()), **env}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
    )


def said(found: Checked) -> str:
    return "\n".join(f"{fault.place}: {fault.kind}: {fault.message}" for fault in found.faults)


def count(document: Any) -> None:
    document["outcomes"]["resolved"] += 1
    document["outcomes"]["unresolved"] -= 1
