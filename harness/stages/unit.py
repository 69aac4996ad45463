"""Unit stage: run the task's own tests in a sandbox under our plugin, keep the raw files, grade from those alone."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from harness.evidence import EXIT_RECORDS_FULL, UnitEvidence, UnitExec, tampering
from harness.grading import Fault, UnitGrade, grade, machine_fault, patch_fault
from harness.pytest_log import read_totals
from harness.records import Records, read_junit, read_records
from rtb.errors import ExpectedError, MachineError, OutOfSpace, StoredRunBroken
from rtb.result import StageResult, TestStatus
from rtb.sandbox import Change, Entry, Sandbox
from rtb.storage import write_atomic, write_model
from rtb.task import Task, TestIds, UnitStage

RESULT_LIMIT_BYTES = 128 * 1024**2
SOURCE_LIMIT_BYTES = 16 * 1024**2
FREE_BYTES_NEEDED = 64 * 1024**2
_WORKER = Path(__file__).parent.parent / "worker"
_WORKER_FILES = ("__init__.py", "channel.py", "integrity.py", "recorder.py", "runner.py", "watch.py")


@dataclass(frozen=True)
class UnitFolder:
    """The raw files of one unit run."""

    path: Path

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    @property
    def records(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"

    @property
    def exec(self) -> Path:
        return self.path / "exec.json"


def run_unit(
    task: Task, tests: TestIds, sandbox: Sandbox, raw: Path, *, trusted: Collection[str] | None = None
) -> StageResult:
    """Run and grade the unit stage. See `execute_unit` and `grade_unit`."""
    execute_unit(task, sandbox, raw, trusted=trusted)
    return grade_unit(task, tests, raw)


def execute_unit(
    task: Task,
    sandbox: Sandbox,
    raw: Path,
    *,
    trusted: Collection[str] | None = None,
    stop_at_failure: bool = False,
    only: Collection[str] | None = None,
) -> None:
    """Run the task's tests and leave console.log, records.jsonl, junit.xml and exec.json in `raw`.

    The tree must already hold the trusted tests and configuration. `trusted` names every path of the tree that does
    not come from the model's patch; with it, a conftest file, plugin or configuration from elsewhere is found out.
    `stop_at_failure` ends the session at the first test that does not pass; `only` runs these ids and no others.
    Raises what the sandbox raises when the machine fails, and OutOfSpace when the host's disk is full.
    """
    unit = unit_of(task)
    folder = UnitFolder(raw)
    raw.mkdir(parents=True, exist_ok=True)
    for stale in (folder.console, folder.records, folder.junit, folder.exec):
        stale.unlink(missing_ok=True)
    place = Place(sandbox.scratch, secrets.token_hex(8), secrets.token_hex(32))
    worker = {f"{place.name}/{name}": Entry((_WORKER / name).read_bytes()) for name in _WORKER_FILES}
    sandbox.write(sandbox.scratch, Change(write=worker))
    before = _sources(sandbox, unit)
    argv, plan = command(task, place, sandbox.tree, stop_at_failure, only)
    result = sandbox.execute(
        argv,
        output=folder.console,
        timeout_seconds=unit.timeout_seconds,
        env={name: value.replace("$RTB_TREE", sandbox.tree) for name, value in task.environment.env.items()},
        stdin=plan,
    )
    records, large_records = _read(sandbox, place.records, RESULT_LIMIT_BYTES)
    junit, large_junit = _read(sandbox, place.junit, RESULT_LIMIT_BYTES)
    after = _sources(sandbox, unit)
    if result.exit_code == EXIT_RECORDS_FULL and shutil.disk_usage(raw).free < FREE_BYTES_NEEDED:
        raise OutOfSpace(f"the disk that holds {raw} is full: free some space and run the same command again")
    facts = UnitExec(
        argv=tuple(argv),
        nonce=place.nonce,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        oom_killed=result.oom_killed,
        disk_killed=result.disk_killed,
        output_bytes=result.output_bytes,
        truncated=result.truncated,
        seconds=result.seconds,
        timeout_seconds=unit.timeout_seconds,
        trusted=_trusted_files(trusted, read_records(records or b"", place.nonce)),
        changed=tuple(path for path in before if before[path] != after[path]),
        oversized=("test records",) * large_records + ("JUnit report",) * large_junit,
        records_sha256=_digest(records),
        junit_sha256=_digest(junit),
    )
    for path, data in ((folder.records, records), (folder.junit, junit)):
        if data is not None:
            write_atomic(path, data)
    write_model(folder.exec, facts)


@dataclass(frozen=True)
class Place:
    """Where one run keeps its files inside the sandbox, and its key. The name is new each time and not of the key."""

    scratch: str
    name: str
    nonce: str

    @property
    def runner(self) -> str:
        return f"{self.scratch}/{self.name}/runner.py"

    @property
    def records(self) -> str:
        return f"{self.scratch}/{self.name}.records"

    @property
    def junit(self) -> str:
        return f"{self.scratch}/{self.name}.xml"


def unit_of(task: Task) -> UnitStage:
    """The task's unit stage. Raises ExpectedError when it has none."""
    if task.unit is None:
        raise ExpectedError(f"{task.instance_id} has no unit stage")
    return task.unit


def command(
    task: Task, place: Place, tree: str, stop_at_failure: bool = False, only: Collection[str] | None = None
) -> tuple[list[str], bytes]:
    """The argv of the run and the plan for its standard input. Raises ExpectedError for a command we cannot run."""
    words = shlex.split(unit_of(task).command)
    arguments = words[3:]
    for word in arguments:
        if word == "-n" or word.startswith(("--numprocesses", "--dist", "-n=")):
            raise ExpectedError(f"{task.instance_id}: unit.command uses {word}: tests run in one process, remove it")
    arguments += [
        "-p",
        "no:cacheprovider",
        "-rfEsxXp",
        "--color=no",
        f"--junitxml={place.junit}",
        *("-o", "addopts="),
        *("-o", "junit_family=xunit1"),
        *("-o", "junit_logging=no"),
    ]
    plan = {
        "nonce": place.nonce,
        "tree": tree,
        "args": arguments,
        "roots": list(task.environment.import_roots),
        "plugins": list(task.environment.plugins),
        "records": place.records,
        "own": sorted(own_packages(task)),
        "stop": stop_at_failure,
        "only": None if only is None else sorted(only),
    }
    # -S and -s: nothing of the tree may run before our runner (see runner.start_site). The pycs: a compiled file
    # that says "do not check me" is checked against its source all the same.
    argv = [words[0], "-S", "-s", "--check-hash-based-pycs", "always", place.runner]
    return argv, json.dumps(plan).encode()


def own_packages(task: Task) -> set[str]:
    """Top-level names that the task is about, which the tree may therefore define itself."""
    names = set()
    for target in task.targets:
        path = PurePosixPath(target.path)
        for root in task.environment.import_roots:
            if path.is_relative_to(root):
                names.add(path.relative_to(root).parts[0].removesuffix(".py"))
    return names


def _read(sandbox: Sandbox, path: str, limit_bytes: int) -> tuple[bytes | None, bool]:
    """A file of the sandbox, and whether it was too large to read. Only the tests' process can have made it so."""
    try:
        return sandbox.read(path, limit_bytes=limit_bytes), False
    except OutOfSpace:
        return None, True


def _sources(sandbox: Sandbox, unit: UnitStage) -> dict[str, bytes | None]:
    root = PurePosixPath(sandbox.tree)
    return {path: _read(sandbox, str(root / path), SOURCE_LIMIT_BYTES)[0] for path in unit.files}


def _trusted_files(trusted: Collection[str] | None, records: Records) -> tuple[str, ...] | None:
    """Of the trusted paths, those that the records speak of: a repository has too many to keep with every run."""
    if trusted is None:
        return None
    named = {file for _, file in records.plugins} | {file for _, file, _ in records.replaced} | {records.ini}
    named |= {test.code_file for test in records.tests}
    return tuple(sorted(named & set(trusted)))


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def read_evidence(raw: Path) -> UnitEvidence:
    """The stored evidence of a run. Raises StoredRunBroken when a file is missing, cut or not as it was kept."""
    folder = UnitFolder(raw)
    try:
        facts = UnitExec.model_validate_json(folder.exec.read_bytes())
        console = folder.console.read_bytes()
    except (OSError, ValidationError) as error:
        raise StoredRunBroken(f"{raw}: the unit stage cannot be graded again: {error}; run it again") from error
    records = _stored(folder.records, facts.records_sha256)
    junit = _stored(folder.junit, facts.junit_sha256)
    return UnitEvidence(
        exec=facts,
        records=read_records(records or b"", facts.nonce),
        junit=read_junit(junit),
        console=console,
        totals=read_totals(console),
    )


def stored_records(raw: Path) -> Records:
    """The test records alone of a graded run, to be shown. Raises StoredRunBroken as `read_evidence` does."""
    folder = UnitFolder(raw)
    try:
        facts = UnitExec.model_validate_json(folder.exec.read_bytes())
    except (OSError, ValidationError) as error:
        raise StoredRunBroken(f"{raw}: the unit stage cannot be read: {error}; run it again") from error
    return read_records(_stored(folder.records, facts.records_sha256) or b"", facts.nonce)


def _stored(path: Path, sha256: str | None) -> bytes | None:
    if sha256 is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoredRunBroken(f"{path} cannot be read: {error.strerror}; run the task again") from error
    if _digest(data) != sha256:
        raise StoredRunBroken(f"{path} is not the file that was kept (its sha256 differs); run the task again")
    return data


@dataclass(frozen=True)
class ObservedRun:
    """What a control run showed, before any expected ids are known. `fault`: it ended early, and why."""

    statuses: dict[str, TestStatus]
    fault: Fault | None


def observed_run(raw: Path) -> ObservedRun:
    """The statuses of a stored run, for `harness.ids`.

    Raises MachineError for a run in which the tests did not get their chance, and ExpectedError for one whose own
    evidence contradicts itself: a control that looks tampered with means that the task cannot be graded.
    """
    evidence = read_evidence(raw)
    fault = machine_fault(evidence)
    if fault is not None:
        raise MachineError(fault.reason)
    contradiction = tampering(evidence, None)
    if contradiction is not None:
        raise ExpectedError(f"{raw}: the control run contradicts itself: {contradiction}")
    return ObservedRun(evidence.records.statuses, patch_fault(evidence))


def grade_unit(task: Task, tests: TestIds, raw: Path) -> StageResult:
    """Grade a stored run. Pure but for reading the files. Raises StoredRunBroken."""
    unit_of(task)
    evidence = read_evidence(raw)
    return stage_result(grade(tests, evidence), evidence.exec.seconds)


def stage_result(unit: UnitGrade, seconds: float) -> StageResult:
    """A grade as the stage's result."""
    return StageResult(
        stage="unit",
        status=unit.status,
        reason=unit.reason,
        seconds=seconds,
        tampered=unit.tampered,
        flags=unit.flags,
        unit=unit.facts,
    )
