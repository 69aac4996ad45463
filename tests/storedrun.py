"""Stored runs with model stages: a real run's folder to which raw files of accuracy and latency are added, by the
same public writers that an evaluation uses. What is written is graded and shown like any other run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.evaluate import Request, evaluate
from harness.gsm8k import Problem, score, write_answers
from harness.request import RequestRecord, prompt_sha256, write_records
from harness.stages.accuracy import AccuracyFolder, AccuracyRecord
from harness.stages.latency_grade import BATCH, LatencyFolder, LatencyRecord, Launch, write_launches
from harness.stages.sides import ServerFacts, Side
from rtb.baseline import Baseline
from rtb.run import Run, RunRecord, StageTimes, TaskRecord
from rtb.storage import write_model
from rtb.suite import read_model
from rtb.task import STAGES, StageName, canonical_json
from tests import pocketsuite
from tests.pocketsuite import patch, right
from tests.variables import variables

HOSTILE = "</script><script>document.title='owned'</script>\u202eevil \x1b[31mred\x00"
ANSWERS = {
    1: right(1),
    2: right(2),
    3: patch(3, "def f3(x):\n    return 2 * x if x < 3 else '</pre></script><img src=x onerror=alert(1)>\u202e\x07'"),
    4: "",
    5: patch(5, "import os\nos._exit(0)"),
}
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


@contextmanager
def _settings(root: Path) -> Iterator[None]:
    """Environment variables that point rtb at a pocket suite under `root`."""
    settings = {
        "RTB_TASKS": str(root / "tasks"),
        "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
        "RTB_CACHE": str(root / "cache"),
    }
    with variables(settings):
        yield


def every_kind(root: Path) -> Run:
    """A run of six tasks in the local sandbox: two with all stages (one good, one slow), one wrong, one empty, one
    that cheats, one without a prediction. Model name and patches are hostile. Takes the time of making one venv."""
    pocketsuite.make(root, tasks=6)
    lines: list[dict[str, object]] = [
        {"instance_id": f"rtb__pocket-{number}", "model_name_or_path": f"tester {HOSTILE}", "model_patch": text,
         "cost_usd": 0.01 * number, "tokens": 1000 * number}
        for number, text in ANSWERS.items()
    ]  # fmt: skip
    lines[2] |= {"steps": 3, "exit_status": "Submitted", "trajectory": "agent/t.json"}
    lines[1] |= {"steps": 1, "exit_status": HOSTILE, "trajectory": "../outside.json"}
    (root / "agent").mkdir()
    messages = [{"role": "user", "content": f"please {HOSTILE}"}, {"role": "assistant", "content": "I double it"}]
    (root / "agent" / "t.json").write_text(json.dumps({"messages": messages}))
    (root.parent / "outside.json").write_text(json.dumps({"messages": [{"role": "user", "content": "a secret"}]}))
    (root / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = Request(
        predictions=str(root / "p.jsonl"), suite="pocket", instances=(), stages=("unit",), sandbox="local",
        workers=2, run_id="r", profile="robust", out=root / "runs", retries=0, quiet=True,
    )  # fmt: skip
    with _settings(root):
        run = evaluate(request).run
    add_accuracy(run, "rtb__pocket-1", lost=[3, 14], won=[20], text=HOSTILE)
    add_latency(run, "rtb__pocket-1", slower=0.9, noise=0.002)
    add_accuracy(run, "rtb__pocket-2", lost=[3])
    add_latency(run, "rtb__pocket-2", slower=1.06, noise=0.002)
    return run


def many(source: Run, path: Path, count: int, names: Sequence[str], stages: Sequence[StageName] | None = None) -> Run:
    """A run of `count` tasks whose folders are copies of `names` of `source`, in turn; of `stages` where given."""
    record = source.read_record()
    made = Run(path)
    categories = {}
    for number in range(count):
        name, new = names[number % len(names)], f"rtb__pocket-{1000 + number}"
        categories[new] = record.categories[name]
        folder = made.task(new)
        shutil.copytree(source.task(name).path, folder.path)
        values = json.loads(folder.record.read_text().replace(name, new))
        values["task"]["pull_number"] = 1000 + number
        values["stages"] = [stage for stage in values["stages"] if stages is None or stage in stages]
        for stage in set(STAGES) - set(values["stages"]):
            shutil.rmtree(folder.stage(stage), ignore_errors=True)
        folder.record.write_bytes(canonical_json(TaskRecord.model_validate(values)))  # no fsync: there may be many
        folder.verdict.unlink(missing_ok=True)
    facts = {**record.model_dump(), "categories": categories, "run_id": path.name}
    write_model(made.record, RunRecord.model_validate({**facts, "stages": stages or record.stages}))
    return made
