"""Where attempts take place: a fresh sandbox of a task's environment, with the GPUs that the task asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rtb import devices, environment
from rtb.sandbox import Limits, Sandbox
from rtb.suite import TaskEntry

# An agent's command may print anything; what is kept of it is cut far below this.
LIMITS = Limits(output_bytes=16 * 1024**2)


class Places:
    """Opens sandboxes for the length of a run. Made by `places`."""

    def __init__(
        self, kind: environment.Kind, session: environment.Session, run: str, say: Callable[[str], None]
    ) -> None:
        self._kind = kind
        self._session = session
        self._run = run
        self._say = say

    @contextmanager
    def open(self, entry: TaskEntry) -> Iterator[Sandbox]:
        """A fresh sandbox. Waits for the GPUs that the task needs. Raises MachineError, ExpectedError."""
        prepared = environment.prepare(entry, self._kind, progress=self._say)
        with (
            devices.lease(entry.task.environment.gpu.count) as leased,
            self._session.open_sandbox(prepared, limits=LIMITS, run=self._run, devices=leased) as sandbox,
        ):
            yield sandbox

    def interrupt(self) -> None:
        """End every sandbox that is open."""
        self._session.interrupt()


@contextmanager
def places(kind: environment.Kind, run: str, say: Callable[[str], None] = lambda _text: None) -> Iterator[Places]:
    """Sandboxes of one kind, labelled with the run's name; `say` is told when an environment has to be made."""
    with environment.session() as session:
        yield Places(kind, session, run, say)
