"""Several runs as one: the attempts at a suite (pass@k), or the steps of one attempt (score against step)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.evaluate import Request, evaluate, regrade, run_name, suite_of
from harness.series_report import attempts_markdown, steps_markdown, steps_report
from rtb import environment
from rtb.console import say
from rtb.errors import ExpectedError
from rtb.pass_at_k import PassAtK, pass_at_k_of_runs
from rtb.prediction import CONTROLS, Prediction, read_predictions
from rtb.run import Run, check_run_id
from rtb.series import Series, SeriesRecord, StepPoint, StepsReport
from rtb.steps import steps_of
from rtb.storage import write_atomic, write_model


@dataclass(frozen=True)
class FinishedSeries:
    """A series that came to its end, whatever the score."""

    series: Series
    report: PassAtK | StepsReport
    faulty_predictions: int


def evaluate_attempts(request: Request, files: Sequence[str]) -> FinishedSeries:
    """Evaluate one predictions file per attempt, each as a run of its own, and estimate pass@k from them.

    Raises ExpectedError on bad input, before anything is run.
    """
    loaded = suite_of(request)
    entries = loaded.select(request.instances)
    if len(set(files)) < len(files):
        raise ExpectedError("the same predictions file is named twice: each attempt has a file of its own")
    for label in files:
        _is_file(label, "a control is one attempt")
        read_predictions(Path(label))
    record = SeriesRecord(
        kind="attempts",
        run_id=_run_id(request, files[0], loaded.suite.name),
        suite=loaded.suite.name,
        predictions=tuple(files),
        runs=tuple(f"attempt-{number}" for number in range(1, len(files) + 1)),
        categories={entry.instance_id: entry.task.category for entry in entries},
    )
    series = Series(request.out / record.run_id)
    faulty = 0
    _refuse_single_run(series)
    with series.sole_writer():
        write_model(series.record, record)
        for name, label in zip(record.runs, files, strict=True):
            say(f"{name} of {len(files)}: {label}")
            part = replace(request, predictions=label, run_id=name, out=series.path)
            faulty += evaluate(part).faulty_predictions
        return FinishedSeries(series, write_series_report(series), faulty)


def evaluate_steps(request: Request) -> FinishedSeries:
    """Evaluate the answer after each step that changed it; equal answers of a task are evaluated once.

    Raises ExpectedError on bad input, before anything is run.
    """
    loaded = suite_of(request)
    entries = loaded.select(request.instances)
    path = _is_file(request.predictions, "a control has no steps")
    found = read_predictions(path, {entry.instance_id for entry in loaded.entries})
    for problem in found.problems:
        say(f"{path}:{problem.place}: {'warning' if problem.is_warning else 'error'}: {problem.message}")
    points: dict[str, tuple[StepPoint, ...]] = {}
    answers: list[dict[str, Prediction]] = []
    for name in (entry.instance_id for entry in entries if entry.instance_id in found.positions):
        distinct, points[name] = _points(found.load(name), path.parent)
        answers.extend({} for _ in range(len(distinct) - len(answers)))
        for number, answer in enumerate(distinct):
            answers[number][name] = answer
    if not answers:
        raise ExpectedError(f"{path}: no prediction of a chosen task has a step that changed the tree")
    runs = tuple(f"change-{number}" for number in range(1, len(answers) + 1))
    record = SeriesRecord(
        kind="steps",
        run_id=_run_id(request, request.predictions, loaded.suite.name),
        suite=loaded.suite.name,
        predictions=(request.predictions,),
        runs=runs,
        categories={entry.instance_id: entry.task.category for entry in entries},
        points=points,
        unfinished={
            entry.instance_id: found.unfinished[entry.instance_id]
            for entry in entries
            if entry.instance_id in found.unfinished
        },
    )
    series = Series(request.out / record.run_id)
    _refuse_single_run(series)
    with series.sole_writer():
        write_model(series.record, record)
        for name, batch in zip(runs, answers, strict=True):
            write_atomic(series.answers(name), b"".join(item.to_line() for item in batch.values()))
            say(f"{name} of {len(runs)}: the answers of {len(batch)} task(s)")
            part = replace(
                request, predictions=str(series.answers(name)), run_id=name, out=series.path,
                suite=request.suite or loaded.suite.name, instances=tuple(batch),
            )  # fmt: skip
            evaluate(part)
        return FinishedSeries(series, write_series_report(series), len(found.errors))


def _points(prediction: Prediction, beside: Path) -> tuple[list[Prediction], tuple[StepPoint, ...]]:
    """The distinct answers of an attempt in the order they came up, and each step with the number of its answer."""
    numbers: dict[bytes, int] = {}
    distinct: list[Prediction] = []
    points = []
    for step in steps_of(prediction, beside):
        answer = step.prediction
        number = numbers.setdefault(answer.patch_bytes, len(numbers) + 1)
        if number > len(distinct):
            distinct.append(answer)
        points.append(
            StepPoint(
                step=step.number, run=f"change-{number}", seconds=step.seconds, tokens=answer.tokens,
                cost_usd=answer.cost_usd,
            )
        )  # fmt: skip
    return distinct, tuple(points)


def _is_file(label: str, why_not: str) -> Path:
    if label in CONTROLS:
        raise ExpectedError(f"--predictions {label}: {why_not}; name a predictions file")
    return Path(label)


def _run_id(request: Request, label: str, suite: str) -> str:
    return check_run_id(request.run_id or run_name(label, suite, environment.choose_kind(request.sandbox)))


def _refuse_single_run(series: Series) -> None:
    if Run(series.path).record.is_file():
        raise ExpectedError(f"{series.path} is a single run: choose another --run-id for several attempts or steps")


def write_series_report(series: Series) -> PassAtK | StepsReport:
    """report.json and report.md of a series, from the stored verdicts of its runs."""
    record = series.read_record()
    if record.kind == "attempts":
        found = pass_at_k_of_runs(series.runs())
        series.write_report(found, attempts_markdown(record, found))
        return found
    steps = steps_report(series, record)
    series.write_report(steps, steps_markdown(steps))
    return steps


def regrade_series(series: Series) -> PassAtK | StepsReport:
    """Grade each run of a series again from its raw files, and write the reports anew."""
    for run in series.runs():
        regrade(run)
    return write_series_report(series)
