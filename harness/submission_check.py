"""A submission is believed only as far as it can be computed again: the whole grade from its raw files, every fault.

No Docker, no GPU, no network. The files are a stranger's: nothing in them is run, followed or trusted.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.submission_grade import BROKEN, Findings, grade_one, read_stored, same_report, score_of
from rtb import __version__, manifest, signature, swebench_submission
from rtb import submission_rules as rules
from rtb.errors import ExpectedError
from rtb.packing import find_secrets
from rtb.prediction import Prediction, read_predictions
from rtb.result import Report, Verdict
from rtb.run import RunRecord
from rtb.submission import Checked, Fault, Metadata, SubmissionFolder, TaskScore, TrajectoryAudit
from rtb.suite import read_model

Audit = Callable[[Path], TrajectoryAudit]
PARALLEL_FROM = 8
CHUNK = 4


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
        folder, found = SubmissionFolder(path), Findings()
        if swebench_submission.is_one(path):
            found.faults += swebench_submission.faults(path)
            return Checked(folder=str(path), faults=tuple(found.faults))
        found.faults += manifest.compare(folder)
        if any(fault.kind == "layout" for fault in found.faults):
            # Links, devices and missing manifests: nothing further is opened.
            return Checked(folder=str(path), faults=tuple(found.faults))
        signer = self._signer(folder, found)
        metadata = read_stored(folder, folder.metadata, Metadata, "metadata", found)
        found.faults += find_secrets(folder, metadata.harmless if metadata else ())
        if metadata is not None and metadata.harmless:
            found.notes.append(f"declared harmless, please look: {', '.join(metadata.harmless)}")
        record = read_stored(folder, folder.run.record, RunRecord, "raw", found)
        audit = self._audit(folder, found)
        verdicts: list[Verdict] = []
        report: Report | None = None
        if record is not None and not (odd := rules.sound_ids(record)):
            verdicts = list(self._grade(folder, record, metadata, audit, found))
            report = same_report(folder, record, verdicts, found)
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
            tasks=tuple(self._scores(record, verdicts)) if record is not None else (),
            audit=audit,
            signer=signer,
        )

    def _signer(self, folder: SubmissionFolder, found: Findings) -> str | None:
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

    def _audit(self, folder: SubmissionFolder, found: Findings) -> TrajectoryAudit:
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
        found: Findings,
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
            yield from grade_one(folder, record, name, known.get(name), predictions.get(name), found)
        if stray := sorted(set(predictions) - set(record.instance_ids)):
            found.fault("all_preds.jsonl", "prediction", f"for tasks that are not in the run: {', '.join(stray[:5])}")
        if folder.run.path.is_dir():
            _strange_folders(folder, record, found)
        _trajectories(folder, metadata, audit, predictions, found)
        if record.sandbox == "local":
            found.notes.append(f"evaluated without containers: {'; '.join(record.isolation) or 'local sandbox'}")

    def _scores(self, record: RunRecord, verdicts: Iterable[Verdict]) -> Iterator[TaskScore]:
        try:
            known = self.suites.tasks(record.suite)
        except ExpectedError:
            known = {}
        for verdict in verdicts:
            title = known[verdict.instance_id].entry.task.title if verdict.instance_id in known else ""
            yield score_of(verdict, title)


def _predictions(folder: SubmissionFolder, record: RunRecord, found: Findings) -> dict[str, Prediction]:
    name = folder.predictions.name
    try:
        file = read_predictions(folder.predictions)
        loaded = {key: file.load(key) for key in file.ids}
    except BROKEN as error:
        found.fault(name, "prediction", str(error).replace(str(folder.path) + "/", ""))
        return {}
    for problem in file.errors:
        found.faults.append(Fault(file=name, kind="prediction", message=f"at {problem.place}: {problem.message}"))
    for model in sorted({item.model_name_or_path for item in loaded.values()} - set(record.model_names)):
        found.fault(name, "prediction", f"of model {model!r}; the run is of {', '.join(record.model_names)}")
    return loaded


def _strange_folders(folder: SubmissionFolder, record: RunRecord, found: Findings) -> None:
    for path in sorted(folder.run.path.iterdir()):
        if path.is_dir() and path.name not in record.categories:
            found.fault(f"run/{path.name}", "task", "a task that is not in run.json")


def _trajectories(
    folder: SubmissionFolder,
    metadata: Metadata | None,
    audit: TrajectoryAudit,
    predictions: Mapping[str, Prediction],
    found: Findings,
) -> None:
    """A trajectory for each prediction; only an example may have none at all."""
    homes = {path.name: path for path in folder.trajectories.iterdir()} if folder.trajectories.is_dir() else {}
    if homes or metadata is None or not metadata.example:
        for name in sorted(predictions):
            if name not in homes:
                found.fault(
                    f"trajectories/{name}",
                    "trajectory",
                    "missing: how was this patch made? (rtb submit --trajectories DIR)",
                )
    for name, path in sorted(homes.items()):
        if name not in predictions:
            found.fault(f"trajectories/{name}", "trajectory", "of a task without a prediction")
        elif not any(item.stat().st_size > 2 for item in path.rglob("*") if item.is_file()):
            found.fault(f"trajectories/{name}", "trajectory", "empty")
    if metadata is not None:
        patches = {name: hashlib.sha256(item.patch_bytes).hexdigest() for name, item in predictions.items()}
        found.faults += rules.of_attempts(metadata, audit.patches, patches)


def check_all(checker: Checker, folder: Path) -> list[Checked]:
    """Check each submission of a folder, one process a core. Raises ExpectedError when there is none."""
    if not folder.is_dir():
        raise ExpectedError(f"{folder}: no such folder; name a folder that holds a folder a submission")
    homes = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    if not homes:
        raise ExpectedError(f"{folder} holds no submission; 'rtb submit RUN --out {folder}/NAME' makes one")
    processes = min(os.cpu_count() or 1, len(homes))
    if len(homes) < PARALLEL_FROM or processes == 1:
        return [checker.check(home) for home in homes]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(checker.check, homes, chunksize=CHUNK))
