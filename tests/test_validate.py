"""`rtb validate` end to end: every control through every stage of a task that serves, with real processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.decisions import Schedule
from harness.validate_suite import record_twins, validate_tasks
from harness.validation import Validation
from rtb.baseline import read_baseline
from rtb.errors import ExpectedError
from rtb.storage import write_model
from rtb.suite import LoadedSuite, load_suite
from rtb.task import StageName, TestIds
from tests import servingsuite

# Three pairs and wide bounds: a busy loop is far outside of them, and no busy machine makes gold fail.
WIDE = Schedule((3,), 0.005)
Make = Callable[..., LoadedSuite]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the serving suite, found by name."""
    with servingsuite.found(tmp_path):
        yield lambda **how: servingsuite.make(tmp_path, **how)


def validate(suite: LoadedSuite, out: Path, *stages: StageName, runs: int = 1) -> tuple[Validation, list[str]]:
    said: list[str] = []
    (found,) = validate_tasks(
        suite.entries, sandbox="local", out=out, say=said.append, stages=stages, runs=runs, schedule=WIDE
    )
    return found, said


@pytest.mark.slow
def test_a_sound_task_gets_its_ids_and_its_baseline(make: Make, tmp_path: Path) -> None:
    suite = make()
    (entry,) = suite.entries
    found, said = validate(suite, tmp_path / "out", "unit", "accuracy", "latency", runs=3)
    assert found.refused == ()
    assert said[-1] == f"{servingsuite.NAME}: sound"
    counts = Counter((run.stage, run.control) for run in found.controls)
    assert counts["unit", "gold"] == counts["unit", "base"] == counts["unit", "scale"] == 3
    statuses = {(run.stage, run.control): run.status for run in found.controls}
    assert statuses["accuracy", "gold"] == "passed" and statuses["accuracy", "scale"] == "failed"
    assert statuses["latency", "busy_loop"] == "failed" and statuses["latency", "gold"] != "failed"
    tests = json.loads(entry.folder.tests_json.read_text())
    assert tests["fail_to_pass"] == [f"tests/test_double.py::test_doubles[{x}]" for x in (1, 3)]
    assert tests["pass_to_pass"] == ["tests/test_double.py::test_zero"] and tests["gold_runs"] == 3
    baseline = read_baseline(entry, "cpu")
    assert baseline == found.baseline
    assert baseline.flip_rate == 0.0
    assert set(baseline.gold_over_gold) == set(baseline.deviation) == set(baseline.gold_over_base)
    assert json.loads((tmp_path / "out" / servingsuite.NAME / "validation.json").read_text())["refused"] == []


def test_what_notices_gold_made_wrong_is_recorded_alone(make: Make, tmp_path: Path) -> None:
    (entry,) = make().entries
    doubles = tuple(f"tests/test_double.py::test_doubles[{x}]" for x in (1, 3))
    zero = ("tests/test_double.py::test_zero",)
    before = TestIds(instance_id=servingsuite.NAME, fail_to_pass=doubles, pass_to_pass=zero, gold_runs=3, base_runs=3)
    said: list[str] = []

    def record() -> dict[str, TestIds]:
        entries = load_suite("serving", tmp_path / "tasks").entries
        return record_twins(entries, sandbox="local", out=tmp_path / "out", say=said.append)

    with pytest.raises(ExpectedError, match=r"no tests\.json"):
        record()
    write_model(entry.folder.tests_json, before)
    found = record()[servingsuite.NAME]
    assert TestIds.model_validate_json(entry.folder.tests_json.read_bytes()) == found
    # Nothing doubled and shifted by three is nothing any more.
    assert found == before.model_copy(update={"twin": "noticed", "twin_noticed_by": (*doubles, *zero)})
    assert said[-1] == f"{servingsuite.NAME}: gold made wrong is noticed (3 of 3 tests)"


@pytest.mark.slow
def test_a_stage_that_does_not_notice_a_sabotage_is_refused(make: Make, tmp_path: Path) -> None:
    found, said = validate(make(blind=True), tmp_path / "out", "accuracy")
    (reason,) = found.refused
    assert reason.startswith("the accuracy stage does not notice a sabotaged target (scale, drop_rows): passed")
    assert said[-1] == f"{servingsuite.NAME}: REFUSED: {reason}"


@pytest.mark.slow
def test_a_kernel_that_is_never_launched_is_refused_as_uncovered(make: Make, tmp_path: Path) -> None:
    found, _ = validate(make(kernel=True), tmp_path / "out", "accuracy")
    assert found.coverage["accuracy"].state == "uncovered"
    (reason,) = found.refused
    assert reason.startswith("the accuracy stage says nothing about the target: uncovered")
    assert "pkg/kernel.py::_kernel" in reason
