"""Test ids from repeated runs and from published lists."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ids import Run, read_published, stable_ids, test_ids
from harness.pytest_log import read_log
from rtb.errors import ExpectedError, InvalidFile
from tests.cases import case_folder

A, B, C, D, E = (f"tests/t.py::test_{name}" for name in "abcde")


def test_ids_are_sorted_by_what_changes() -> None:
    gold: Run = {A: "PASSED", B: "PASSED", C: "FAILED", D: "PASSED", E: "FAILED"}
    base: Run = {A: "FAILED", B: "PASSED", C: "FAILED", E: "PASSED"}
    stable = stable_ids([gold] * 3, [base] * 3)
    assert (stable.fail_to_pass, stable.pass_to_pass, stable.new_to_pass) == ((A, D), (B,), (D,))
    assert (stable.gold_failures, stable.pass_to_fail) == ({C: "FAILED", E: "FAILED"}, (E,))
    assert stable.quarantined == {}
    ids = test_ids("org__repo-1", [gold] * 3, [base] * 3, provenance="here")
    assert (ids.gold_runs, ids.base_runs, ids.expected) == (3, 3, (A, D, B))


def test_a_base_that_does_not_collect_makes_every_id_new() -> None:
    stable = stable_ids([{A: "PASSED"}], [{}])
    assert (stable.fail_to_pass, stable.new_to_pass) == ((A,), (A,))


@pytest.mark.parametrize("side", ["gold", "base"])
def test_an_id_that_flips_is_quarantined(side: str) -> None:
    steady: list[Run] = [{A: "PASSED", B: "PASSED"}] * 3
    flipping: list[Run] = [{A: "PASSED", B: "PASSED"}, {A: "FAILED", B: "PASSED"}, {A: "PASSED", B: "PASSED"}]
    stable = stable_ids(flipping, steady) if side == "gold" else stable_ids(steady, flipping)
    assert f"flips between equal {side} runs: PASSED, FAILED, PASSED" in stable.quarantined[A]
    assert stable.pass_to_pass == (B,)


def test_failing_in_different_ways_at_base_is_no_flip() -> None:
    stable = stable_ids([{A: "PASSED"}], [{A: "FAILED"}, {A: "ERROR"}, {}])
    assert (stable.fail_to_pass, stable.new_to_pass, stable.quarantined) == ((A,), (), {})


def test_an_address_in_an_id_is_seen_in_a_single_run() -> None:
    stable = stable_ids([{f"{A}[<object object at 0x7f22ab>]": "PASSED", f"{B}[0x1F]": "PASSED"}], [{}])
    assert list(stable.quarantined) == [A]
    assert stable.fail_to_pass == (f"{B}[0x1F]",)


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(ExpectedError, match="no stable FAIL_TO_PASS"):
        test_ids("org__repo-1", [{A: "PASSED"}], [{A: "PASSED"}])
    ids = test_ids("org__repo-1", [{A: "PASSED"}], [{A: "PASSED"}], told_by_latency=True)
    assert (ids.fail_to_pass, ids.pass_to_pass) == ((), (A,))
    with pytest.raises(ExpectedError, match="no stable FAIL_TO_PASS"):
        test_ids("org__repo-1", [{A: "FAILED"}], [{A: "FAILED"}], told_by_latency=True)
    with pytest.raises(ExpectedError, match="at least one gold and one base"):
        stable_ids([], [{}])


def test_case_71_ids_that_change_every_run() -> None:
    folder = case_folder("71-ids-that-change-every-run")
    wanted = json.loads((folder / "case.json").read_text())["expected"]
    before, *gold = ((folder / f"{name}.log").read_bytes() for name in ("before", "gold1", "gold2"))
    runs = [read_log(data).statuses for data in (*gold, before)]
    stable = stable_ids(runs[:2], runs[2:])
    assert list(stable.pass_to_pass) == wanted["PASS_TO_PASS"] and list(stable.fail_to_pass) == wanted["FAIL_TO_PASS"]
    assert sorted(stable.quarantined) == wanted["unstable"]
    with pytest.raises(ExpectedError, match=r"no stable FAIL_TO_PASS id.*rejected"):
        test_ids("org__repo-1", runs[:2], runs[2:])


STATUS = st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED"])
RUNS = st.lists(st.dictionaries(st.sampled_from([A, B, C]), STATUS), min_size=1, max_size=3)


@given(gold=RUNS, base=RUNS)
def test_an_expected_id_passed_in_every_gold_run(gold: list[Run], base: list[Run]) -> None:
    stable = stable_ids(gold, base)
    for node in stable.fail_to_pass + stable.pass_to_pass:
        assert all(run.get(node) == "PASSED" for run in gold)
    for node in stable.fail_to_pass:
        assert all(run.get(node) != "PASSED" for run in base)
    for node in stable.pass_to_pass:
        assert all(run.get(node) == "PASSED" for run in base)
    assert not set(stable.quarantined) & set(stable.fail_to_pass + stable.pass_to_pass)


@pytest.mark.parametrize("value", [7, [7], {"a": 1}, "7", "not a list", "[unquoted]"])
def test_lists_of_another_shape_are_refused(value: object) -> None:
    with pytest.raises(InvalidFile, match="org__a-1: FAIL_TO_PASS"):
        read_published({"instance_id": "org__a-1", "FAIL_TO_PASS": value, "PASS_TO_PASS": []})
