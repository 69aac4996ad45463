"""What a solve run is to do: the user's options, and the attempts that follow from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rtb import __version__
from rtb.errors import ExpectedError
from rtb.suite import TaskEntry
from scaffold import mini, prices
from scaffold.attempt import AgentName, AttemptRecord, Place, Plan, Settings, read_record
from scaffold.budget import Budget, Spent
from scaffold.dialect import Malformed
from scaffold.endpoint import ModelOptions
from scaffold.model import Model
from scaffold.prompt import Facts, Templates, facts_of
from scaffold.recorder import AttemptFolder
from scaffold.solve_folder import SolveFolder

Key = tuple[str, int]  # instance id, number of the attempt from 1


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


class Plans:
    """Which attempts there are to make, and with what."""

    def __init__(self, entries: Sequence[TaskEntry], options: SolveOptions, folder: SolveFolder) -> None:
        self._entries = {entry.instance_id: entry for entry in entries}
        self._options = options
        self._folder = folder
        self._templates = Templates(options.prompts)
        self._price = prices.table(options.prices).of(options.model.name)
        self._facts = {entry.instance_id: facts_of(entry, with_context=options.with_context) for entry in entries}
        self._agent_version = mini.version() if options.agent == "mini" else __version__

    def divide(self) -> tuple[list[Key], dict[Key, AttemptRecord]]:
        """Attempts to make, first attempts first, and those that are finished.

        Raises ExpectedError on a mix-up, and on a prompt that cannot be made: before anything is begun.
        """
        work: list[Key] = []
        finished: dict[Key, AttemptRecord] = {}
        for number in range(1, self._options.attempts + 1):
            for name, entry in self._entries.items():
                wanted = self.settings(entry, self._facts[name])
                stored = read_record(self._folder.attempt(name, number))
                if stored is None or not stored.finished:
                    work.append((name, number))
                elif stored.settings != wanted:
                    raise _mix_up(self._folder.attempt(name, number), stored.settings, wanted)
                else:
                    finished[name, number] = stored
        self._templates.format_error(Malformed("an example"), self._options.model.dialect)
        for record in self.of_other_tasks():
            wanted = self._as_for(record)
            if record.settings != wanted:
                raise _mix_up(self._folder.attempt(record.instance_id, record.attempt), record.settings, wanted)
        return work, finished

    def of_other_tasks(self) -> tuple[AttemptRecord, ...]:
        """Finished attempts under the same --out at tasks that this call does not name: their lines stay."""
        found = (read_record(folder) for folder in self._folder.stored())
        return tuple(item for item in found if item and item.finished and item.instance_id not in self._entries)

    def _as_for(self, record: AttemptRecord) -> Settings:
        """What this call's settings would be for another task, whose prompt is not known here."""
        name, entry = next(iter(self._entries.items()))
        own = {"prompt_sha256": record.settings.prompt_sha256, "base_commit": record.settings.base_commit}
        return self.settings(entry, self._facts[name]).model_copy(update=own)

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
        self,
        key: Key,
        place: Place,
        stop: threading.Event,
        on_step: Callable[[Spent], None],
        on_wait: Callable[[str], None],
        on_model: Callable[[Model], None],
    ) -> Plan:
        """One attempt to make, in a sandbox that `place` opens."""
        name, number = key
        entry, facts = self._entries[name], self._facts[name]
        return Plan(
            entry, number, self._folder.attempt(name, number), self.settings(entry, facts), self._options.model,
            self._price, self._templates, facts, place, stop, on_step, on_wait, on_model,
        )  # fmt: skip


def _mix_up(folder: AttemptFolder, stored: Settings, wanted: Settings) -> ExpectedError:
    difference = _difference(stored, wanted)
    return ExpectedError(f"{folder.path} was made with other settings ({difference}): choose another --out")


def _difference(stored: Settings, wanted: Settings) -> str:
    names = [name for name in Settings.model_fields if getattr(stored, name) != getattr(wanted, name)]
    return ", ".join(f"{name}: {getattr(stored, name)!r}, now {getattr(wanted, name)!r}" for name in names[:2])
