"""A submission is believed only as far as it can be computed again: the whole grade from its raw files, every fault.

No Docker, no GPU, no network. The files are a stranger's: nothing in them is run, followed or trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.report import build_report
from harness.verdict import grade_task
from rtb import __version__, manifest, signature, swebench_submission
from rtb import submission_rules as rules
from rtb.errors import ExpectedError, RtbError
from rtb.packing import find_secrets
from rtb.prediction import Prediction, read_predictions
from rtb.result import Report, Verdict
from rtb.run import RunRecord, TaskRecord
from rtb.submission import Checked, Fault, FaultKind, Metadata, SubmissionFolder, TaskScore, TrajectoryAudit
from rtb.suite import read_model

Audit = Callable[[Path], TrajectoryAudit]
# What reading a stranger's broken files may raise: deep nesting, wrong types, digits that are none.
_BROKEN = (RtbError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError)


@dataclass
class _Findings:
    """Faults and remarks as they come up; a check never stops at the first."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, file: str, kind: FaultKind, message: str) -> None:
        self.faults.append(Fault(file=file, kind=kind, message=message))


@dataclass(frozen=True)
class Checker:
    """What a keeper holds submissions against. `keys`: names of trusted keys by fingerprint; None: anybody's do."""

    suites: rules.KnownSuites
    audit: Audit
    keys: Mapping[str, str] | None = None

    def check(self, path: Path) -> Checked:
        """Every fault of one submission, and its numbers computed anew. Raises ExpectedError when it is no folder."""
        if not path.is_dir():
            raise ExpectedError(f"{path}: no such folder; name the folder that 'rtb submit --out' made")
        folder, found = SubmissionFolder(path), _Findings()
        if swebench_submission.is_one(path):
            found.faults += swebench_submission.faults(path)
            return Checked(folder=str(path), faults=tuple(found.faults))
        found.faults += manifest.compare(folder)
        if any(fault.kind == "layout" for fault in found.faults):
            # Links, devices and missing manifests: nothing further is opened.
            return Checked(folder=str(path), faults=tuple(found.faults))
        signer = self._signer(folder, found)
        metadata = _read(folder, folder.metadata, Metadata, "metadata", found)
        found.faults += find_secrets(folder, metadata.harmless if metadata else ())
        if metadata is not None and metadata.harmless:
            found.notes.append(f"declared harmless, please look: {', '.join(metadata.harmless)}")
        record = _read(folder, folder.run.record, RunRecord, "raw", found)
        audit = self._audit(folder, found)
        verdicts: list[Verdict] = []
        report: Report | None = None
        if record is not None and not (odd := rules.sound_ids(record)):
            verdicts = list(self._grade(folder, record, metadata, audit, found))
            report = _same_report(folder, record, verdicts, found)
        elif record is not None:
            found.faults += odd
        return Checked(
            folder=str(path),
            digest=hashlib.sha256(folder.manifest.read_bytes()).hexdigest(),
            faults=tuple(found.faults),
            notes=tuple(found.notes),
            metadata=metadata,
            run=record,
            report=report,
            tasks=tuple(self._scores(folder, record, verdicts)) if record is not None else (),
            audit=audit,
            signer=signer,
        )

    def _signer(self, folder: SubmissionFolder, found: _Findings) -> str | None:
        name = folder.signature.name
        if folder.signature.is_symlink() or not folder.signature.is_file():
            if self.keys is not None:
                found.fault(name, "signature", "missing, and only signed submissions are taken here")
            return None
        try:
            made = read_model(folder.signature, signature.Signature)
            mark = signature.fingerprint(made.public_key)
        except (ExpectedError, ValueError) as error:
            found.fault(name, "signature", f"cannot be read: {error}")
            return None
        if problem := signature.verify(folder.manifest.read_bytes(), made):
            found.fault(name, "signature", problem)
            return None
        if self.keys is not None and mark not in self.keys:
            found.fault(name, "signature", f"made with {mark}, which is not in the list of trusted keys")
        return f"{self.keys[mark]} ({mark})" if self.keys and mark in self.keys else mark

    def _audit(self, folder: SubmissionFolder, found: _Findings) -> TrajectoryAudit:
        if not folder.trajectories.is_dir():
            return TrajectoryAudit()
        audit = self.audit(folder.trajectories)
        for name, why in audit.unread:
            found.fault(f"trajectories/{name}", "trajectory", why)
        if audit.findings:
            kinds = sorted({item.kind for item in audit.findings})
            count = len(audit.findings)
            found.notes.append(f"trajectories: {count} finding(s) for a person to judge ({', '.join(kinds)})")
        return audit

    def _grade(
        self,
        folder: SubmissionFolder,
        record: RunRecord,
        metadata: Metadata | None,
        audit: TrajectoryAudit,
        found: _Findings,
    ) -> Iterator[Verdict]:
        try:
            known = self.suites.tasks(record.suite)
        except ExpectedError as error:
            known = {}
            text = f"suite {record.suite!r} is not known here, so its tasks cannot be compared: {error}"
            found.fault("run/run.json", "suite", text)
        else:
            found.faults += rules.of_run(record, known, __version__)
        if metadata is not None:
            found.faults += rules.of_metadata(metadata, record)
        predictions = _predictions(folder, record, found)
        for name in record.instance_ids:
            yield from _grade_one(folder, record, name, known.get(name), predictions.get(name), found)
        if stray := sorted(set(predictions) - set(record.instance_ids)):
            found.fault("all_preds.jsonl", "prediction", f"for tasks that are not in the run: {', '.join(stray[:5])}")
        if folder.run.path.is_dir():
            _strange_folders(folder, record, found)
        _trajectories(folder, metadata, audit, predictions, found)
        if record.sandbox == "local":
            found.notes.append(f"evaluated without containers: {'; '.join(record.isolation) or 'local sandbox'}")

    def _scores(
        self, folder: SubmissionFolder, record: RunRecord, verdicts: Iterable[Verdict]
    ) -> Iterator[TaskScore]:
        try:
            known = self.suites.tasks(record.suite)
        except ExpectedError:
            known = {}
        for verdict in verdicts:
            title = known[verdict.instance_id].entry.task.title if verdict.instance_id in known else ""
            yield score_of(verdict, title)


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


def _grade_one(
    folder: SubmissionFolder,
    record: RunRecord,
    name: str,
    known: rules.KnownTask | None,
    prediction: Prediction | None,
    found: _Findings,
) -> Iterator[Verdict]:
    """The verdict of one task from its raw files, held against what is stored, predicted and known."""
    home, task = f"run/{name}", folder.run.task(name)
    if not task.path.is_dir():
        if prediction is not None:
            found.fault(home, "raw", "missing: a prediction is there, and no file of its evaluation")
    elif prediction is None:
        found.fault("all_preds.jsonl", "prediction", f"no prediction for {name}, which was evaluated")
    stored = _read(folder, task.record, TaskRecord, "raw", found) if task.path.is_dir() else None
    if stored is not None:
        if known is not None:
            found.faults += rules.of_task(f"{home}/record.json", stored, record, known)
        _same_patch(folder, name, stored, prediction, found)
    try:
        verdict = grade_task(folder.run, record, name)
    except _BROKEN as error:
        text = str(error).replace(str(folder.path) + "/", "")
        found.fault(home, "raw", f"cannot be graded from its files: {text}")
        return
    if verdict.outcome == "error":
        found.fault(home, "incomplete", f"ended in a machine fault ({verdict.reason}): finish the run first")
    if task.path.is_dir():
        _same_verdict(folder, name, verdict, found)
    yield verdict


def _same_patch(
    folder: SubmissionFolder, name: str, stored: TaskRecord, prediction: Prediction | None, found: _Findings
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
    if data is not None and not data.strip() and stored.patch.status == "applied":
        found.fault(f"{home}/record.json", "task", "an empty patch cannot have been applied")


def _same_verdict(folder: SubmissionFolder, name: str, verdict: Verdict, found: _Findings) -> None:
    file = f"run/{name}/verdict.json"
    stored = _read(folder, folder.run.task(name).verdict, Verdict, "verdict", found)
    if stored is not None and stored != verdict:
        if stored.outcome != verdict.outcome:
            text = f"says {stored.outcome}; the raw files give {verdict.outcome} ({verdict.reason})"
        else:
            changed = [key for key in Verdict.model_fields if getattr(stored, key) != getattr(verdict, key)]
            text = f"{', '.join(changed)}: not what the raw files give"
        found.fault(file, "verdict", text)


def _same_report(
    folder: SubmissionFolder, record: RunRecord, verdicts: list[Verdict], found: _Findings
) -> Report | None:
    """report.json against the report of the verdicts that were computed here."""
    stored = _read(folder, folder.report, Report, "report", found)
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


def _predictions(folder: SubmissionFolder, record: RunRecord, found: _Findings) -> dict[str, Prediction]:
    name = folder.predictions.name
    try:
        file = read_predictions(folder.predictions)
        loaded = {key: file.load(key) for key in file.ids}
    except _BROKEN as error:
        found.fault(name, "prediction", str(error).replace(str(folder.path) + "/", ""))
        return {}
    for problem in file.errors:
        found.faults.append(Fault(file=name, kind="prediction", message=f"at {problem.place}: {problem.message}"))
    for model in sorted({item.model_name_or_path for item in loaded.values()} - set(record.model_names)):
        found.fault(name, "prediction", f"of model {model!r}; the run is of {', '.join(record.model_names)}")
    return loaded


def _strange_folders(folder: SubmissionFolder, record: RunRecord, found: _Findings) -> None:
    for path in sorted(folder.run.path.iterdir()):
        if path.is_dir() and path.name not in record.categories:
            found.fault(f"run/{path.name}", "task", "a task that is not in run.json")


def _trajectories(
    folder: SubmissionFolder,
    metadata: Metadata | None,
    audit: TrajectoryAudit,
    predictions: Mapping[str, Prediction],
    found: _Findings,
) -> None:
    """A trajectory for each prediction; only an example may have none at all."""
    homes = {path.name: path for path in folder.trajectories.iterdir()} if folder.trajectories.is_dir() else {}
    if homes or metadata is None or not metadata.example:
        for name in sorted(predictions):
            if name not in homes:
                found.fault(f"trajectories/{name}", "trajectory", "missing: how was this patch made?")
    for name, path in sorted(homes.items()):
        if name not in predictions:
            found.fault(f"trajectories/{name}", "trajectory", "of a task without a prediction")
        elif not any(item.stat().st_size > 2 for item in path.rglob("*") if item.is_file()):
            found.fault(f"trajectories/{name}", "trajectory", "empty")
    if metadata is not None:
        patches = {name: hashlib.sha256(item.patch_bytes).hexdigest() for name, item in predictions.items()}
        found.faults += rules.of_attempts(metadata, audit.patches, patches)


Stored = TypeVar("Stored", Metadata, RunRecord, TaskRecord, Verdict, Report)


def _read(
    folder: SubmissionFolder, path: Path, kind: type[Stored], fault: FaultKind, found: _Findings
) -> Stored | None:
    """A model from a file, or None with the fault noted."""
    name = path.relative_to(folder.path).as_posix()
    if not path.is_file():
        found.fault(name, fault, "missing")
        return None
    try:
        return read_model(path, kind)
    except _BROKEN as error:
        found.fault(name, fault, str(error).replace(str(folder.path) + "/", ""))
        return None
