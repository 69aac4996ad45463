"""The answer as it grew: what a scaffold leaves of an attempt's steps, for `rtb evaluate --steps`.

A steps file is JSONL: one prediction line for each step that changed the tree, with `step` (from 1), and,
where known, `seconds`, `tokens` and `cost_usd` used until then. A line of a predictions file names its steps file by
`steps_file`, relative to the predictions file. Nothing else is shared between scaffold and harness.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtb.errors import InvalidFile
from rtb.foreign_json import read_foreign_json
from rtb.prediction import KEYS, Prediction

STEPS_FILE = "steps_file"


@dataclass(frozen=True)
class Step:
    """The answer after one step. `seconds`, `tokens` and `cost_usd` are of the whole attempt until then."""

    number: int
    prediction: Prediction

    @property
    def seconds(self) -> float | None:
        value = self.prediction.extra.get("seconds")
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_step_file(path: Path) -> tuple[Step, ...]:
    """The steps of an attempt, in order. A last line that a hard kill cut is left out.

    Raises InvalidFile when the file is not there or another line is broken.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror}); it is the steps file of an attempt") from error
    found: list[Step] = []
    for number, line in enumerate(lines, start=1):
        try:
            document = read_foreign_json(line)
        except ValueError:
            if number == len(lines):
                break
            raise InvalidFile(f"{path}:{number}: not valid JSON; the attempt's files were changed") from None
        found.append(_step(document, f"{path}:{number}", found[-1].number if found else 0))
    return tuple(found)


def _step(document: object, place: str, before: int) -> Step:
    if not isinstance(document, dict) or not all(isinstance(document.get(key), str) for key in KEYS):
        raise InvalidFile(f"{place}: no prediction line: it needs the texts {', '.join(KEYS)}")
    number = document.get("step")
    if not isinstance(number, int) or isinstance(number, bool) or number <= before:
        raise InvalidFile(f"{place}: step {number!r} is no whole number above that of the line before ({before})")
    extra = {name: value for name, value in document.items() if name not in KEYS}
    return Step(number, Prediction(**{key: document[key] for key in KEYS}, extra=extra))


def steps_of(prediction: Prediction, beside: Path) -> tuple[Step, ...]:
    """The steps of a prediction that stands in a file in the folder `beside`; its own patch is the last of them.

    Without a steps file, the prediction is the only step. Raises InvalidFile.
    """
    named = prediction.extra.get(STEPS_FILE)
    steps: tuple[Step, ...] = ()
    if isinstance(named, str):
        steps = read_step_file(beside / named)
        if other := next((step for step in steps if step.prediction.instance_id != prediction.instance_id), None):
            raise InvalidFile(
                f"{beside / named}: it is of {other.prediction.instance_id}, not of {prediction.instance_id}"
            )
    last = steps[-1] if steps else None
    before = last.prediction.model_patch if last else ""
    if prediction.model_patch != before:
        # What changed after the last step, e.g. by a process that was still running.
        total = prediction.extra.get("steps")
        least = last.number if last else 0
        steps += (Step(max(total if isinstance(total, int) else 0, least + 1), prediction),)
    return steps
