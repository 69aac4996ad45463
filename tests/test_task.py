"""Task, TestIds and Suite: strict, frozen, and the same after a trip to disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rtb.errors import ExpectedError, InvalidFile
from rtb.suite import find_task, load_suite, read_model, suite_names
from rtb.task import Environment, Suite, Task, TestIds, canonical_json, task_digest
from rtb.taskview import SCHEMAS, schema

ROOT = Path(__file__).resolve().parent.parent


def task_document(**changes: Any) -> dict[str, Any]:
    """A sound task, with changes."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "instance_id": "org__repo-7",
        "repo": "org/repo",
        "pull_number": 7,
        "base_commit": "a" * 40,
        "merge_commit": "b" * 40,
        "title": "A kernel",
        "category": "modification",
        "targets": [{"path": "k.py", "name": "_kernel", "kind": "triton_kernel", "change": "modified"}],
        "patches": {
            "gold": {"sha256": None, "paths": ["k.py"]},
            "test": {"sha256": None, "paths": ["tests/test_k.py"]},
        },
        "environment": {"dockerfile": "cpu"},
        "unit": {"command": "python -m pytest tests/test_k.py", "files": ["tests/test_k.py"]},
        "provenance": {"source": "test"},
    }
    return document | changes


def test_a_task_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    task = Task.model_validate(task_document())
    (tmp_path / "task.json").write_bytes(canonical_json(task))
    again = read_model(tmp_path / "task.json", Task)
    assert again == task
    assert canonical_json(again) == canonical_json(task)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surprise": 1}, "surprise"),
        ({"base_commit": "abc"}, "base_commit"),
        ({"category": "modificaton"}, "category"),
        ({"instance_id": "org__repo-8"}, "org__repo-7"),
        ({"targets": []}, "targets"),
        ({"unit": {"command": "pytest tests", "files": ["tests/t.py"]}}, "python -m pytest"),
        (
            {"targets": [{"path": "../k.py", "name": "k", "kind": "host", "change": "added"}]},
            "not a path inside the tree",
        ),
    ],
)
def test_what_is_wrong_in_a_task_is_named_with_file_and_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task_document(**change), indent=2))
    with pytest.raises(InvalidFile) as caught:
        read_model(path, Task)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_the_line_of_a_wrong_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task_document(category="nonsense"), indent=2))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if '"category"' in text)
    with pytest.raises(InvalidFile, match=rf"task\.json:{line}: field category"):
        read_model(path, Task)


def test_broken_json_is_named_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text('{\n "a": 1,\n}')
    with pytest.raises(InvalidFile, match=r"task\.json:3:1"):
        read_model(path, Task)


def test_one_pull_request_may_carry_two_tasks() -> None:
    assert Task.model_validate(task_document(instance_id="org__repo-7b")).pull_number == 7


def test_a_task_cannot_be_changed() -> None:
    task = Task.model_validate(task_document())
    with pytest.raises(ValidationError):
        task.title = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"fail_to_pass": []}, "no test is expected"),
        ({"fail_to_pass": ["t.py::test_a[two"]}, "cut"),
        ({"fail_to_pass": ["t.py::a"], "pass_to_pass": ["t.py::a"]}, "both"),
        ({"fail_to_pass": ["just words"]}, "node id"),
        ({"fail_to_pass": ["t.py::a"], "new_to_pass": ["t.py::b"]}, "new_to_pass"),
    ],
)
def test_test_ids_that_would_grade_wrongly_are_refused(ids: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TestIds.model_validate({"instance_id": "o__r-1", "gold_runs": 3, "base_runs": 3, **ids})


def test_the_digest_changes_with_whatever_decides_a_grade() -> None:
    task = Task.model_validate(task_document())
    ids = TestIds(instance_id="org__repo-7", fail_to_pass=("t.py::a",), gold_runs=3, base_runs=3)
    more = ids.model_copy(update={"pass_to_pass": ("t.py::b",)})
    seen = {
        task_digest(task, ids, {"gold": b"1", "test": b"2"}),
        task_digest(task, more, {"gold": b"1", "test": b"2"}),
        task_digest(task, ids, {"gold": b"1", "test": b"3"}),
        task_digest(task.model_copy(update={"title": "x"}), ids, {"gold": b"1", "test": b"2"}),
    }
    assert len(seen) == 4


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_model_has_a_published_schema_that_forbids_extras(name: str) -> None:
    document = schema(name)
    assert document["additionalProperties"] is False
    assert document["properties"]


def test_every_shipped_task_is_sound() -> None:
    names = suite_names(ROOT / "tasks")
    assert "demo" in names
    for name in names:
        suite = load_suite(name, ROOT / "tasks")
        assert suite.entries, name
        for entry in suite.entries:
            assert entry.folder.problem_statement.is_file(), entry.instance_id
            if entry.tests is not None:
                assert entry.tests.instance_id == entry.instance_id


def test_unknown_suites_and_tasks_are_named_with_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "suite.json").write_bytes(canonical_json(Suite(name="one", title="One")))
    with pytest.raises(ExpectedError, match="there are one"):
        load_suite("two", tmp_path)
    with pytest.raises(ExpectedError, match="no task 'x__y-1'"):
        find_task("x__y-1", tmp_path)


def test_every_broken_task_of_a_suite_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "suite.json").write_bytes(canonical_json(Suite(name="one", title="One")))
    for number in (7, 8):
        folder = tmp_path / "one" / f"org__repo-{number}"
        folder.mkdir()
        document = task_document(instance_id=f"org__repo-{number}", pull_number=number, surprise=1)
        (folder / "task.json").write_text(json.dumps(document))
    with pytest.raises(InvalidFile) as caught:
        load_suite("one", tmp_path)
    assert "org__repo-7" in str(caught.value) and "org__repo-8" in str(caught.value)


def test_environment_facts_of_a_task_are_all_used() -> None:
    # A new field of Environment must be thought of in the digests.
    known = {
        "dockerfile", "lock", "build_args", "install", "fixes", "env", "import_roots", "plugins",  # in digests
        "python",  # by the interpreter's version, and BASE_IMAGE
        "cuda", "torch", "gpu",  # facts for people and for placing; the lock file and Dockerfile decide
    }  # fmt: skip
    assert set(Environment.model_fields) == known
