"""What refuses a task, decided from control runs alone; serve blocks by version; baselines on disk."""

from __future__ import annotations

import pytest

from harness.serve_blocks import blocks, serve_block
from harness.validation import Control, ControlRun, notes, refusals
from rtb.baseline import Baseline
from rtb.errors import ExpectedError
from rtb.result import CoverageFacts, Status
from rtb.task import StageName


def run(control: Control, stage: StageName, status: Status, number: int = 1) -> ControlRun:
    return ControlRun(control=control, stage=stage, number=number, status=status, reason=f"{control} {status}")


SOUND = [
    *(run("gold", "unit", "passed", n) for n in (1, 2, 3)),
    *(run("base", "unit", "failed", n) for n in (1, 2, 3)),
    *(run("scale", "unit", "failed", n) for n in (1, 2, 3)),
    *(run("drop_rows", "unit", "failed", n) for n in (1, 2, 3)),
    run("low_precision", "unit", "passed"),
    run("gold", "accuracy", "passed"),
    run("scale", "accuracy", "failed"),
    run("gold", "latency", "inconclusive"),
    run("base", "latency", "failed"),
    run("busy_loop", "latency", "failed"),
]
STAGES: tuple[StageName, ...] = ("unit", "accuracy", "latency")
COVERED = CoverageFacts(state="covered", reason="7 launches")


def changed(control: Control, stage: StageName, status: Status) -> list[ControlRun]:
    """The sound runs with the last one of a kind changed."""
    found = list(SOUND)
    place = max(n for n, item in enumerate(found) if (item.control, item.stage) == (control, stage))
    found[place] = run(control, stage, status, found[place].number)
    return found


def test_a_sound_task_is_not_refused_and_what_tolerance_lets_pass_is_noted() -> None:
    assert refusals(STAGES, SOUND, {}, dict.fromkeys(STAGES, COVERED)) == ()
    assert notes(SOUND, {}, Baseline()) == ("the unit stage lets low precision pass (passed)",)


@pytest.mark.parametrize(
    ("control", "stage", "status", "words"),
    [
        ("gold", "unit", "failed", "gold fails the unit stage (1 runs): gold failed"),
        ("gold", "accuracy", "failed", "gold fails the accuracy stage"),
        ("base", "unit", "passed", "doing nothing passes the unit stage (run 3)"),
        ("scale", "unit", "passed", "the unit stage does not notice a sabotaged target (scale): passed in run 3"),
        ("drop_rows", "unit", "inconclusive", "does not notice a sabotaged target (drop_rows)"),
        ("scale", "accuracy", "passed", "the accuracy stage does not notice a sabotaged target (scale)"),
        ("busy_loop", "latency", "inconclusive", "the latency stage does not notice a sabotaged target (busy_loop)"),
    ],
)
def test_one_wrong_control_refuses_the_task_with_its_reason(
    control: Control, stage: StageName, status: Status, words: str
) -> None:
    found = refusals(STAGES, changed(control, stage, status), {}, dict.fromkeys(STAGES, COVERED))
    assert len(found) == 1
    assert words in found[0]


def test_tests_of_before_are_enough_only_where_another_stage_tells_base_from_gold() -> None:
    runs = [run("base", "unit", "passed", item.number) if (item.control, item.stage) == ("base", "unit") else item
            for item in SOUND]  # fmt: skip
    assert refusals(STAGES, runs, {}, {}) == ()
    equal = [run("base", "latency", "passed") if item.control == "base" and item.stage == "latency" else item
             for item in runs]  # fmt: skip
    (told,) = refusals(STAGES, equal, {}, {})
    assert (
        "doing nothing passes the unit stage (run 1), and no other stage tells it from gold (latency: passed" in told
    )
    (alone,) = refusals(("unit",), [item for item in runs if item.stage == "unit"], {}, {})
    assert "none was run: validate latency, too" in alone


def test_accuracy_may_miss_one_of_its_two_sabotages() -> None:
    runs = [*changed("scale", "accuracy", "passed"), run("drop_rows", "accuracy", "failed")]
    assert refusals(STAGES, runs, {}, {}) == ()


def test_an_uncovered_stage_is_refused_once_and_for_that() -> None:
    uncovered = CoverageFacts(state="uncovered", reason="uncovered: the stage never launched a.py::k")
    found = refusals(STAGES, changed("scale", "accuracy", "passed"), {}, {"accuracy": uncovered})
    assert found == ("the accuracy stage says nothing about the target: uncovered: the stage never launched a.py::k",)


def test_a_sabotage_that_the_targets_do_not_allow_is_noted_and_not_demanded() -> None:
    runs = [item for item in SOUND if item.control != "drop_rows"]
    impossible: dict[Control, str] = {"drop_rows": "no target can be sabotaged"}
    assert refusals(STAGES, runs, impossible, {}) == ()
    assert "drop_rows is not possible: no target can be sabotaged" in notes(runs, impossible, Baseline())


def test_only_the_stages_asked_for_are_judged() -> None:
    runs = [item for item in SOUND if item.stage == "unit"]
    assert refusals(("unit",), runs, {}, {}) == ()


@pytest.mark.parametrize(
    ("framework", "version", "words"),
    [
        ("vllm", "0.9.2", "VLLM_ATTENTION_BACKEND=TRITON_ATTN_VLLM_V1"),
        ("vllm", "0.11.2.dev397+gd91fceb3b", "VLLM_ATTENTION_BACKEND=TRITON_ATTN"),
        ("vllm", "0.15.1", "--attention-backend TRITON_ATTN"),
        ("sglang", "0.5.12", "--attention-backend triton"),
    ],
)
def test_the_attention_back_end_is_named_as_the_version_wants_it(framework: str, version: str, words: str) -> None:
    block = serve_block(framework, version, "m")
    shown = " ".join([*(f"{key}={value}" for key, value in block.env.items()), block.command])
    assert words in shown.split() or words in shown
    assert ("--attention-backend TRITON_ATTN" in block.command) == (version == "0.15.1")


def test_transformers_serve_gets_its_model_as_the_version_wants_it() -> None:
    assert "--force-model {model}" in serve_block("transformers", "5.4.0", "m").command
    assert "serve {model} " in serve_block("transformers", "5.5.0", "m").command


def test_transformers_serve_gets_no_key_that_it_refuses() -> None:
    block = serve_block("transformers", "5.1.0", "m", port=9000)
    assert block.endpoint == "chat"
    assert block.request["ignore_eos"] is None
    assert block.port == 9000


def test_a_version_without_a_block_is_said() -> None:
    with pytest.raises(ExpectedError, match=r"no serve block for vllm 0\.5\.3: there are vllm 0\.10\.2 to 0\.12\.0"):
        serve_block("vllm", "0.5.3", "m")
    assert all("{port}" in block.command and "{model}" in block.command for block in blocks())
