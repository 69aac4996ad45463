"""One task of a submission, and its report, graded anew from raw files and held against what was handed in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.report import build_report
from harness.verdict import grade_task
from rtb import submission_rules as rules
from rtb.errors import RtbError
from rtb.prediction import Prediction
from rtb.result import Report, Verdict
from rtb.run import RunRecord, TaskRecord
from rtb.submission import Fault, FaultKind, Metadata, SubmissionFolder, TaskScore
from rtb.suite import read_model

# What reading a stranger's broken files may raise: deep nesting, wrong types, digits that are none.
BROKEN = (RtbError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError)


@dataclass
class Findings:
    """Faults and remarks as they come up; a check never stops at the first."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, file: str, kind: FaultKind, message: str) -> None:
        self.faults.append(Fault(file=file, kind=kind, message=message))


def score_of(verdict: Verdict, title: str) -> TaskScore:
    """What pages show of a verdict."""
    unit, latency = verdict.stage("unit"), verdict.stage("latency")
    ratios = latency.latency.ratios if latency is not None and latency.latency is not None else {}
    facts = unit.unit if unit is not None else None
    return TaskScore(
        instance_id=verdict.instance_id,
        title=title,
        category=verdict.category,
        outcome=verdict.outcome,
        reason=verdict.reason,
        passed=facts.passed if facts else None,
        expected=facts.expected if facts else None,
        s_ttft=ratios["s_ttft"].estimate if "s_ttft" in ratios else None,
        s_tpot=ratios["s_tpot"].estimate if "s_tpot" in ratios else None,
        seconds=verdict.seconds,
        cost_usd=verdict.cost_usd,
        tokens=verdict.tokens,
    )


def grade_one(
    folder: SubmissionFolder,
    record: RunRecord,
    name: str,
    known: rules.KnownTask | None,
    prediction: Prediction | None,
    found: Findings,
) -> Iterator[Verdict]:
    """The verdict of one task from its raw files, held against what is stored, predicted and known."""
    home, task = f"run/{name}", folder.run.task(name)
    if not task.path.is_dir():
        if prediction is not None:
            found.fault(home, "raw", "missing: a prediction is there, and no file of its evaluation")
    elif prediction is None:
        found.fault("all_preds.jsonl", "prediction", f"no prediction for {name}, which was evaluated")
    stored = read_stored(folder, task.record, TaskRecord, "raw", found) if task.path.is_dir() else None
    if stored is not None:
        if known is not None:
            found.faults += rules.of_task(f"{home}/record.json", stored, record, known)
        _same_patch(folder, name, stored, prediction, found)
        if stored.patch.status == "applied" and not stored.patch.paths and record.predictions != "base":
            found.fault(f"{home}/record.json", "task", "a patch that changes nothing cannot have been applied")
    try:
        verdict = grade_task(folder.run, record, name)
    except BROKEN as error:
        text = str(error).replace(str(folder.path) + "/", "")
        found.fault(home, "raw", f"cannot be graded from its files: {text}")
        return
    if verdict.outcome == "error":
        found.fault(
            home,
            "incomplete",
            f"ended in a machine fault ({verdict.reason.splitlines()[0][:200]}): finish the run first",
        )
    if task.path.is_dir():
        _same_verdict(folder, name, verdict, found)
    yield verdict


def _same_patch(
    folder: SubmissionFolder, name: str, stored: TaskRecord, prediction: Prediction | None, found: Findings
) -> None:
    """One patch everywhere: as predicted, as kept, as recorded."""
    home, kept = f"run/{name}", folder.run.task(name).patch_diff
    data = kept.read_bytes() if kept.is_file() else None
    if data is None:
        found.fault(f"{home}/patch.diff", "raw", "missing")
    elif prediction is not None and data != prediction.patch_bytes:
        found.fault(f"{home}/patch.diff", "prediction", "not the patch of all_preds.jsonl")
    if data is not None and hashlib.sha256(data).hexdigest() != stored.key.patch_sha256:
        found.fault(f"{home}/record.json", "prediction", "the patch that was evaluated is another than patch.diff")
    if stored.task.instance_id != name:
        found.fault(f"{home}/record.json", "task", f"the record is of {stored.task.instance_id}")
    if prediction is not None and stored.model_name_or_path != prediction.model_name_or_path:
        found.fault(f"{home}/record.json", "prediction", "the model's name is another than in all_preds.jsonl")


def _same_verdict(folder: SubmissionFolder, name: str, verdict: Verdict, found: Findings) -> None:
    file = f"run/{name}/verdict.json"
    stored = read_stored(folder, folder.run.task(name).verdict, Verdict, "verdict", found)
    if stored is not None and stored != verdict:
        if stored.outcome != verdict.outcome:
            text = f"says {stored.outcome}; the raw files give {verdict.outcome} ({verdict.reason})"
        else:
            changed = [key for key in Verdict.model_fields if getattr(stored, key) != getattr(verdict, key)]
            text = f"{', '.join(changed)}: not what the raw files give"
        found.fault(file, "verdict", text)


def same_report(
    folder: SubmissionFolder, record: RunRecord, verdicts: list[Verdict], found: Findings
) -> Report | None:
    """report.json against the report of the verdicts that were computed here."""
    stored = read_stored(folder, folder.report, Report, "report", found)
    if len(verdicts) != len(record.instance_ids):
        return None
    report = build_report(record, verdicts)
    if stored is None or stored == report:
        return report
    for outcome, count in report.outcomes.items():
        if (said := stored.outcomes.get(outcome, 0)) != count:
            found.fault("report.json", "report", f"says {said} {outcome}; the raw files give {count}")
    for outcome, ids in report.tasks_by_outcome.items():
        for name in sorted(set(stored.tasks_by_outcome.get(outcome, ())) - set(ids)):
            found.fault("report.json", "report", f"says that {name} is {outcome}; the raw files do not")
    changed = [key for key in Report.model_fields if getattr(stored, key) != getattr(report, key)]
    if rest := [key for key in changed if key not in ("outcomes", "tasks_by_outcome")]:
        found.fault("report.json", "report", f"{', '.join(rest)}: not what the raw files give")
    return report


Stored = TypeVar("Stored", Metadata, RunRecord, TaskRecord, Verdict, Report)


def read_stored(
    folder: SubmissionFolder, path: Path, kind: type[Stored], fault: FaultKind, found: Findings
) -> Stored | None:
    """A model from a file, or None with the fault noted."""
    name = path.relative_to(folder.path).as_posix()
    if not path.is_file():
        found.fault(name, fault, "missing")
        return None
    try:
        return read_model(path, kind)
    except BROKEN as error:
        found.fault(name, fault, str(error).replace(str(folder.path) + "/", ""))
        return None
