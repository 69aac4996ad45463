"""Stored runs with model stages: a real run's folder to which raw files of accuracy and latency are added, by the
same public writers that an evaluation uses. What is written is graded and shown like any other run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.gsm8k import Problem, score, write_answers
from harness.request import RequestRecord, prompt_sha256, write_records
from harness.stages.accuracy import AccuracyFolder, AccuracyRecord
from harness.stages.latency_grade import BATCH, LatencyFolder, LatencyRecord, Launch, write_launches
from harness.stages.sides import ServerFacts, Side
from rtb.baseline import Baseline
from rtb.run import Run, RunRecord, StageTimes, TaskRecord
from rtb.storage import write_model
from rtb.suite import read_model
from rtb.task import StageName

SERVE = {"command": "serve --port {port}", "model": "m"}
SIDES: tuple[Side, Side] = ("gold", "model")


def _with_stage(run: Run, name: str, stage: StageName, facts: dict[str, object]) -> None:
    """The task's record asks for one more stage."""
    folder = run.task(name)
    record = read_model(folder.record, TaskRecord)
    values = record.model_dump(mode="json")
    values["task"][stage] = facts
    values["stages"] = [*record.stages, stage]
    values["key"]["stages"] = values["stages"]
    write_model(folder.record, TaskRecord.model_validate(values))
    times = read_model(folder.times, StageTimes)
    write_model(folder.times, times.model_copy(update={"stage_seconds": {**times.stage_seconds, stage: 1.0}}))
    whole = run.read_record()
    if stage not in whole.stages:
        write_model(run.record, RunRecord.model_validate({**whole.model_dump(), "stages": [*whole.stages, stage]}))


def add_accuracy(
    run: Run, name: str, *, lost: Sequence[int] = (), won: Sequence[int] = (), questions: int = 200, text: str = ""
) -> None:
    """The task gets an accuracy stage. Both sides are right but for one question in ten; `lost` and `won` flip."""
    _with_stage(run, name, "accuracy", {"serve": SERVE, "model": "m", "margin": 4.0})
    folder = AccuracyFolder(run.task(name).stage("accuracy"))
    problems = [
        Problem(question=f"How many is {index} and 1?", answer=f"#### {index + 1}") for index in range(questions)
    ]
    for side in SIDES:
        right = [index % 10 != 0 for index in range(questions)]
        for index in won:
            right[index] = side == "model"
        for index in lost:
            right[index] = side == "gold"
        records = [
            _request(index, f"{text} so it is\n#### {index + 1 if right[index] else 7 * index + 5}", 0.5, 0.01)
            for index in range(questions)
        ]
        write_answers(
            folder.answers(side), [score(item, problem) for item, problem in zip(records, problems, strict=True)]
        )
        folder.log(side).write_text(f"INFO serving as {side}\n{text}\n")
    write_model(
        folder.record,
        AccuracyRecord(
            questions=questions, available=questions, gold=ServerFacts(ready_seconds=1.0),
            model=ServerFacts(ready_seconds=1.0), flip_rate=0.01, seconds=12.0,
        ),
    )  # fmt: skip


def add_latency(
    run: Run,
    name: str,
    *,
    slower: float = 1.0,
    pairs: int = 6,
    requests: int = 40,
    noise: float = 0.004,
    seed: int = 1,
) -> None:
    """The task gets a latency stage in which the model's side takes `slower` times as long."""
    load = {"prompts": requests, "input_len": 64, "output_len": 16, "concurrency": 4}
    _with_stage(run, name, "latency", {"serve": SERVE, "workload": load})
    folder = LatencyFolder(run.task(name).stage("latency"))
    folder.clear()
    draw = random.Random(seed)
    launches = []
    for pair in range(pairs):
        for position, side in enumerate(SIDES if pair % 2 == 0 else SIDES[::-1]):
            factor = (slower if side == "model" else 1.0) * draw.gauss(1.0, noise)
            records = [
                _request(index, "", factor * draw.lognormvariate(-0.7, 0.2), factor * draw.gauss(0.03, 0.001), 16)
                for index in range(requests)
            ]
            write_records(folder.requests(pair, side, BATCH), records)
            launches.append(
                Launch(
                    pair=pair, side=side, position=position, ready_seconds=3.2, warmup_rounds=2, steady=True,
                    device_before={}, device_after={},
                )
            )  # fmt: skip
            folder.log(side, pair).write_text(f"server of {side}, pair {pair}\n")
    write_launches(folder.launches, launches)
    write_model(
        folder.record,
        LatencyRecord(
            model=ServerFacts(ready_seconds=3.0), words=64, looks=(4, 6, 9, 12), alpha=0.02,
            known=Baseline(gold_over_base={"s_ttft": 1.2, "s_tpot": 1.1}), seconds=60.0,
        ),
    )  # fmt: skip


def _request(index: int, text: str, ttft: float, tpot: float, tokens: int = 8) -> RequestRecord:
    first, step = int(ttft * 1e9), int(tpot * 1e9)
    times = tuple((first + place * step, place + 1) for place in range(tokens))
    return RequestRecord(
        index=index, prompt_sha256=prompt_sha256({"prompt": str(index)}), requested=tokens, sent_ns=index * 10**8,
        first_byte_ns=first, end_ns=times[-1][0], status=200, tokens=times, continuous=True, chunks=tokens,
        prompt_tokens=64, completion_tokens=tokens, finish="length", text=text,
    )  # fmt: skip
