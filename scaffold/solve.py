"""A whole solve run: tasks in, predictions and trajectories out. What is finished is never run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtb import environment
from rtb.console import progress
from rtb.suite import TaskEntry
from scaffold import mini
from scaffold.attempt import AttemptRecord
from scaffold.batch import Batch, Row, total
from scaffold.model import Model
from scaffold.places import places
from scaffold.plans import Plans, SolveOptions
from scaffold.prompt import Prompt, Templates, facts_of
from scaffold.solve_folder import SolveFolder


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
        known = total([row.record.tokens for row in self.rows])
        return None if known is None else int(known)

    @property
    def cost_usd(self) -> float | None:
        return total([row.record.cost_usd for row in self.rows])


def dry_run(entry: TaskEntry, options: SolveOptions, tree: str = "/testbed") -> Prompt:
    """The prompt of a task, without a model or a sandbox."""
    facts = facts_of(entry, with_context=options.with_context)
    return Templates(options.prompts).prompt(facts, options.model.dialect, options.budget, tree)


def solve(entries: Sequence[TaskEntry], options: SolveOptions) -> Summary:
    """Make all attempts that are not finished.

    Raises ExpectedError on bad input before anything is begun. On Ctrl-C what runs is ended and kept, then
    KeyboardInterrupt goes on up.
    """
    with Model(options.model):
        pass  # its address and key are looked at before anything is begun
    mini.check_options(options.model.dialect, agent=options.agent, published_prompts=options.published_prompts)
    kind = environment.choose_kind(options.sandbox)
    folder = SolveFolder(options.out)
    with folder.sole_writer():
        plans = Plans(entries, options, folder)
        work, finished = plans.divide()
        others = plans.of_other_tasks()
        batch = Batch(options, folder, {key: Row(record, kept=True) for key, record in finished.items()})
        shown_by = progress(len(work), plain=options.plain, quiet=options.quiet)
        with shown_by as shown, places(kind, f"solve-{options.out.stem}", shown.note) as rooms:
            try:
                batch.run(work, plans, rooms, shown)
            finally:
                batch.write_predictions(entries, others)
    files = tuple(folder.predictions(number) for number in range(1, options.attempts + 1))
    wanted = [(entry.instance_id, number) for number in range(1, options.attempts + 1) for entry in entries]
    rows = tuple(batch.rows[key] for key in wanted if key in batch.rows)
    return Summary(files, rows, len(wanted), batch.stopped)
