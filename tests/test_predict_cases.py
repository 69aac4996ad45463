"""The public bug reports of stage `predict` that are about reading predictions, and `report` 103."""

from __future__ import annotations

import json

import pytest

from rtb.errors import InvalidFile
from rtb.prediction import read_predictions
from tests.cases import case_folder


def test_43_bad_lines() -> None:
    folder = case_folder("43-predictions-bad-lines")
    found = read_predictions(folder / "predictions.jsonl")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    usable = set(found.ids) - found.empty
    assert set(expected["accepted"]) <= usable
    assert found.empty == set(expected["empty_patch"])
    errors = {problem.place for problem in found.errors}
    # Line 4 has older key names: mapped with a warning, which the case allows.
    assert errors == set(expected["rejected_lines"]) - {"4"}
    assert ("4", "old_keys") in {(problem.place, problem.kind) for problem in found.problems}


def test_44_dict_of_dicts() -> None:
    folder = case_folder("44-predictions-dict-of-dicts")
    found = read_predictions(folder / "preds.json")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    assert list(found.ids) == expected["accepted"]
    assert {problem.instance_id for problem in found.errors} == set(expected["rejected"])


def test_46_unknown_and_double() -> None:
    folder = case_folder("46-predictions-unknown-and-double")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    tasks = {json.loads(line)["instance_id"] for line in (folder / "tasks.jsonl").read_text().splitlines() if line}
    found = read_predictions(folder / "predictions.jsonl", tasks)
    by_kind = {
        kind: [p.instance_id for p in found.problems if p.kind == kind] for kind in ("unknown_id", "duplicate")
    }
    assert by_kind == {"unknown_id": expected["unknown"], "duplicate": expected["duplicate"]}
    submitted = set(found.ids) | set(by_kind["duplicate"])
    assert sorted(tasks - submitted) == expected["not_submitted"]
    assert found.errors  # so that the exit code is not zero


def test_103_nothing_to_evaluate() -> None:
    folder = case_folder("103-nothing-to-evaluate")
    with pytest.raises(InvalidFile, match="no predictions"):
        read_predictions(folder / "empty.jsonl")
    found = read_predictions(folder / "all_empty.jsonl")
    assert len(found.ids) == len(found.empty) == 1
