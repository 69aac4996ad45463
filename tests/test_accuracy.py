"""The accuracy stage against real servers in sandboxes: what passes, what fails, what is a machine fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness.gsm8k import Problem, QuestionSet, read_answers
from harness.stages.accuracy import RequestsFailed, execute_accuracy, grade_accuracy, run_accuracy
from harness.stages.sides import GoldCannotServe
from rtb.baseline import Baseline
from rtb.errors import StoredRunBroken
from rtb.sandbox import Sandbox
from rtb.task import Task
from tests.sides import both, opener, serve, task

Opener = Callable[[], AbstractContextManager[Sandbox]]
FAST = "--ttft-ms 1 --gap-ms 0 --answers answers.json"
COUNT = 60


def questions(count: int = COUNT) -> QuestionSet:
    problems = tuple(Problem(question=f"What is {n} + {n}?", answer=f"{n}+{n}\n#### {n + n}") for n in range(count))
    return QuestionSet("doubling", problems[:5], problems, max_tokens=16)


def answers(wrong: int = 0, lost_mark: int = 0) -> dict[str, str]:
    """Answers by the end of the prompt; the first `wrong` are wrong, the next `lost_mark` lack the #### mark."""
    given = {}
    for n in range(COUNT):
        value = n + n + 1 if n < wrong else n + n
        mark = "so" if wrong <= n < wrong + lost_mark else "####"
        given[f"Question: What is {n} + {n}?\nAnswer:"] = f"{n}+{n}\n{mark} {value}"
    return {"answers.json": json.dumps(given)}


def accuracy_task(margin: float = 8.0, **more: object) -> Task:
    return task(accuracy={"serve": serve(**more), "dataset": "own", "model": "m", "margin": margin})


@pytest.fixture
def gold(tmp_path: Path) -> Opener:
    return opener(tmp_path / "gold", FAST, answers(wrong=3))


def test_equal_answers_pass_in_both_profiles_and_are_graded_again_from_the_files(
    tmp_path: Path, gold: Opener
) -> None:
    model = opener(tmp_path / "model", FAST, answers(wrong=3))
    raw = tmp_path / "raw"
    with both(gold, model, known=Baseline(flip_rate=0.01)) as sides:
        result = run_accuracy(accuracy_task(), questions(), sides, raw)
    assert (result.status, result.tampered) == ("passed", None), result.reason
    facts = result.accuracy
    assert facts is not None
    assert (facts.questions, facts.available, facts.flip_rate, facts.paper) == (COUNT, COUNT, 0.01, True)
    assert facts.filters["strict-match"].gold_right == COUNT - 3
    assert facts.filters["strict-match"].difference_points == 0
    assert facts.provable_margin_points > 0
    assert grade_accuracy(accuracy_task(), raw) == result
    assert grade_accuracy(accuracy_task(), raw, "paper").status == "passed"
    assert result.coverage is not None
    assert result.coverage.state == "uncovered"  # a mock server launches no kernel, and the result says so
    assert result.flags[0].startswith("uncovered")
    kept = read_answers(raw / "answers-model.jsonl")
    assert len({answer.prompt_sha256 for answer in kept}) == COUNT
    assert kept[7].text == "7+7\n#### 14 "
    assert (kept[7].strict, kept[7].flexible, kept[7].strict_right) == ("14", "14", True)


def test_a_kernel_that_costs_answers_fails_on_the_filter_it_costs_them_in(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", FAST, answers(wrong=3, lost_mark=20))
    with both(gold, model) as sides:
        result = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")
    assert result.status == "failed"
    assert result.reason.startswith("strict-match 37/60, gold 57/60: -33.33 points")
    assert result.accuracy is not None
    assert result.accuracy.filters["flexible-extract"].decision == "passed"
    assert result.accuracy.filters["strict-match"].mcnemar_p < 1e-5


def test_one_answer_less_is_a_failure_by_the_papers_rule_only(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", FAST, answers(wrong=4))
    raw = tmp_path / "raw"
    with both(gold, model) as sides:
        execute_accuracy(accuracy_task(margin=12.0), questions(), sides, raw)
    assert grade_accuracy(accuracy_task(margin=12.0), raw).status == "passed"
    assert grade_accuracy(accuracy_task(margin=12.0), raw, "paper").status == "failed"
    few = grade_accuracy(accuracy_task(margin=2.0), raw)
    assert few.status == "inconclusive"
    assert "60 questions show no less than" in few.reason


def test_golds_answers_are_asked_once_in_an_environment(tmp_path: Path, gold: Opener) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    model = opener(tmp_path / "model", FAST, answers(wrong=3))

    def closed() -> AbstractContextManager[Sandbox]:
        raise AssertionError("gold was opened though its answers are known")

    with both(gold, model, cache) as sides:
        first = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "one")
    with both(closed, model, cache) as sides:
        second = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "two")
    assert first.accuracy is not None and second.accuracy is not None
    assert first.accuracy.filters == second.accuracy.filters
    assert "gold's answers are those of an earlier run in this environment" in second.flags


def test_a_server_that_the_patch_breaks_fails_the_patch(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", f"{FAST} --exit-code 3", answers())
    with both(gold, model) as sides:
        result = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")
    assert result.status == "failed"
    assert "the patch's does not come up" in result.reason and "exit code 3" in result.reason


def test_a_server_that_gold_cannot_start_is_the_machines_fault(tmp_path: Path) -> None:
    gold = opener(tmp_path / "gold", f"{FAST} --exit-code 3", answers())
    model = opener(tmp_path / "model", FAST, answers())
    with pytest.raises(GoldCannotServe, match="exit code 3"), both(gold, model) as sides:
        run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")


def test_a_server_that_crashes_at_the_third_request_is_the_patchs_when_gold_answers(
    tmp_path: Path, gold: Opener
) -> None:
    model = opener(tmp_path / "model", f"{FAST} --fault crash_third", answers())
    with both(gold, model) as sides:
        result = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")
    assert result.status == "failed"
    assert "no answer to /health" in result.reason


def test_a_gold_server_that_crashes_at_the_third_request_is_the_machines_fault(tmp_path: Path) -> None:
    gold = opener(tmp_path / "gold", f"{FAST} --fault crash_third", answers())
    model = opener(tmp_path / "model", FAST, answers())
    with pytest.raises(GoldCannotServe, match="no answer to /health"), both(gold, model) as sides:
        run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")


@pytest.mark.parametrize(
    ("fault", "words"), [("half_frame", "before the response ended"), ("status_500_later", "status 500")]
)
def test_half_frames_and_status_500_are_no_answers(tmp_path: Path, gold: Opener, fault: str, words: str) -> None:
    model = opener(tmp_path / "model", f"--ttft-ms 1 --gap-ms 0 --fault {fault} --answers answers.json", answers())
    with pytest.raises(RequestsFailed, match=words), both(gold, model) as sides:
        run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")


def test_requests_that_fail_are_never_wrong_answers(tmp_path: Path, gold: Opener) -> None:
    # Ready, since one token needs no second chunk; then every longer answer breaks off.
    model = opener(tmp_path / "model", "--ttft-ms 1 --gap-ms 0 --fault close_long --answers answers.json", answers())
    raw = tmp_path / "raw"
    with pytest.raises(RequestsFailed, match="failed 3 times"), both(gold, model) as sides:
        run_accuracy(accuracy_task(), questions(), sides, raw)
    with pytest.raises(StoredRunBroken):
        grade_accuracy(accuracy_task(), raw)


def test_a_request_that_fails_once_is_asked_again(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 1 --gap-ms 0 --fault close_some --answers answers.json", answers(3))
    with both(gold, model) as sides:
        result = run_accuracy(accuracy_task(), questions(), sides, tmp_path / "raw")
    assert result.status == "passed", result.reason
    assert result.accuracy is not None
    assert result.accuracy.retried_requests > 0
    assert result.accuracy.filters["strict-match"].model_right == COUNT - 3


def test_a_stored_run_that_lost_answers_is_not_graded(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", FAST, answers())
    raw = tmp_path / "raw"
    with both(gold, model) as sides:
        execute_accuracy(accuracy_task(), questions(), sides, raw)
    path = raw / "answers-model.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(StoredRunBroken, match="59 answers are stored, 60 were given"):
        grade_accuracy(accuracy_task(), raw)
