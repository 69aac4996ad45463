"""The shipped example submissions, copied so that a test may spoil them, and sealed again as a forger would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtb.manifest import seal
from rtb.submission import SubmissionFolder

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "leaderboard"


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


def suites_at(root: Path) -> Path:
    """The suite that the examples were evaluated with, made from their own records, so that these tests stay true when
    the shipped suite moves on."""
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
