"""The paper's tasks as shipped: all of them, by reference, with the original's errors left out and said.

Where the facts of the original lie beside the repository, every task is compared with them. That they hydrate is seen
with a clone: `rtb tasks hydrate --suite rtb31 --clone VLLM`.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

import pytest

from rtb.suite import TaskEntry, load_suite
from tests.cases import cases_root

SUITES = {"rtb31": 31, "rtb-candidates": 25}
CODE = re.compile(
    r"```|\btl\.(?:load|store|dot|program_id|arange)\b|^\s*(?:def|import|from \w+ import|return|@)\b", re.MULTILINE
)


@pytest.mark.parametrize("name", SUITES)
def test_every_task_is_there_without_code_and_can_be_pinned(name: str) -> None:
    entries = load_suite(name).entries
    assert len(entries) == SUITES[name]
    for entry in entries:
        task = entry.task
        assert task.patches.gold.sha256 and task.patches.gold.paths, "digests, so that hydration is checked"
        assert task.targets
        assert task.stages or (name != "rtb31" and any("no pytest" in note for note in task.provenance.notes))
        statement = entry.folder.problem_statement.read_text()
        assert len(statement) > 200 and CODE.search(statement) is None, entry.instance_id
        commands = [task.unit.command] if task.unit else []
        commands += [stage.serve.command for stage in (task.accuracy, task.latency) if stage]
        assert not any("-color" in command or "20860" in command for command in commands)


def original(paper: bool) -> list[dict[str, Any]]:
    root = cases_root()
    path = root.parent / "facts" / "realistic_tritonbench_tasks.json" if root else None
    if path is None or not path.is_file():
        pytest.skip("the facts of the original are not here")
    return [item for item in json.loads(path.read_text()) if item["in_paper_31"] is paper]


def _same(entry: TaskEntry, fact: dict[str, Any]) -> bool:
    have = {
        (item.path, item.name.rpartition(".")[2]) for item in entry.task.targets
    }  # it names methods without class
    return {(path, name) for path, names in fact["targets"].items() for name in names} <= have


@pytest.mark.parametrize("name", SUITES)
def test_targets_categories_and_tests_are_the_originals_and_what_differs_is_said(name: str) -> None:
    entries = load_suite(name).entries
    facts = original(name == "rtb31")
    assert len(facts) == len(entries)
    for fact in facts:
        alike = [item for item in entries if item.task.pull_number == fact["pr_number"] and _same(item, fact)]
        assert alike, fact["name"]
        entry = next((item for item in alike if item.task.category == fact["category"]), None)
        assert entry is not None, fact["name"]
        notes = " ".join(entry.task.provenance.notes)
        if entry.task.base_commit != fact["base_commit"]:
            assert fact["base_commit"][:12] in notes, entry.instance_id
        files = entry.task.unit.files if entry.task.unit else ()
        for path in fact["test_files"]:
            if str(PurePosixPath(path.partition("::")[0])) not in files:
                assert path in notes, (entry.instance_id, path, files)
