"""The two model stages as an evaluation calls them: from a record and a sandbox, and again from stored files."""

from __future__ import annotations

from pathlib import Path

from harness.decisions import PATIENT, STANDARD
from harness.opened_sides import Place, sides
from harness.question_set import load_questions
from harness.stages.accuracy import grade_accuracy, run_accuracy, stage_of
from harness.stages.latency import run_latency
from harness.stages.latency_grade import grade_latency
from rtb.baseline import Baseline
from rtb.result import StageResult
from rtb.run import TaskRecord
from rtb.sandbox import Sandbox

# Noise of a block pair's log ratio above which the long schedule is taken: at 1.0 % the standard looks pass an equal
# server in 99.9 of 100 decisions, at 1.4 % (launches that vary by 1 %) in 98.6 only, and validate's estimate of the
# noise comes from few pairs.
NOISY = 0.010


def accuracy(record: TaskRecord, place: Place, sandbox: Sandbox, raw: Path) -> StageResult:
    """Run and grade the accuracy stage of the patched tree in `sandbox`."""
    questions = load_questions(stage_of(record.task).dataset, place.entry.suite_path)
    return run_accuracy(record.task, questions, sides(place, sandbox), raw, record.key.profile)


def latency(record: TaskRecord, place: Place, sandbox: Sandbox, raw: Path) -> StageResult:
    """Run and grade the latency stage. The schedule follows from the noise that validate measured."""
    both = sides(place, sandbox)
    schedule = PATIENT if is_noisy(both.known) else STANDARD
    return run_latency(record.task, both, raw, record.key.profile, schedule)


def is_noisy(known: Baseline) -> bool:
    """Whether gold against gold varied too much for the standard looks, though it is measurable."""
    return any(value > NOISY for value in known.deviation.values())


def grade_stored_accuracy(record: TaskRecord, raw: Path) -> StageResult:
    """Grade a stored accuracy stage."""
    return grade_accuracy(record.task, raw, record.key.profile)


def grade_stored_latency(record: TaskRecord, raw: Path) -> StageResult:
    """Grade a stored latency stage."""
    return grade_latency(record.task, raw, record.key.profile)
