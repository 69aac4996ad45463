"""`rtb validate`: gold, base and sabotage through every stage of a task, so that it is known to judge fairly."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness import controls
from harness.coverage import decide_coverage
from harness.decisions import STANDARD, Schedule, unmeasurable
from harness.gsm8k import read_answers
from harness.ids import test_ids
from harness.opened_sides import Place, control_opener, opener, sides
from harness.plan import patch_plan
from harness.proven_unit import run_twin, twin_evidence
from harness.question_set import load_questions
from harness.stages.accuracy import AccuracyFolder, grade_accuracy, run_accuracy
from harness.stages.latency import run_latency
from harness.stages.latency_grade import (
    METRICS,
    LatencyFolder,
    grade_latency,
    logs_of,
    pair_values,
    read_launches,
    read_times,
)
from harness.stages.sides import Open, Sides
from harness.stages.unit import execute_unit, grade_unit, observed_run
from harness.statistics import pair_up
from harness.trace import lay_tracer, read_trace
from harness.twin import with_noticed
from harness.validation import Control, ControlRun, Validation, notes, refusals
from harness.validation_folder import ValidationFolder, ValidationKey
from rtb import __version__
from rtb.base_tree import base_repository
from rtb.baseline import Baseline, MetricName, write_baseline
from rtb.errors import ExpectedError, MachineError, StoredRunBroken
from rtb.git_objects import borrow_objects
from rtb.hydration import patches_of
from rtb.result import CoverageFacts, StageResult, Status
from rtb.sabotage import CPU_EFFORT, CannotSabotage, Effort, Sabotage
from rtb.storage import write_model
from rtb.task import StageName, TestIds, task_digest

# A turn takes some 30 microseconds in the interpreter and 14 nanoseconds compiled (measured on an H200). So 2 ms a
# launch on a CPU and 0.3 ms on a GPU, where a kernel may run once in a step of 4 ms: enough to be seen there, and not
# too long to be waited for. Host functions may be called for every token and layer: 64 microseconds on a CPU.
BUSY = {"cpu": CPU_EFFORT, "gpu": Effort(turns=20_000, microseconds=300)}
BLIND = Baseline()  # validate must not lean on what an earlier validate found


@dataclass
class _Found:
    """What has been measured so far."""

    controls: list[ControlRun] = field(default_factory=list)
    impossible: dict[Control, str] = field(default_factory=dict)
    coverage: dict[StageName, CoverageFacts] = field(default_factory=dict)
    tests: TestIds | None = None
    flip_rate: float | None = None
    gold_over_gold: dict[MetricName, float] = field(default_factory=dict)
    deviation: dict[MetricName, float] = field(default_factory=dict)
    gold_over_base: dict[MetricName, float] = field(default_factory=dict)
    unmeasurable: str | None = None

    def add(self, control: Control, result: StageResult) -> None:
        number = 1 + sum(run.control == control and run.stage == result.stage for run in self.controls)
        status: Status = "failed" if result.tampered else result.status
        reason = result.tampered or result.reason
        self.controls.append(
            ControlRun(control=control, stage=result.stage, number=number, status=status, reason=reason)
        )

    def failed(self, control: Control, stage: StageName) -> bool:
        return any(run.control == control and run.stage == stage and run.status == "failed" for run in self.controls)


@dataclass(frozen=True)
class Validator:
    """One task being validated. `raw` keeps the files of every control run; `say` is told what goes on."""

    place: Place
    raw: Path
    runs: int
    schedule: Schedule
    say: Callable[[str], None]
    concurrency: int = 32

    def validate(self, stages: tuple[StageName, ...]) -> Validation:
        """Every control of every stage, then the verdict on the task. Control runs that an interrupted validation
        left whole are kept.

        Writes tests.json, baselines.json and validation.json into the task's folder. Raises ExpectedError when no
        test tells gold from base, and what sandboxes and servers raise.
        """
        entry = self.place.entry
        found = _Found(tests=entry.tests)
        wanted = tuple(stage for stage in entry.task.stages if stage in stages)
        self.folder.begin(self._key())
        if "unit" in wanted:
            self._unit(found)
        if "accuracy" in wanted:
            self._accuracy(found)
        if "latency" in wanted:
            self._latency(found)
        baseline = Baseline(
            environment=self.place.prepared.digest,
            flip_rate=found.flip_rate,
            gold_over_gold=found.gold_over_gold,
            deviation=found.deviation,
            gold_over_base=found.gold_over_base,
            unmeasurable=found.unmeasurable,
            coverage=found.coverage,
        )
        verdict = Validation(
            instance_id=entry.instance_id,
            sandbox=self.place.prepared.kind,
            device_class=self.place.device_class,
            stages=wanted,
            controls=tuple(found.controls),
            impossible=found.impossible,
            coverage=found.coverage,
            baseline=baseline,
            quarantined=found.tests.quarantined if found.tests else {},
            refused=refusals(wanted, found.controls, found.impossible, found.coverage),
            notes=notes(found.controls, found.impossible, baseline),
        )
        write_baseline(entry, self.place.device_class, baseline)
        write_model(self.folder.record, verdict)
        return verdict

    @property
    def folder(self) -> ValidationFolder:
        return ValidationFolder(self.raw)

    def _key(self) -> ValidationKey:
        entry = self.place.entry
        return ValidationKey(
            task_digest=task_digest(entry.task, None, patches_of(entry).as_mapping()),  # ids are what comes out
            environment_digest=self.place.prepared.digest,
            harness_version=__version__,
            device_class=self.place.device_class,
            looks=self.schedule.looks,
        )

    def twin(self) -> TestIds:
        """Measure again which tests notice gold made wrong, and nothing else. Writes tests.json; ids stay.

        Raises ExpectedError for a task without test ids, and what sandboxes raise.
        """
        entry = self.place.entry
        if entry.tests is None:
            raise ExpectedError(f"{entry.instance_id} has no tests.json: run rtb validate without --only-twin")
        tests = self._unit_twin(entry.tests)
        write_model(entry.folder.tests_json, tests)
        return tests

    # Openers

    def _sabotaged(self, control: Sabotage, found: _Found) -> Open | None:
        """Opens a sabotaged tree; None when the targets do not allow this kind."""
        effort = BUSY["gpu" if self.place.devices else "cpu"]
        try:
            prediction = controls.sabotaged(self.place.entry, base_repository(self.place.entry), control, effort)
        except CannotSabotage as error:
            found.impossible[control] = str(error)
            return None
        return opener(self.place, prediction.patch_bytes, "sabotage")

    def _open(self, control: Control, found: _Found) -> Open | None:
        if control == "gold" or control == "base":
            return control_opener(self.place, control)
        return self._sabotaged(control, found)

    @contextmanager
    def _sides(self, model: Open) -> Iterator[Sides]:
        with model() as sandbox:
            made = sides(self.place, sandbox, self.concurrency)
            yield Sides(sandbox, made.gold, made.gold_cache, made.concurrency, BLIND)

    # Stages

    def _unit(self, found: _Found) -> None:
        """Ids from gold and base runs, then each sabotage against them, and one traced run of gold."""
        task = self.place.entry.task
        observed = {}
        for control in ("gold", "base"):
            folders = [self._unit_run(control, number, found) for number in range(1, self.runs + 1)]
            observed[control] = [observed_run(folder).statuses for folder in folders if folder is not None]
        where = f"rtb validate, {self.place.prepared.kind}, {self.place.device_class}"
        found.tests = test_ids(
            task.instance_id,
            observed["gold"],
            observed["base"],
            told_by_latency=task.latency is not None,
            provenance=where,
        )
        write_model(self.place.entry.folder.tests_json, found.tests)
        planned: tuple[tuple[Control, int], ...] = (
            ("gold", self.runs), ("base", self.runs), ("scale", self.runs), ("drop_rows", self.runs),
            ("low_precision", 1),
        )  # fmt: skip
        for control, count in planned:
            for number in range(1, count + 1):
                folder: Path | None = self.folder.control("unit", control, number)
                if control not in ("gold", "base"):  # those have run
                    folder = self._unit_run(control, number, found)
                if folder is not None:
                    found.add(control, grade_unit(task, found.tests, folder))
        found.tests = self._unit_twin(found.tests)
        write_model(self.place.entry.folder.tests_json, found.tests)
        self._trace_unit(found)

    def _unit_twin(self, tests: TestIds) -> TestIds:
        """Whether the tests notice gold's own twin, and which do: only then may a twin decide about a prediction."""
        self.say("unit: gold's sabotage twin")
        entry, folder = self.place.entry, self.folder.control("unit", "twinned-gold", 1)
        shutil.rmtree(folder, ignore_errors=True)  # its rounds do not say which is the last
        base, gold = base_repository(entry), patches_of(entry).gold
        with borrow_objects(base.path) as objects:
            plan = patch_plan(entry, objects, base.tree, gold, control="gold")
        if plan.twin is None or plan.twin_change is None:
            return tests
        with self.place.session.open_sandbox(
            self.place.prepared, run=self.place.run, devices=self.place.devices
        ) as sandbox:
            sandbox.write(sandbox.tree, plan.twin_change)
            run_twin(entry.task, plan, sandbox, folder, tests.expected)
        return with_noticed(tests, twin_evidence(folder))

    def _unit_run(self, control: Control, number: int, found: _Found) -> Path | None:
        opened = self._open(control, found)
        if opened is None:
            return None
        folder = self.folder.control("unit", control, number)
        if _had_its_chance(folder):
            self.say(f"unit: {control}, run {number} (kept from before)")
            return folder
        self.say(f"unit: {control}, run {number}")
        with opened() as sandbox:
            execute_unit(self.place.entry.task, sandbox, folder)
        return folder

    def _trace_unit(self, found: _Found) -> None:
        folder = self.folder.control("unit", "traced-gold", 1)
        if not (folder / "launches.jsonl").is_file():
            self._traced(folder)
        found.coverage["unit"] = decide_coverage(self.place.entry.task.targets, read_trace(folder / "launches.jsonl"))

    def _traced(self, folder: Path) -> None:
        self.say("unit: tracing launches")
        with control_opener(self.place, "gold")() as sandbox:
            trace = lay_tracer(sandbox)
            execute_unit(trace.task(self.place.entry.task), sandbox, folder)
            trace.collect(folder / "launches.jsonl")

    def _accuracy(self, found: _Found) -> None:
        """Gold against gold (the flip rate), then sabotages until one is noticed."""
        task = self.place.entry.task
        assert task.accuracy is not None
        questions = load_questions(task.accuracy.dataset, self.place.entry.suite_path)
        for control in ("gold", "scale", "drop_rows"):
            opened = self._open(control, found)
            if opened is None or (control == "drop_rows" and found.failed("scale", "accuracy")):
                continue
            folder = self.folder.control("accuracy", control, 1)
            result = _kept(partial(grade_accuracy, task, folder))
            self.say(f"accuracy: {control} against gold{' (kept from before)' if result else ''}")
            if result is None:
                with self._sides(opened) as both:
                    result = run_accuracy(task, questions, both, folder)
            found.add(control, result)
            if control == "gold":
                if result.coverage is not None:
                    found.coverage["accuracy"] = result.coverage
                found.flip_rate = _flip_rate(folder)

    def _latency(self, found: _Found) -> None:
        """Gold against gold (noise), base against gold (its gain), and a busy loop that must be noticed."""
        task = self.place.entry.task
        for control in ("gold", "base", "busy_loop"):
            opened = self._open(control, found)
            if opened is None:
                continue
            folder = self.folder.control("latency", control, 1)
            result = _kept(partial(grade_latency, task, folder))
            self.say(f"latency: {control} against gold{' (kept from before)' if result else ''}")
            if result is None:
                with self._sides(opened) as both:
                    result = run_latency(task, both, folder, schedule=self.schedule)
            found.add(control, result)
            logs = _logs(folder)
            if control == "gold":
                if result.coverage is not None:
                    found.coverage["latency"] = result.coverage
                reasons = {name: unmeasurable(values) for name, values in logs.items()}
                found.unmeasurable = next((f"{name}: {why}" for name, why in reasons.items() if why), None)
            if result.latency is not None:
                estimates = {name: item.estimate for name, item in result.latency.ratios.items()}
                if control == "gold":
                    found.gold_over_gold = estimates
                    found.deviation = {name: item.deviation for name, item in result.latency.ratios.items()}
                elif control == "base":
                    found.gold_over_base = {name: 1 / value for name, value in estimates.items()}


def _kept(grade: Callable[[], StageResult]) -> StageResult | None:
    """The result of a stage that an earlier call left whole, or None."""
    try:
        result = grade()
    except StoredRunBroken:
        return None
    return None if result.status == "error" else result


def _had_its_chance(folder: Path) -> bool:
    """Whether an earlier call left a whole run of the tests there, and no fault of the machine."""
    try:
        observed_run(folder)
    except (StoredRunBroken, MachineError, ExpectedError):
        return False
    return True


def _flip_rate(folder: Path) -> float | None:
    """Share of answers that differ between the two runs of gold, on the filter where more do."""
    files = AccuracyFolder(folder)
    first = {answer.index: answer for answer in read_answers(files.answers("gold"))}
    second = [answer for answer in read_answers(files.answers("model")) if answer.index in first]
    if not second:
        return None
    strict = pair_up([first[item.index].strict_right for item in second], [item.strict_right for item in second])
    loose = pair_up([first[item.index].flexible_right for item in second], [item.flexible_right for item in second])
    return max(strict.discordant, loose.discordant)


def _logs(folder: Path) -> dict[MetricName, list[float]]:
    files = LatencyFolder(folder)
    if not files.launches.is_file():
        return {}
    times = read_times(files, read_launches(files.launches), batch_only=True)
    return {metric: logs_of(pair_values(times, "batch", metric)) for metric in METRICS}


def validator(
    place: Place, raw: Path, say: Callable[[str], None], *, runs: int = 3, schedule: Schedule = STANDARD
) -> Validator:
    """A validator with the usual settings."""
    return Validator(place, raw, runs, schedule, say)
