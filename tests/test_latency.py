"""The latency stage against real servers in sandboxes. Slow-downs are planted wide, so that no machine hides them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness import workload
from harness.decisions import Schedule
from harness.request import read_records
from harness.stages.latency import run_latency
from harness.stages.latency_grade import grade_latency
from harness.stages.sides import GoldCannotServe
from rtb.baseline import Baseline
from rtb.errors import StoredRunBroken
from rtb.sandbox import Sandbox
from rtb.task import LatencyStage, Task
from tests.sides import both, opener, serve, task

Opener = Callable[[], AbstractContextManager[Sandbox]]
PLAIN = "--ttft-ms 40 --gap-ms 4"
FEW = Schedule((3,), 0.02)
TWO = Schedule((2,), 0.05)


def latency_task(**load: object) -> Task:
    given = {"prompts": 4, "input_len": 50, "output_len": 6, "concurrency": 2, **load}
    return task(latency={"serve": serve(), "workload": given})


@pytest.fixture
def gold(tmp_path: Path) -> Opener:
    return opener(tmp_path / "gold", PLAIN)


def test_a_slower_first_token_fails_and_every_number_comes_from_the_stored_requests(
    tmp_path: Path, gold: Opener
) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 500 --gap-ms 4")
    raw = tmp_path / "raw"
    with both(gold, model, known=Baseline(gold_over_base={"s_ttft": 1.5, "s_tpot": 1.0})) as sides:
        result = run_latency(latency_task(), sides, raw, schedule=FEW)
    assert result.status == "failed", result.reason
    facts = result.latency
    assert facts is not None
    ttft = facts.ratios["s_ttft"]
    assert ttft.decision == "failed"
    assert ttft.estimate < 0.7
    assert ttft.gold_seconds >= 0.040 and ttft.model_seconds >= 0.500
    assert ttft.gain_over_base == pytest.approx(1.5 * ttft.estimate)
    assert ttft.paper is False and facts.paper is False
    assert set(facts.single) == {"s_ttft", "s_tpot"}
    assert grade_latency(latency_task(), raw) == result
    assert grade_latency(latency_task(), raw, "paper").status == "failed"
    # Blocks alternate; both sides of a block got the same new prompts.
    order = [
        (line["pair"], line["side"]) for line in map(json.loads, (raw / "blocks.jsonl").read_text().splitlines())
    ]
    assert order[:4] == [(0, "gold"), (0, "model"), (1, "model"), (1, "gold")]
    prompts = {
        (pair, side): [
            item.prompt_sha256 for item in read_records(raw / "requests" / f"{pair:03d}-{side}-batch.jsonl")
        ]
        for pair in (0, 1)
        for side in ("gold", "model")
    }
    assert prompts[0, "gold"] == prompts[0, "model"]
    assert not set(prompts[0, "gold"]) & set(prompts[1, "gold"])
    # Fewer pairs than a first look needs decide nothing; a value that only the patch's server lacks still does.
    lines = (raw / "blocks.jsonl").read_text().splitlines(keepends=True)
    few = FEW.looks[0] - 1
    (raw / "blocks.jsonl").write_text("".join(lines[: 2 * few]))
    cut = grade_latency(latency_task(), raw)
    assert (cut.status, cut.reason) == ("inconclusive", "too few block pairs for a first look")
    kept = (raw / "requests" / "000-model-batch.jsonl").read_bytes()
    empty = [{**json.loads(line), "tokens": [], "continuous": False} for line in kept.splitlines()]
    (raw / "requests" / "000-model-batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in empty))
    assert grade_latency(latency_task(), raw).status == "failed"
    (raw / "requests" / "000-model-batch.jsonl").write_bytes(kept)
    # A request that is gone is noticed.
    (raw / "requests" / "000-gold-batch.jsonl").unlink()
    with pytest.raises(StoredRunBroken):
        grade_latency(latency_task(), raw)


def test_a_slower_token_rate_fails_on_tpot(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 40 --gap-ms 80")
    with both(gold, model) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=FEW)
    assert result.status == "failed", result.reason
    assert result.latency is not None
    assert result.latency.ratios["s_tpot"].decision == "failed"


def test_an_unmeasurable_machine_never_passes(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 20 --gap-ms 2")
    known = Baseline(unmeasurable="gold against gold differs by 4.0 %, allowed is 1 %")
    with both(gold, model, known=known) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)
    assert result.status == "inconclusive"
    assert result.reason.startswith("unmeasurable on this machine: gold against gold differs by 4.0 %")


def test_answers_that_stop_early_fail_however_fast_they_are(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 1 --gap-ms 1 --fault short_later")
    with both(gold, model) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)
    assert result.status == "failed"
    assert "3 tokens, 6 were asked for" in result.reason
    assert result.latency is None or result.latency.invalid


def test_answers_with_the_right_count_and_little_text_fail(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", "--ttft-ms 1 --gap-ms 1 --fault empty_text")
    with both(gold, model) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)
    assert result.status == "failed"
    assert "as many tokens as gold's, but 2 characters and not 10" in result.reason


def test_a_server_that_cannot_do_the_workload_is_the_patchs_when_gold_can(tmp_path: Path, gold: Opener) -> None:
    model = opener(tmp_path / "model", f"{PLAIN} --exit-code 2")
    with both(gold, model) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)
    assert result.status == "failed"
    assert "the patch's does not come up" in result.reason


def test_a_server_that_crashes_at_the_third_request_is_the_patchs_when_gold_does_not(
    tmp_path: Path, gold: Opener
) -> None:
    model = opener(tmp_path / "model", f"{PLAIN} --fault crash_third")
    with both(gold, model) as sides:
        result = run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)
    assert result.status == "failed"
    assert "the patch's" in result.reason, result.reason


def test_a_gold_server_that_cannot_is_the_machines_fault(tmp_path: Path) -> None:
    gold = opener(tmp_path / "gold", f"{PLAIN} --fault short")
    model = opener(tmp_path / "model", PLAIN)
    with pytest.raises(GoldCannotServe, match="3 tokens, 6 were asked for"), both(gold, model) as sides:
        run_latency(latency_task(concurrency=1), sides, tmp_path / "raw", schedule=TWO)


def test_prompts_are_words_as_many_as_make_the_length() -> None:
    assert workload.words_for(1024, ((32, 50), (64, 90))) == 811  # 1.25 a word and 10 more
    assert workload.words_for(1024, ((32, 3), (64, 3))) == 1024  # a server that counts nothing useful
    assert workload.text(5, "a", 1) == workload.text(5, "a", 1)
    assert workload.text(5, "a", 1) != workload.text(5, "a", 2)
    stage = LatencyStage.model_validate(
        {"serve": serve(request={"ignore_eos": None}), "workload": {
            "prompts": 2, "input_len": 8, "output_len": 4, "concurrency": 1}}
    )  # fmt: skip
    first, second = workload.requests(stage, "t", 6, "batch", 0, 2)
    assert "ignore_eos" not in first.body
    assert first.body["prompt"] != second.body["prompt"]
    assert (first.requested, first.body["max_tokens"]) == (4, 4)
