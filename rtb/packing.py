"""Making a submission's folder from a run: copied, searched for secrets, sealed, signed, only then given its name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from rtb import credentials, signature
from rtb.errors import ExpectedError
from rtb.manifest import seal
from rtb.prediction import Prediction
from rtb.run import Run, RunRecord
from rtb.storage import storage_error, write_atomic, write_model
from rtb.submission import Fault, Metadata, SubmissionFolder

_MOST_SHOWN = 20


class SecretsFound(ExpectedError):
    """Files of a submission hold what must not be published. No folder is made."""


def pack(
    run: Run,
    out: Path,
    metadata: Metadata,
    *,
    trajectories: Path | None = None,
    key: Path | None = None,
    own_secrets: Collection[str] = (),
) -> SubmissionFolder:
    """Make the submission folder `out`. What was there of an earlier submission is replaced, anything else is kept.

    Nothing is graded or mended here: report and verdicts are taken as they stand, and the check compares them with
    the raw files. Raises SecretsFound, and ExpectedError when the run is not whole or `out` is something else.
    """
    _may_write(out)
    record = run.read_record()
    if not run.report_json.is_file():
        raise ExpectedError(f"{run.path} has no {run.report_json.name}: run 'rtb report {run.path}' first")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        folder = SubmissionFolder(Path(temporary) / "submission")
        try:
            _copy_run(run, record, folder)
            _copy_trajectories(trajectories, record, folder)
        except OSError as error:
            raise storage_error(error, out) from error
        write_model(folder.metadata, metadata)
        if faults := find_secrets(folder, metadata.harmless, own_secrets):
            raise SecretsFound(_secrets_message(faults, run, trajectories))
        seal(folder)
        if key is not None:
            signature.sign(folder.manifest, key, folder.signature)
        if out.exists():
            shutil.rmtree(out)
        folder.path.replace(out)
    return SubmissionFolder(out)


def _may_write(out: Path) -> None:
    if out.is_dir() and (not any(out.iterdir()) or SubmissionFolder(out).manifest.is_file()):
        return
    if out.exists():
        raise ExpectedError(f"--out {out} is there and is no earlier submission: choose another name, or remove it")


def _copy_run(run: Run, record: RunRecord, folder: SubmissionFolder) -> None:
    copy = folder.run
    copy.path.mkdir(parents=True)
    shutil.copyfile(run.record, copy.record)
    shutil.copyfile(run.report_json, folder.report)
    for name in record.instance_ids:
        if run.task(name).path.is_dir():
            _copy_tree(run.task(name).path, copy.task(name).path)
    if run.predictions.is_file():
        shutil.copyfile(run.predictions, folder.predictions)
    else:
        write_atomic(folder.predictions, b"".join(_lines(run, record)))


def _lines(run: Run, record: RunRecord) -> Iterator[bytes]:
    """Predictions of a control, from the patches that were evaluated."""
    for name in record.instance_ids:
        task = run.task(name)
        if task.patch_diff.is_file():
            stored = run.read_task_record(name)
            model = stored.model_name_or_path if stored else ", ".join(record.model_names)
            text = task.patch_diff.read_bytes().decode("utf-8", "surrogateescape")
            yield Prediction(instance_id=name, model_name_or_path=model, model_patch=text).to_line()


def _copy_trajectories(source: Path | None, record: RunRecord, folder: SubmissionFolder) -> None:
    """What the solve folder (or any folder with a file or folder a task) holds for the run's tasks."""
    if source is None:
        return
    if not source.is_dir():
        raise ExpectedError(f"--trajectories {source} is no folder; name the .attempts folder of 'rtb solve'")
    for name in record.instance_ids:
        for found in sorted(source.iterdir()):
            home = folder.trajectories / name
            if found.name == name and found.is_dir():
                _copy_tree(found, home)
            elif found.is_file() and found.name.startswith(f"{name}."):
                home.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, home / found.name)


def _copy_tree(source: Path, target: Path) -> None:
    """Plain files only; a journal is left out where the finished trajectory, which says the same, is beside it."""
    target.mkdir(parents=True, exist_ok=True)
    for item in sorted(source.iterdir()):
        if item.name.startswith(".") or item.is_symlink():
            continue
        if item.is_dir():
            _copy_tree(item, target / item.name)
        elif item.is_file() and not (item.name == "journal.jsonl" and (source / "trajectory.traj.json").is_file()):
            shutil.copyfile(item, target / item.name)


def find_secrets(folder: SubmissionFolder, harmless: Collection[str] = (), own: Collection[str] = ()) -> list[Fault]:
    """Every place in the folder that looks like a secret, but those the submitter has looked at (FILE:LINE)."""
    found = []
    for name, path in folder.files():
        if path.is_symlink() or not path.is_file():
            continue
        for hit in credentials.find(path.read_bytes(), own):
            if f"{name}:{hit.line}" not in harmless:
                text = f"looks like {hit.label}"
                found.append(Fault(file=name, line=hit.line, kind="secret", message=text))
    return found


def _secrets_message(faults: list[Fault], run: Run, trajectories: Path | None) -> str:
    lines = [f"  {fault.place}: {fault.message}" for fault in faults[:_MOST_SHOWN]]
    if len(faults) > _MOST_SHOWN:
        lines.append(f"  and {len(faults) - _MOST_SHOWN} more places")
    places = f"'run/' is {run.path}" + (f", 'trajectories/' is {trajectories}" if trajectories else "")
    return "\n".join(
        [
            "secrets must not be published; nothing was written. Places, in the submission's folder:",
            *lines,
            f"({places}.) Revoke what was a secret and take it out of the files; list what is none as FILE:LINE "
            "under 'harmless' in the metadata file.",
        ]
    )
