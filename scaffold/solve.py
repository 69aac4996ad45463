"""A whole solve run: tasks in, predictions and trajectories out. What is finished is never run again."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rtb import __version__, environment
from rtb.console import Progress, progress
from rtb.errors import ExpectedError
from rtb.storage import write_atomic
from rtb.suite import TaskEntry
from scaffold import mini, prices
from scaffold.attempt import AgentName, AttemptRecord, Place, Plan, Settings, read_record, run_attempt
from scaffold.budget import Budget, Spent
from scaffold.endpoint import ModelOptions, resolve
from scaffold.model import Model
from scaffold.places import places
from scaffold.prompt import Facts, Prompt, Templates, facts_of
from scaffold.recorder import AttemptFolder

# So many equal faults one after the other are one broken machine: no further attempt is begun.
EQUAL_FAULTS = 3


@dataclass(frozen=True)
class SolveOptions:
    """What the user asked for. `retries`: further tries of an attempt that a machine's fault ended."""

    model: ModelOptions
    out: Path
    attempts: int = 1
    workers: int = 1
    sandbox: str | None = None
    agent: AgentName = "light"
    budget: Budget = field(default_factory=Budget)
    with_context: bool = True
    prompts: Path | None = None
    published_prompts: bool = False
    prices: Path | None = None
    retries: int = 1
    plain: bool | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Row:
    """One attempt in a summary. `kept`: it was finished by an earlier call."""

    record: AttemptRecord
    kept: bool


@dataclass(frozen=True)
class Summary:
    """What a solve run left. `stopped` says why attempts were not begun, or is None."""

    files: tuple[Path, ...]
    rows: tuple[Row, ...]
    wanted: int
    stopped: str | None

    @property
    def unfinished(self) -> tuple[AttemptRecord, ...]:
        """Attempts that a fault ended: the same command runs them again."""
        return tuple(row.record for row in self.rows if not row.record.finished)

    @property
    def incomplete(self) -> bool:
        return len(self.rows) < self.wanted or bool(self.unfinished)

    @property
    def tokens(self) -> int | None:
        known = _sum([row.record.tokens for row in self.rows])
        return None if known is None else int(known)

    @property
    def cost_usd(self) -> float | None:
        return _sum([row.record.cost_usd for row in self.rows])


def _sum(values: Sequence[int | float | None]) -> float | None:
    """A sum, or None when a part of it is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


class SolveFolder:
    """Where a solve run keeps its files: predictions where the user said, attempts in a folder beside them."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.attempts = out.with_suffix(".attempts")

    def predictions(self, number: int) -> Path:
        """The predictions of attempt `number`, from 1: one file each, as `rtb evaluate` takes one answer a task."""
        return self.out if number == 1 else self.out.with_name(f"{self.out.stem}.attempt-{number}{self.out.suffix}")

    def attempt(self, instance_id: str, number: int) -> AttemptFolder:
        return AttemptFolder(self.attempts / instance_id / f"attempt-{number}")

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Hold the run. Raises ExpectedError when another process does, or when the file is not of a solve run."""
        if self.out.exists() and not self.attempts.is_dir():
            raise ExpectedError(f"--out {self.out} is there already and no solve run made it: choose another name")
        self.attempts.mkdir(parents=True, exist_ok=True)
        with (self.attempts / ".lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ExpectedError(
                    f"another process solves into {self.out}: wait for it, or choose another --out"
                ) from None
            yield


def dry_run(entry: TaskEntry, options: SolveOptions, tree: str = "/testbed") -> Prompt:
    """The prompt of a task, without a model or a sandbox."""
    facts = facts_of(entry, with_context=options.with_context)
    return Templates(options.prompts).prompt(facts, options.model.dialect, options.budget, tree)


def solve(entries: Sequence[TaskEntry], options: SolveOptions) -> Summary:
    """Make all attempts that are not finished.

    Raises ExpectedError on bad input before anything is begun. On Ctrl-C what runs is ended and kept, then
    KeyboardInterrupt goes on up.
    """
    resolve(options.model)
    if options.agent == "mini":
        mini.check_installed()
    kind = environment.choose_kind(options.sandbox)
    folder = SolveFolder(options.out)
    with folder.sole_writer(), places(kind, f"solve-{options.out.stem}") as rooms:
        plans = _Plans(entries, options, folder, rooms.open)
        work, rows = plans.divide()
        batch = _Batch(options, folder, rows)
        with progress(len(work), plain=options.plain, quiet=options.quiet) as shown:
            try:
                batch.run(work, plans, shown, rooms.interrupt)
            finally:
                batch.write_predictions(entries)
    files = tuple(folder.predictions(number) for number in range(1, options.attempts + 1))
    return Summary(files, tuple(batch.rows.values()), len(entries) * options.attempts, batch.stopped)


Key = tuple[str, int]


class _Plans:
    """Which attempts there are to make, and with what."""

    def __init__(
        self, entries: Sequence[TaskEntry], options: SolveOptions, folder: SolveFolder, place: Place
    ) -> None:
        self._entries = {entry.instance_id: entry for entry in entries}
        self._options = options
        self._folder = folder
        self._place = place
        self._templates = Templates(options.prompts)
        self._price = prices.table(options.prices).of(options.model.name)
        self._facts = {entry.instance_id: facts_of(entry, with_context=options.with_context) for entry in entries}
        self._agent_version = mini.version() if options.agent == "mini" else __version__

    def divide(self) -> tuple[list[Key], dict[Key, Row]]:
        """Attempts to make, first attempts first, and those that are finished. Raises ExpectedError on a mix-up."""
        work: list[Key] = []
        rows: dict[Key, Row] = {}
        for number in range(1, self._options.attempts + 1):
            for name, entry in self._entries.items():
                stored = read_record(self._folder.attempt(name, number))
                if stored is None or not stored.finished:
                    work.append((name, number))
                elif stored.settings != (wanted := self.settings(entry, self._facts[name])):
                    raise ExpectedError(
                        f"{self._folder.attempt(name, number).path} was made with other settings "
                        f"({_difference(stored.settings, wanted)}): choose another --out"
                    )
                else:
                    rows[name, number] = Row(stored, kept=True)
        return work, rows

    def settings(self, entry: TaskEntry, facts: Facts) -> Settings:
        options = self._options
        return Settings(
            model=options.model.name,
            base_url=options.model.base_url,
            agent=options.agent,
            agent_version=self._agent_version,
            dialect=options.model.dialect,
            temperature=options.model.temperature,
            max_output_tokens=options.model.max_output_tokens,
            extra=dict(options.model.extra),
            budget=options.budget,
            with_context=options.with_context,
            published_prompts=options.published_prompts,
            prompt_sha256=self._templates.prompt(facts, options.model.dialect, options.budget, ".").sha256,
            base_commit=entry.task.base_commit,
        )

    def plan(
        self, key: Key, stop: threading.Event, on_step: Callable[[Spent], None], on_model: Callable[[Model], None]
    ) -> Plan:
        name, number = key
        entry, facts = self._entries[name], self._facts[name]
        return Plan(
            entry, number, self._folder.attempt(name, number), self.settings(entry, facts), self._options.model,
            self._price, self._templates, facts, self._place, stop, on_step, on_model,
        )  # fmt: skip


def _difference(stored: Settings, wanted: Settings) -> str:
    names = [name for name in Settings.model_fields if getattr(stored, name) != getattr(wanted, name)]
    return ", ".join(f"{name}: {getattr(stored, name)!r}, now {getattr(wanted, name)!r}" for name in names[:2])


class _Batch:
    """The attempts of one call while they run."""

    def __init__(self, options: SolveOptions, folder: SolveFolder, rows: dict[Key, Row]) -> None:
        self.rows = rows
        self.stopped: str | None = None
        self._options = options
        self._folder = folder
        self._stop = threading.Event()  # ends what runs
        self._no_more = threading.Event()  # begins nothing new
        self._models: dict[Key, Model] = {}
        self._spent: dict[Key, Spent] = {}
        self._faults: list[str] = []

    def run(self, work: Sequence[Key], plans: _Plans, shown: Progress, interrupt: Callable[[], None]) -> None:
        queue = iter(work)
        running: dict[Future[AttemptRecord], Key] = {}
        with ThreadPoolExecutor(self._options.workers, thread_name_prefix="rtb-solve") as pool:
            try:
                while True:
                    while len(running) < self._options.workers and not self._no_more.is_set():
                        key = next(queue, None)
                        if key is None:
                            break
                        running[pool.submit(self._attempt, key, plans, shown)] = key
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._finished(running.pop(future), future.result(), shown)
            except BaseException:
                # Also KeyboardInterrupt: what runs is ended and kept before the caller goes on.
                self._end_all(shown, interrupt)
                for future, key in running.items():
                    if future.exception() is None:
                        self._finished(key, future.result(), shown)
                raise

    def _end_all(self, shown: Progress, interrupt: Callable[[], None]) -> None:
        shown.note("stopping: what runs is ended and kept; the same command goes on from here")
        self._no_more.set()
        self._stop.set()
        for model in list(self._models.values()):
            model.abort()
        interrupt()

    def _attempt(self, key: Key, plans: _Plans, shown: Progress) -> AttemptRecord:
        """One attempt, again with a fresh sandbox when a machine's fault ended it. The tries are kept."""
        tries = 0
        while True:
            plan = plans.plan(
                key,
                self._stop,
                lambda spent: self._show(key, spent, shown),
                lambda model: self._models.update({key: model}),
            )
            shown.step(_label(key, self._options), "starting")
            record = run_attempt(plan)
            tries += 1
            if record.exit_status != "SandboxFault" or tries > self._options.retries or self._stop.is_set():
                return record
            shown.note(f"{_label(key, self._options)}: {record.exit_reason}; trying once more")
            _put_aside(plan.folder)

    def _show(self, key: Key, spent: Spent, shown: Progress) -> None:
        self._spent[key] = spent
        mine = f"step {spent.calls}, {_amount(spent.tokens, spent.cost_usd)}"
        tokens = _sum([item.tokens for item in self._spent.values()])
        cost = _sum([item.cost_usd for item in self._spent.values()])
        total = f"; all {_amount(tokens, cost)}" if len(self._spent) > 1 else ""
        shown.step(_label(key, self._options), mine + total)

    def _finished(self, key: Key, record: AttemptRecord, shown: Progress) -> None:
        self._models.pop(key, None)
        self.rows[key] = Row(record, kept=False)
        self._append(key, record)
        size = f"patch of {record.patch_bytes} bytes" if record.patch_bytes else "no patch"
        reason = f"{record.exit_reason}; {record.steps} steps, {_amount(record.tokens, record.cost_usd)}, {size}"
        shown.done(_label(key, self._options), record.exit_status, reason, record.seconds["total"])
        self._guard(record, shown)

    def _guard(self, record: AttemptRecord, shown: Progress) -> None:
        """Stop beginning attempts when the machine, the API or the key is broken for all of them."""
        if record.finished or record.exit_status == "Interrupted":
            self._faults.clear()
            return
        self._faults.append(record.exit_status)
        refused_at_once = record.exit_status == "ModelRefused" and record.steps == 0
        in_a_row = self._faults[-EQUAL_FAULTS:] == [record.exit_status] * EQUAL_FAULTS
        if (refused_at_once or in_a_row) and not self._no_more.is_set():
            self._no_more.set()
            count = "" if refused_at_once else f"{EQUAL_FAULTS} attempts in a row ended with {record.exit_status}: "
            self.stopped = f"{count}{record.exit_reason}"
            shown.note(f"no further attempt is begun: {self.stopped}")

    def _append(self, key: Key, record: AttemptRecord) -> None:
        """Each line as soon as there is one, so that a hard kill loses none; `write_predictions` makes it tidy."""
        if (line := self._line(key, record)) is not None:
            with self._folder.predictions(key[1]).open("ab") as file:
                file.write(line)

    def _line(self, key: Key, record: AttemptRecord) -> bytes | None:
        """A fault that left no patch is no answer: it gets no line, and never stands as an empty patch."""
        if not record.finished and not record.patch_bytes:
            return None
        folder = self._folder.attempt(*key)
        return record.prediction(folder, self._folder.out.parent).to_line()

    def write_predictions(self, entries: Sequence[TaskEntry]) -> None:
        """The predictions files, in the suite's order, one line a task."""
        for number in range(1, self._options.attempts + 1):
            lines = []
            for entry in entries:
                key = (entry.instance_id, number)
                row = self.rows.get(key)
                if row is not None and (line := self._line(key, row.record)) is not None:
                    lines.append(line)
            write_atomic(self._folder.predictions(number), b"".join(lines))


def _label(key: Key, options: SolveOptions) -> str:
    return key[0] if options.attempts == 1 else f"{key[0]} attempt {key[1]}"


def _amount(tokens: float | None, cost: float | None) -> str:
    counted = "tokens unknown" if tokens is None else f"{tokens:,} tokens"
    return counted if cost is None else f"{counted}, ${cost:.4f}"


def _put_aside(folder: AttemptFolder) -> None:
    """Keep the files of a try that a fault ended."""
    number = 1
    while (aside := folder.path.with_name(f"{folder.path.name}.fault-{number}")).exists():
        number += 1
    folder.path.rename(aside)
