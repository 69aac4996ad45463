"""The attempts of one solve run while they run: several at once, shown, stopped together, kept whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from rtb.console import Progress
from rtb.storage import write_atomic
from rtb.suite import TaskEntry
from scaffold.attempt import AttemptRecord, run_attempt
from scaffold.budget import Spent
from scaffold.model import Model
from scaffold.places import Places
from scaffold.plans import Key, Plans, SolveOptions
from scaffold.solve_folder import SolveFolder, put_aside

# So many equal faults one after the other are one broken machine: no further attempt is begun.
EQUAL_FAULTS = 3
# The kernel may give a signal to any thread; only a main thread that wakes now and then sees it at once.
WAKE_SECONDS = 0.5


@dataclass(frozen=True)
class Row:
    """One attempt in a summary. `kept`: it was finished by an earlier call."""

    record: AttemptRecord
    kept: bool


def total(values: Sequence[int | float | None]) -> float | None:
    """A sum, or None when a part of it is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


class Batch:
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

    def run(self, work: Sequence[Key], plans: Plans, rooms: Places, shown: Progress) -> None:
        """Make attempts, in order. On Ctrl-C, and on a fault of the code, what runs is ended and kept first."""
        queue = iter(work)
        running: dict[Future[AttemptRecord], Key] = {}
        with ThreadPoolExecutor(self._options.workers, thread_name_prefix="rtb-solve") as pool:
            try:
                while True:
                    while len(running) < self._options.workers and not self._no_more.is_set():
                        key = next(queue, None)
                        if key is None:
                            break
                        running[pool.submit(self._attempt, key, plans, rooms, shown)] = key
                    if not running:
                        return
                    done, _ = wait(running, timeout=WAKE_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._finished(running.pop(future), future.result(), shown)
            except BaseException:
                # Also KeyboardInterrupt: what runs is ended and kept before the caller goes on.
                self._end_all(shown, rooms)
                for future, key in running.items():
                    if future.exception() is None:
                        self._finished(key, future.result(), shown)
                raise

    def _end_all(self, shown: Progress, rooms: Places) -> None:
        shown.note("stopping: what runs is ended and kept; the same command goes on from here")
        self._no_more.set()
        self._stop.set()
        for model in list(self._models.values()):
            model.abort()
        rooms.interrupt()

    def _attempt(self, key: Key, plans: Plans, rooms: Places, shown: Progress) -> AttemptRecord:
        """One attempt, again with a fresh sandbox when a machine's fault ended it. The tries are kept."""
        tries = 0
        while True:
            plan = plans.plan(
                key,
                rooms.open,
                self._stop,
                lambda spent: self._show(key, spent, shown),
                lambda text: shown.step(_label(key, self._options), text),
                lambda model: self._models.update({key: model}),
            )
            shown.step(_label(key, self._options), "starting")
            record = run_attempt(plan)
            tries += 1
            if record.exit_status != "SandboxFault" or tries > self._options.retries or self._stop.is_set():
                return record
            shown.note(f"{_label(key, self._options)}: {record.exit_reason}; trying once more")
            put_aside(plan.folder)

    def _show(self, key: Key, spent: Spent, shown: Progress) -> None:
        self._spent[key] = spent
        mine = f"step {spent.calls}, {_amount(spent.tokens, spent.cost_usd)}"
        tokens = total([item.tokens for item in self._spent.values()])
        cost = total([item.cost_usd for item in self._spent.values()])
        together = f"; all {_amount(tokens, cost)}" if len(self._spent) > 1 else ""
        shown.step(_label(key, self._options), mine + together)

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

    def write_predictions(self, entries: Sequence[TaskEntry], others: Sequence[AttemptRecord] = ()) -> None:
        """The predictions files, one line a task: in the suite's order, then `others`, which earlier calls made."""
        for number in range(1, self._options.attempts + 1):
            lines = []
            for entry in entries:
                key = (entry.instance_id, number)
                row = self.rows.get(key)
                if row is not None and (line := self._line(key, row.record)) is not None:
                    lines.append(line)
            more = [self._line((item.instance_id, number), item) for item in others if item.attempt == number]
            lines += [line for line in more if line is not None]
            write_atomic(self._folder.predictions(number), b"".join(lines))


def _label(key: Key, options: SolveOptions) -> str:
    return key[0] if options.attempts == 1 else f"{key[0]} attempt {key[1]}"


def _amount(tokens: float | None, cost: float | None) -> str:
    counted = "tokens unknown" if tokens is None else f"{tokens:,} tokens"
    return counted if cost is None else f"{counted}, ${cost:.4f}"
