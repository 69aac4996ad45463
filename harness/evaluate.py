"""A whole run: predictions in, verdicts out. Records before running; what is finished is never run again."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, cast

from harness import controls
from harness.paper_tables import numbers
from harness.pool import run_all
from harness.profiles import TaskRows, task_rows
from harness.report import build_report, to_markdown
from harness.single import Job, evaluate_one
from harness.verdict import grade_run, grade_task
from rtb import __version__, devices, environment, hydration, machine
from rtb.base_tree import BaseTree
from rtb.console import Progress, progress, say
from rtb.errors import ExpectedError
from rtb.prediction import CONTROLS, Prediction, PredictionFile, Problem, read_predictions
from rtb.result import Report, Verdict
from rtb.run import Run, RunRecord, check_run_id
from rtb.series import Series
from rtb.storage import write_model
from rtb.suite import LoadedSuite, TaskEntry, find_task, load_suite, suite_names
from rtb.task import STAGES, StageName, task_digest

# So many equal machine faults one after the other are one broken machine: no further task is begun.
EQUAL_FAULTS = 5


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    predictions: str
    suite: str | None
    instances: tuple[str, ...]
    stages: tuple[str, ...]
    sandbox: str | None
    workers: int
    run_id: str | None
    profile: str
    out: Path
    retries: int
    gpu: bool = False
    plain: bool | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Finished:
    """A run that came to its end, whatever the score."""

    run: Run
    report: Report
    faulty_predictions: int


@dataclass(frozen=True)
class _Answers:
    """Where predictions come from: a file, or a control made for each task when its turn comes."""

    label: str
    sha256: str
    file: PredictionFile | None
    problems: tuple[Problem, ...]
    model_names: tuple[str, ...]

    def ids(self, entries: tuple[TaskEntry, ...]) -> list[str]:
        names = [entry.instance_id for entry in entries]
        return names if self.file is None else [name for name in names if name in self.file.positions]

    def unfinished(self, entries: tuple[TaskEntry, ...]) -> dict[str, str]:
        """Chosen tasks whose line is no answer, with the reason."""
        there = {} if self.file is None else self.file.unfinished
        return {entry.instance_id: there[entry.instance_id] for entry in entries if entry.instance_id in there}

    def load(self, entry: TaskEntry, base: BaseTree) -> Prediction:
        return controls.control(self.label, entry, base) if self.file is None else self.file.load(entry.instance_id)


def evaluate(request: Request) -> Finished:
    """Evaluate, or finish, a run. Raises ExpectedError on bad input; KeyboardInterrupt leaves a resumable run."""
    wanted, profile = named_stages(request.stages), _profile(request.profile)
    loaded = suite_of(request)
    entries = loaded.select(request.instances)
    if not entries:
        raise ExpectedError(f"suite {loaded.suite.name} has no task")
    stages = tuple(stage for stage in wanted if any(stage in entry.task.stages for entry in entries))
    if not stages:
        raise ExpectedError(f"no chosen task of suite {loaded.suite.name} has a stage {' or '.join(wanted)}")
    answers = _answers(request.predictions, {entry.instance_id for entry in entries}, loaded)
    kind = environment.choose_kind(request.sandbox)
    digests = {entry.instance_id: _digest(entry) for entry in entries}
    run_id = check_run_id(request.run_id or run_name(answers.label, loaded.suite.name, kind))
    run = Run(request.out / run_id)
    if Series(run.path).record.is_file():
        raise ExpectedError(f"{run.path} holds several runs: choose another --run-id for a single one")
    with run.sole_writer():
        here = machine.this_machine()
        record = RunRecord(
            run_id=run_id,
            created_at=_created(run),
            rtb_version=__version__,
            suite=loaded.suite.name,
            suite_digest=hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest(),
            categories={entry.instance_id: entry.task.category for entry in entries},
            whole_suite=len(entries) == len(loaded.entries),
            stages=stages,
            profile=profile,
            sandbox=kind,
            isolation=environment.not_isolated(kind),
            predictions=answers.label,
            predictions_sha256=answers.sha256,
            problems=answers.problems,
            unfinished=answers.unfinished(entries),
            model_names=answers.model_names,
            machine=here,
            versions={**machine.versions(), **environment.versions(kind)},
            workers=request.workers,
            devices=_devices(request.gpu, entries),
        )
        write_model(run.record, record)
        _keep_predictions(run, answers, entries)
        _run(request, run, record, entries, answers, digests)
        report = write_reports(run, record)
    return Finished(run, report, sum(not problem.is_warning for problem in answers.problems))


def named_stages(names: tuple[str, ...]) -> tuple[StageName, ...]:
    """Stages by name, in the order they run. Raises ExpectedError on a name that is none."""
    wanted = [name.strip() for name in names if name.strip()]
    if unknown := [name for name in wanted if name not in STAGES]:
        raise ExpectedError(f"--stages {unknown[0]!r}: this version has {', '.join(STAGES)}")
    if not wanted:
        raise ExpectedError("--stages names no stage")
    return tuple(stage for stage in STAGES if stage in wanted)


def _profile(name: str) -> Literal["robust", "paper"]:
    if name not in ("robust", "paper"):
        raise ExpectedError(f"--profile {name!r}: there are robust and paper")
    return cast(Literal["robust", "paper"], name)


def _devices(gpu: bool, entries: tuple[TaskEntry, ...]) -> tuple[str, ...]:
    """The GPUs that tasks may lease; none when no task needs one and the user asks for none."""
    needed = max(int(gpu), *(entry.task.environment.gpu.count for entry in entries))
    there = devices.visible() if needed else ()
    if len(there) < needed:
        raise ExpectedError(f"{needed} GPU(s) are needed and {len(there)} can be seen here; see 'rtb doctor'")
    return there


def suite_of(request: Request) -> LoadedSuite:
    """The suite that a request is about. Raises ExpectedError when its tasks are of several."""
    if request.suite is not None:
        return load_suite(request.suite)
    if request.instances:
        homes = {find_task(name).suite.name for name in request.instances}
        if len(homes) == 1:
            return load_suite(homes.pop())
        raise ExpectedError(f"the tasks are of several suites ({', '.join(sorted(homes))}): name one with --suite")
    names = suite_names()
    return load_suite(names[0] if len(names) == 1 else "demo")


def _answers(label: str, selected: set[str], loaded: LoadedSuite) -> _Answers:
    if label in CONTROLS:
        return _Answers(label, hashlib.sha256(label.encode()).hexdigest(), None, (), (label,))
    path = Path(label)
    known = {entry.instance_id for entry in loaded.entries}
    found = read_predictions(path, known)
    for problem in found.problems:
        say(f"{path}:{problem.place}: {'warning' if problem.is_warning else 'error'}: {problem.message}")
    there = {*found.ids, *found.unfinished}
    if not there:
        raise ExpectedError(f"{path}: no prediction of suite {loaded.suite.name} that could be evaluated")
    if not selected & there:
        raise ExpectedError(f"{path}: no prediction for any of the selected tasks")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _Answers(label, digest, found, found.problems, found.model_names)


def _digest(entry: TaskEntry) -> str:
    return task_digest(entry.task, entry.required_tests(), hydration.patches_of(entry).as_mapping())


def run_name(label: str, suite: str, kind: str) -> str:
    """A name for a run that the user gave none: suite, predictions, sandbox and the time."""
    stem = label if label in CONTROLS else Path(label).stem
    clean = "".join(char if char.isalnum() or char in "._-" else "-" for char in stem).lstrip("._-") or "run"
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{suite}-{clean[:40]}-{kind}-{stamp}"


def _created(run: Run) -> str:
    """When the run was first begun; a resumed run keeps its date."""
    with suppress(ExpectedError):  # none there, or broken: then this is its beginning
        return run.read_record().created_at
    return datetime.now(UTC).isoformat(timespec="seconds")


def _keep_predictions(run: Run, answers: _Answers, entries: tuple[TaskEntry, ...]) -> None:
    if answers.file is None:
        return
    # Written line by line, beside its final name: a file of any size, and never half of one.
    temporary = run.predictions.with_suffix(".part")
    wanted = {entry.instance_id for entry in entries}
    with temporary.open("wb") as file:
        for name in answers.file.ids:
            if name in wanted:
                file.write(answers.file.load(name).to_line())
    temporary.replace(run.predictions)


def _run(
    request: Request,
    run: Run,
    record: RunRecord,
    entries: tuple[TaskEntry, ...],
    answers: _Answers,
    digests: dict[str, str],
) -> None:
    names = set(answers.ids(entries))
    chosen = [entry for entry in entries if entry.instance_id in names]
    _drop_stale(run, entries, names)
    stop = threading.Event()
    guard = _FaultGuard(stop)
    with (
        progress(len(chosen), plain=request.plain, quiet=request.quiet) as shown,
        environment.session(hidden=(request.out,)) as session,  # other runs hold patches, gold's among them
    ):

        def jobs() -> Iterator[Job]:
            for entry in chosen:
                yield Job(
                    entry=entry, load=partial(answers.load, entry), folder=run.task(entry.instance_id),
                    record=record, task_digest=digests[entry.instance_id], retries=request.retries,
                    control=answers.label if answers.file is None else None, stop=stop, session=session,
                    gpus=max(entry.task.environment.gpu.count, int(request.gpu)),
                )  # fmt: skip

        def finished(job: Job, reused: bool) -> None:
            verdict = grade_task(run, record, job.entry.instance_id)
            if job.folder.path.is_dir():
                write_model(job.folder.verdict, verdict)
            guard.saw(verdict, shown)
            again = " (kept from before)" if reused else ""
            shown.done(verdict.instance_id, verdict.outcome, verdict.reason + again, verdict.seconds)

        run_all(
            jobs(),
            lambda job: evaluate_one(job, shown),
            workers=request.workers,
            on_result=finished,
            stop=stop,
            interrupt=session.interrupt,
        )


def _drop_stale(run: Run, entries: tuple[TaskEntry, ...], submitted: set[str]) -> None:
    """A task that an earlier call had a prediction for, and this one has none for, is not submitted."""
    for entry in entries:
        folder = run.task(entry.instance_id).path
        if entry.instance_id not in submitted and folder.is_dir():
            shutil.rmtree(folder)


class _FaultGuard:
    """Sets `stop` after too many equal machine faults in a row."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._last = ""
        self._count = 0

    def saw(self, verdict: Verdict, shown: Progress) -> None:
        if verdict.outcome != "error" or not verdict.attempts:
            self._last, self._count = "", 0
            return
        kind = verdict.attempts[-1].kind
        self._count = self._count + 1 if kind == self._last else 1
        self._last = kind
        if self._count == EQUAL_FAULTS and not self._stop.is_set():
            self._stop.set()
            shown.note(f"{EQUAL_FAULTS} tasks in a row ended with {kind}: no further task is begun; see 'rtb doctor'")


def write_reports(run: Run, record: RunRecord) -> Report:
    """report.json and report.md from the stored verdicts."""
    rows: list[TaskRows] = []

    def verdicts() -> Iterator[Verdict]:
        for verdict in stored_verdicts(run, record):
            rows.append(task_rows(verdict, unit=record.has_unit))
            yield verdict

    report = build_report(record, verdicts())
    run.write_report(report, to_markdown(report, record, stored_verdicts(run, record), numbers(rows)))
    return report


def stored_verdicts(run: Run, record: RunRecord) -> Iterator[Verdict]:
    """Each task's verdict.json, or what follows from its files when it has none."""
    for name in record.instance_ids:
        yield run.read_verdict(name) or grade_task(run, record, name)


def regrade(run: Run) -> Report:
    """Grade a stored run again from its raw files and write verdicts and reports anew."""
    record = run.read_record()
    for verdict in grade_run(run):
        folder = run.task(verdict.instance_id)
        if folder.path.is_dir():
            write_model(folder.verdict, verdict)
    return write_reports(run, record)
