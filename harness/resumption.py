"""What an earlier call left of an evaluation, and whether it may stand: for the very same key, and whole."""

from __future__ import annotations

from harness.verdict import GRADERS, grade_stages
from rtb.errors import InvalidFile, StoredRunBroken
from rtb.result import ResumeKey
from rtb.run import AttemptLog, StageTimes, TaskRecord, TaskRun
from rtb.suite import read_model


def interrupted(folder: TaskRun, key: ResumeKey) -> StageTimes | None:
    """The stages that came to their end in an evaluation of this very key that did not; None when it begins anew.

    A stage's files are graded again, and where they are not whole all begins anew; so it does after a machine fault.
    """
    if folder.times.is_file() or folder.attempts.is_file() or not folder.record.is_file():
        return None
    try:
        record = read_model(folder.record, TaskRecord)
        if record.key != key or folder.fault.is_file():
            return None
        if not folder.finished_stages.is_file():
            return StageTimes(total_seconds=0.0, stage_seconds={})
        done = read_model(folder.finished_stages, StageTimes)
        results = [GRADERS[stage](record, folder.stage(stage)) for stage in done.stage_seconds]
    except (InvalidFile, StoredRunBroken):
        return None
    return done if all(result.status != "error" or result.tampered for result in results) else None


def is_finished(folder: TaskRun, key: ResumeKey) -> bool:
    """Whether a result for this very key is stored and came to its end. A broken file is no result."""
    if not folder.times.is_file() or not folder.record.is_file():
        return False
    try:
        record = read_model(folder.record, TaskRecord)
        if record.key != key:
            return False
        if folder.attempts.is_file() and read_model(folder.attempts, AttemptLog).final:
            return False
        read_model(folder.times, StageTimes)
        results = grade_stages(record, folder.path)
    except (InvalidFile, StoredRunBroken):
        return False
    return all(result.status != "error" for result in results)
