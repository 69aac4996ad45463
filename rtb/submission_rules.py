"""What a submission must be, beside its grade: of this version, a known suite, honest attempts, one machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rtb.errors import ExpectedError
from rtb.metadata_draft import hardware
from rtb.prediction import CONTROLS
from rtb.run import RunRecord, TaskRecord
from rtb.submission import Fault, HardwareFacts, Metadata
from rtb.suite import LoadedSuite, TaskEntry, load_suite
from rtb.task import Task, task_digest_from

_SOUND_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_SOUND_SUITE = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True)
class KnownTask:
    """A task as the keeper of the leaderboard has it. `digest` is None when its patches were never pinned."""

    entry: TaskEntry
    digest: str | None


class KnownSuites:
    """Suites as the keeper has them, each read once."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._loaded: dict[str, dict[str, KnownTask] | str] = {}

    def tasks(self, name: str) -> dict[str, KnownTask]:
        """Tasks by id. Raises ExpectedError when the suite is not here or cannot be read."""
        if name not in self._loaded:
            try:
                self._loaded[name] = (
                    _known(load_suite(name, self._root)) if _SOUND_SUITE.fullmatch(name) else "no name"
                )
            except ExpectedError as error:
                self._loaded[name] = str(error)
        found = self._loaded[name]
        if isinstance(found, str):
            raise ExpectedError(found)
        return found


def _known(suite: LoadedSuite) -> dict[str, KnownTask]:
    return {entry.instance_id: KnownTask(entry, _digest(entry)) for entry in suite.entries}


def _digest(entry: TaskEntry) -> str | None:
    patches = {"gold": entry.task.patches.gold.sha256, "test": entry.task.patches.test.sha256}
    pinned = {name: value for name, value in patches.items() if value is not None}
    return task_digest_from(entry.task, entry.tests, pinned) if len(pinned) == len(patches) else None


def sound_ids(record: RunRecord) -> list[Fault]:
    """Ids that cannot name a folder: nothing may be read by such a name."""
    odd = [name for name in record.instance_ids if not _SOUND_ID.fullmatch(name) or ".." in name]
    return [_fault("run/run.json", "layout", f"{name[:80]!r} is no instance id") for name in odd]


def of_run(record: RunRecord, known: Mapping[str, KnownTask], version: str) -> Iterator[Fault]:
    """Version, suite and completeness of a run."""
    file = "run/run.json"
    if release(record.rtb_version) != release(version):
        text = f"made with rtb {record.rtb_version}, this is rtb {version}: evaluate again with this release"
        yield _fault(file, "version", text)
    if not record.predictions_sha256 or not record.suite_digest:
        yield _fault(file, "version", "digests of the suite and of the predictions are missing")
    for name in record.instance_ids:
        if name not in known:
            yield _fault(file, "suite", f"{name} is no task of suite {record.suite}")
        elif known[name].entry.task.category != record.categories[name]:
            yield _fault(file, "task", f"{name} is filed under another category than the suite's")
    if absent := [name for name in known if name not in record.categories]:
        text = f"{len(absent)} of the suite's {len(known)} tasks are left out ({absent[0]}, ...): evaluate without -i"
        yield _fault(file, "incomplete", text)
    if any(not problem.is_warning for problem in record.problems):
        yield _fault(file, "incomplete", "some predictions could not be read; mend their lines and evaluate again")


def release(version: str) -> str:
    """The part of a version that decides how a run is graded: major and minor."""
    return ".".join(version.split(".")[:2])


def of_task(file: str, stored: TaskRecord, record: RunRecord, known: KnownTask) -> Iterator[Fault]:
    """Whether the stored task is the suite's, and was evaluated as the run says. `file` is its record's path."""
    task, key = known.entry.task, stored.key
    if stored.task != task:
        changed = [name for name in Task.model_fields if getattr(stored.task, name) != getattr(task, name)]
        yield _fault(file, "task", f"not the suite's task: {', '.join(changed)} differ")
    if stored.tests != known.entry.tests:
        yield _fault(file, "task", "not the suite's test ids")
    # The digest follows from task, ids and pinned patches; it also changes with the schema, so it is not compared.
    if key.harness_version != record.rtb_version:
        text = f"evaluated by rtb {key.harness_version or '(unknown)'}, run.json says {record.rtb_version}"
        yield _fault(file, "version", text)
    if not key.environment_digest:
        yield _fault(file, "version", "the digest of the image is missing")
    if key.device_class != record.device_class:
        yield _fault(file, "hardware", f"measured on {key.device_class}, run.json says {record.device_class}")
    if task.environment.gpu.count and key.device_class == "cpu":
        yield _fault(file, "hardware", f"the task asks for {task.environment.gpu.count} GPU(s), measured on a CPU")
    wanted = tuple(stage for stage in record.stages if stage in task.stages)
    if stored.stages != wanted or key.stages != record.stages or key.profile != record.profile:
        yield _fault(file, "task", "evaluated with other stages or another profile than the run's")


def of_metadata(metadata: Metadata, record: RunRecord) -> Iterator[Fault]:
    """What metadata.json says against what the run recorded, and the rules on attempts."""
    file = "metadata.json"
    if record.model_names != (metadata.model.name_or_path,):
        text = f"model {metadata.model.name_or_path!r}, the predictions are of {', '.join(record.model_names)}"
        yield _fault(file, "metadata", text)
    if metadata.hardware != HardwareFacts.model_validate(hardware(record)):
        yield _fault(file, "hardware", "hardware is not what run/run.json recorded; leave the field out to take that")
    if record.predictions in CONTROLS and not metadata.example:
        yield _fault(file, "attempts", f"the control {record.predictions} is no model: 'example' must be true")
    if metadata.attempts.count > 1 and metadata.attempts.chosen == "only":
        text = (
            f"{metadata.attempts.count} attempts at each task, and 'only' one: say how it was chosen (first, agent)"
        )
        yield _fault(file, "attempts", text)


def of_attempts(
    metadata: Metadata, patches: Mapping[str, tuple[str, ...]], submitted: Mapping[str, str]
) -> Iterator[Fault]:
    """Attempts whose patches are known against what is declared. `patches`, `submitted`: sha256 by task."""
    for name, known in patches.items():
        if len(known) > metadata.attempts.count:
            text = f"{len(known)} attempts are here, metadata.json says {metadata.attempts.count}"
            yield _fault(f"trajectories/{name}", "attempts", text)
        elif known and name in submitted and submitted[name] not in known:
            yield _fault(
                f"trajectories/{name}", "attempts", "no attempt here ended with the patch that was submitted"
            )


def _fault(file: str, kind: str, message: str) -> Fault:
    return Fault.model_validate({"file": file, "kind": kind, "message": message})
