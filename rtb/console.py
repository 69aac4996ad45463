"""What a person sees while rtb works: messages and live progress, always on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

OUTCOME_STYLE = {
    "resolved": "green",
    "unresolved": "red",
    "empty_patch": "red",
    "apply_failed": "red",
    "tampered": "magenta",
    "inconclusive": "yellow",
    "error": "bold yellow",
    "not_submitted": "dim",
}

GAP = 2  # between columns
TEXT_COLUMN = 36  # characters; a narrower column of text is not readable


def say(text: str) -> None:
    """One message on standard error, as it is: no markup is read, control characters are shown, not obeyed."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters other than newline and tab become escapes."""
    kept = [char if char in "\n\t" or (char.isprintable() and char != "\x7f") else repr(char)[1:-1] for char in text]
    return "".join(kept).encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """Text in which every character can be seen: others than line ends and tabs become escapes such as \\u202e."""
    if text.isprintable():
        return text
    return "\n".join(
        line if line.replace("\t", "").isprintable() else printable(line) for line in text.split("\n")
    )  # fmt: skip


class Progress(Protocol):
    """How far a run is. Safe to call from worker threads."""

    def step(self, name: str, what: str) -> None:
        """A task begins a step, e.g. `unit`."""
        ...

    def done(self, name: str, outcome: str, reason: str, seconds: float | None) -> None:
        """A task is finished."""
        ...

    def note(self, text: str) -> None:
        """A message that stays on the screen."""
        ...


class Quiet:
    """No progress at all (for `--quiet` and for tests of what is computed)."""

    def step(self, name: str, what: str) -> None:
        """Nothing is shown."""

    def done(self, name: str, outcome: str, reason: str, seconds: float | None) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """Nothing is shown."""


class Plain:
    """One line an event: for logs and pipes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._finished = 0
        self._lock = threading.Lock()

    def step(self, name: str, what: str) -> None:
        say(f"{name}: {what}")

    def done(self, name: str, outcome: str, reason: str, seconds: float | None) -> None:
        with self._lock:
            self._finished += 1
            count = self._finished
        took = f" in {seconds:.1f} s" if seconds is not None else ""
        say(f"[{count}/{self._total}] {name}: {outcome}{took}: {reason}")

    def note(self, text: str) -> None:
        say(text)


class Live:
    """A bar, the tasks in work with their step and time, and a line for each finished task."""

    def __init__(self, total: int, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._lock = threading.Lock()
        self._running: dict[str, tuple[str, float]] = {}
        self.bar = Progress(
            BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self.bar.add_task("", total=total)

    def step(self, name: str, what: str) -> None:
        with self._lock:
            self._running[name] = (what, time.monotonic())
            self._describe()

    def done(self, name: str, outcome: str, reason: str, seconds: float | None) -> None:
        from rich.markup import escape

        with self._lock:
            self._running.pop(name, None)
            self._describe()
        took = f"{seconds:6.1f} s" if seconds is not None else "        "
        style = OUTCOME_STYLE.get(outcome, "")
        line = f"[{style}]{outcome:<13}[/] {took}  {escape(name)}  [dim]{escape(printable(reason))}[/]"
        self._console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
        self.bar.advance(self._task)

    def note(self, text: str) -> None:
        from rich.markup import escape

        self._console.print(escape(printable(text)), highlight=False)

    def _describe(self) -> None:
        from rich.markup import escape

        names = [f"{name.rpartition('__')[2]} ({what})" for name, (what, _) in self._running.items()]
        self.bar.update(self._task, description=escape(", ".join(names)))


@contextmanager
def progress(total: int, *, plain: bool | None = None, quiet: bool = False) -> Iterator[Progress]:
    """Live progress on a terminal, plain lines elsewhere (or when `plain`), none when `quiet`."""
    if quiet:
        yield Quiet()
        return
    if plain or (plain is None and not sys.stderr.isatty()):
        yield Plain(total)
        return
    from rich.console import Console

    live = Live(total, Console(stderr=True))
    with live.bar:
        yield live


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    text_below: bool = False,
) -> None:
    """A table on standard error. `right` names the columns that hold numbers.

    Names are never broken, texts wrap. With `text_below`, a last column of text that the terminal leaves no room for
    goes below the table, a line a row.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [printable(name) for name in columns]
    cells = [[printable(cell) for cell in row] for row in rows]
    screen = Console(stderr=True).width if sys.stderr.isatty() else 160
    widths = [max(len(line[index]) for line in [list(columns), *cells]) for index in range(len(columns))]
    last = len(columns) - 1
    before = sum(min(widths[index], TEXT_COLUMN) for index in range(last)) + GAP * last
    below = text_below and screen - before < min(widths[last], TEXT_COLUMN)
    least = 0 if last in right or below else before + min(widths[last], TEXT_COLUMN // 2)
    # Better a line that the terminal breaks than a name that cannot be copied.
    console = Console(stderr=True, width=max(screen, least))
    table = Table(
        title=Text(printable(title)) if title else None, title_justify="left", title_style="bold",
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0),  # and a column of the box
    )  # fmt: skip
    for index, name in enumerate(columns[:last] if below else columns):
        is_name = index != last and index not in right and widths[index] <= TEXT_COLUMN
        table.add_column(Text(name), justify="right" if index in right else "left", overflow="fold", no_wrap=is_name)
    for row in cells:
        table.add_row(*(Text(cell, style=OUTCOME_STYLE.get(cell, "")) for cell in (row[:last] if below else row)))
    console.print(table)
    if below:
        for row in cells:
            if row[last].strip():
                console.print(Text(f"{row[0]}: {row[last]}"), soft_wrap=True)
