"""Predictions files: three forms, every fault explained with its place, the good ones never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtb.errors import InvalidFile
from rtb.prediction import Prediction, PredictionFile, read_predictions


def line(name: str, patch: Any = "diff", **more: Any) -> str:
    return json.dumps({"instance_id": name, "model_name_or_path": "m", "model_patch": patch, **more})


def write(tmp_path: Path, text: str, name: str = "preds.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def kinds(found: PredictionFile) -> list[tuple[str, str]]:
    return [(problem.place, problem.kind) for problem in found.problems]


def test_each_fault_has_its_own_message_and_place_and_the_good_lines_stay(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "\ufeff" + line("a-1"),
            "",
            line("a-2")[:30],
            json.dumps({"model_patch": "diff"}),
            line("a-3", None),
            line("a-4", {"diff": 1}),
            json.dumps(["no", "object"]),
            json.dumps({"instance_id": "a-5", "model": "m", "prediction": "diff"}),
            json.dumps({"instance_id": "a-6", "model_name_or_path": "m"}),
            line("a-7"),
        ]
    )
    found = read_predictions(write(tmp_path, text))
    assert found.ids == ("a-1", "a-3", "a-5", "a-7")
    assert found.empty == {"a-3"}
    assert kinds(found) == [
        ("1", "byte_order_mark"),
        ("2", "blank_line"),
        ("3", "invalid_json"),
        ("4", "no_instance_id"),
        ("5", "null_patch"),
        ("6", "patch_not_text"),
        ("7", "not_an_object"),
        ("8", "old_keys"),
        ("9", "no_patch"),
    ]
    assert found.load("a-1").model_patch == "diff"
    assert found.load("a-5").model_name_or_path == "m"


def test_two_different_patches_for_one_task_take_neither(tmp_path: Path) -> None:
    text = "\n".join([line("a-1", "one"), line("a-2"), line("a-1", "two"), line("a-1", "one")])
    found = read_predictions(write(tmp_path, text))
    assert found.ids == ("a-2",)
    assert kinds(found) == [("3", "duplicate"), ("4", "duplicate")]


def test_the_same_line_twice_is_taken_once(tmp_path: Path) -> None:
    found = read_predictions(write(tmp_path, f"{line('a-1')}\n{line('a-1')}\n"))
    assert found.ids == ("a-1",)
    assert kinds(found) == [("2", "same_twice")]
    assert not found.errors


def test_ids_of_no_task_are_listed_not_fatal(tmp_path: Path) -> None:
    found = read_predictions(write(tmp_path, f"{line('a-1')}\n{line('z-9')}\n"), {"a-1"})
    assert found.ids == ("a-1",)
    assert kinds(found) == [("2", "unknown_id")]


@pytest.mark.parametrize("form", ["list", "dict"])
def test_list_and_dict_forms_give_the_same_predictions(tmp_path: Path, form: str) -> None:
    items = [json.loads(line("a-1", "one")), json.loads(line("a-2", "two"))]
    document = items if form == "list" else {item["instance_id"]: item for item in items}
    found = read_predictions(write(tmp_path, json.dumps(document, indent=1), "preds.json"))
    assert found.form == form
    assert {name: found.load(name).model_patch for name in found.ids} == {"a-1": "one", "a-2": "two"}


def test_a_dict_key_that_disagrees_with_its_id_is_refused(tmp_path: Path) -> None:
    document = {"a-1": json.loads(line("a-1")), "a-3": json.loads(line("a-9")), "a-4": {"model_patch": "diff"}}
    found = read_predictions(write(tmp_path, json.dumps(document), "preds.json"))
    assert found.ids == ("a-1", "a-4")
    assert kinds(found) == [("a-3", "key_disagrees")]


@pytest.mark.parametrize("text", ["", "  \n\n", "\ufeff"])
def test_an_empty_file_is_an_error_that_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidFile, match="no predictions"):
        read_predictions(write(tmp_path, text))


def test_a_missing_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_predictions(tmp_path / "nowhere.jsonl")


def test_a_cut_json_list_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="is the file cut"):
        read_predictions(write(tmp_path, f"[{line('a-1')}, ", "preds.json"))


def test_extra_keys_and_odd_bytes_survive(tmp_path: Path) -> None:
    raw = "caf\udce9 \u2028 \x0c form feed"  # a Latin-1 byte, a line separator and a form feed inside one patch
    path = write(tmp_path, line("a-1", raw, cost_usd=0.25, tokens=10, steps=[1]) + "\n" + line("a-2"))
    found = read_predictions(path)
    prediction = found.load("a-1")
    assert prediction.patch_bytes == raw.encode("utf-8", "surrogateescape")
    assert (prediction.cost_usd, prediction.tokens, prediction.extra["steps"]) == (0.25, 10, [1])
    again = read_predictions(write(tmp_path, prediction.to_line().decode(), "again.jsonl")).load("a-1")
    assert again == prediction


def test_an_unknown_cost_is_not_zero() -> None:
    assert Prediction(instance_id="a", model_name_or_path="m", model_patch="").cost_usd is None
