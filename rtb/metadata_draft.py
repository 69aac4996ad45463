"""What a submission says of itself, first as the run knows it, then as the submitter completes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rtb.errors import ExpectedError, InvalidFile
from rtb.prediction import CONTROLS
from rtb.run import Run, RunRecord, TaskRecord
from rtb.submission import Metadata
from rtb.suite import read_json

Ask = Callable[[str, str], str]  # question, default -> answer


def draft(run: Run) -> dict[str, Any]:
    """The metadata as far as the run knows it; null where only the submitter can know."""
    record = run.read_record()
    name = record.model_names[0] if record.model_names else ""
    is_control = record.predictions in CONTROLS
    stored = list(_records(run, record))
    return {
        "schema_version": 1,
        "model": {
            "name": name, "name_or_path": name, "organisation": "", "open_weights": True if is_control else None,
            "released": None,
        },
        "scaffold": {"name": "none" if is_control else None, "version": ""},
        "attempts": {"count": 1, "chosen": "only"},
        "hardware": hardware(record),
        "cost": {
            "total_usd": _sum([item.cost_usd for item in stored]),
            "tokens": _sum([item.tokens for item in stored]),
        },
        "links": [],
        "contact": None,
        "date": datetime.now(UTC).date().isoformat(),
        "example": is_control,
        "harmless": [],
    }  # fmt: skip


def hardware(record: RunRecord) -> dict[str, Any]:
    """What the run recorded of its machine, in the metadata's words."""
    return {
        "device_class": record.device_class,
        "gpus": list(record.machine.gpus) if record.devices else [],
        "processor": record.machine.processor[:200],
        "sandbox": record.sandbox,
    }


def _records(run: Run, record: RunRecord) -> Iterator[TaskRecord]:
    return (item for name in record.instance_ids if (item := run.read_task_record(name)) is not None)


def _sum(values: list[Any]) -> Any:
    """The sum, or None when one is not known: half a cost is no cost."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return sum(known) if all(isinstance(value, int) for value in known) else round(math.fsum(known), 6)


# Path of a field, question, whether an empty answer is one.
_QUESTIONS: tuple[tuple[tuple[str, ...], str, bool], ...] = (
    (("model", "name"), "Model, as the table shall show it", False),
    (("model", "organisation"), "Who made the model", True),
    (("model", "open_weights"), "Are its weights open (yes or no)", False),
    (("model", "released"), "Release date of the model (YYYY-MM-DD, empty: not known)", True),
    (("scaffold", "name"), "Scaffold (the agent's name; none: no agent)", False),
    (("scaffold", "version"), "Version of the scaffold", True),
    (("attempts", "count"), "Attempts at each task", False),
    (("attempts", "chosen"), "How the submitted attempt was chosen (only, first, agent)", False),
    (("cost", "total_usd"), "Cost of all predictions in US dollars (empty: not known)", True),
    (("cost", "tokens"), "Tokens of all predictions (empty: not known)", True),
    (("links",), "Links, separated by spaces (report, model, code)", True),
    (("contact",), "Contact for questions, shown to everybody", False),
)


def ask_for(document: dict[str, Any], ask: Ask, say: Callable[[str], None]) -> Metadata:
    """Complete a draft by asking; an answer that does not fit is asked for again."""
    for path, question, may_be_empty in _QUESTIONS:
        while True:
            answer = ask(question, _shown(_get(document, path))).strip()
            if not answer and not may_be_empty:
                say("an answer is needed here")
                continue
            _set(document, path, _value(path, answer))
            problem = _problem_at(document, path)
            if problem is None:
                break
            say(problem)
    return parse(document, "answers")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _value(path: tuple[str, ...], answer: str) -> Any:
    if path == ("links",):
        return answer.split()
    return answer if answer or path[-1] in ("organisation", "version") else None


def _get(document: dict[str, Any], path: tuple[str, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def _set(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


def _problem_at(document: dict[str, Any], path: tuple[str, ...]) -> str | None:
    try:
        Metadata.model_validate(document)
    except ValidationError as error:
        return next((item["msg"] for item in error.errors() if item["loc"][: len(path)] == path), None)
    return None


def read_metadata(path: Path, document: dict[str, Any]) -> Metadata:
    """The draft, completed by a JSON file with any of its fields. Raises InvalidFile naming each wrong field."""
    given = read_json(path)
    if not isinstance(given, dict):
        raise InvalidFile(f"{path}: not a JSON object with the fields of metadata.json")
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(document.get(name), dict):
            document[name] = {**document[name], **value}
        else:
            document[name] = value
    return parse(document, str(path))


def parse(document: dict[str, Any], where: str) -> Metadata:
    """Raises InvalidFile naming each field that is wrong or missing."""
    try:
        return Metadata.model_validate(document)
    except ValidationError as error:
        lines = [f"{where}: field {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise InvalidFile("\n".join(lines)) from error


def missing_fields(document: dict[str, Any]) -> ExpectedError:
    """The error for a draft that nobody can be asked about."""
    try:
        Metadata.model_validate(document)
        names = "nothing"
    except ValidationError as error:
        names = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
    return ExpectedError(
        f"metadata is missing ({names}) and there is no terminal to ask on: write it to a JSON file and name it with "
        "--metadata FILE; --draft prints what the run knows already"
    )
