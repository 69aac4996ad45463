"""Where a solve run keeps its files, and who may write there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb.errors import ExpectedError
from rtb.prediction import attempt_file
from rtb.storage import sole_folder
from scaffold.recorder import AttemptFolder


class SolveFolder:
    """Where a solve run keeps its files: predictions where the user said, attempts in a folder beside them."""

    def __init__(self, out: Path) -> None:
        """Raises ExpectedError when `out` can be no file."""
        if not out.name or out.suffix == ".attempts" or out.is_dir():
            raise ExpectedError(f"--out {str(out)!r} is to be a file for the predictions, e.g. preds.jsonl")
        self.out = out
        self.attempts = out.with_suffix(".attempts")

    def predictions(self, number: int) -> Path:
        """The predictions of attempt `number`, from 1: one file each, as `rtb evaluate` takes one answer a task."""
        return attempt_file(self.out, number)

    def attempt(self, instance_id: str, number: int) -> AttemptFolder:
        return AttemptFolder(self.attempts / instance_id / f"attempt-{number}")

    def stored(self) -> Iterator[AttemptFolder]:
        """Attempts that came to an end, of any task; tries that were put aside are not among them."""
        for record in sorted(self.attempts.glob("*/*/attempt.json")):
            if record.parent.name.removeprefix("attempt-").isdigit():
                yield AttemptFolder(record.parent)

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Hold the run. Raises ExpectedError when another process does, or when the file is not of a solve run."""
        if self.out.exists() and not self.attempts.is_dir():
            raise ExpectedError(f"--out {self.out} is there already and no solve run made it: choose another name")
        told = f"another process solves into {self.out}: wait for it, or choose another --out"
        with sole_folder(self.attempts, told):
            yield


def put_aside(folder: AttemptFolder) -> None:
    """Keep the files of a try that a fault ended."""
    number = 1
    while (aside := folder.path.with_name(f"{folder.path.name}.fault-{number}")).exists():
        number += 1
    folder.path.rename(aside)
