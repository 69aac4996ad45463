"""GSM8K: prompts, and scores exactly as lm-evaluation-harness 0.4 defines them for its task `gsm8k` (version 3).

Two filters are scored as there: `strict-match` and `flexible-extract`, by comparing strings after its clean-up. A
third reading of ours, `number`, compares values ($29.00 is 29); it is shown and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from harness.request import Question, RequestRecord, completion_body
from rtb.errors import ExpectedError, StoredRunBroken
from rtb.storage import write_atomic
from rtb.task import AccuracyStage, Frozen

STOPS: Final = ("Question:", "</s>", "<|im_end|>")
MAX_TOKENS: Final = 256

_STRICT: Final = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE: Final = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED: Final = tuple(re.compile(pattern) for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"))


class Problem(Frozen):
    """A question with its worked answer, whose last line is `#### NUMBER`."""

    question: str
    answer: str


@dataclass(frozen=True)
class QuestionSet:
    """Questions to ask, and those whose answers are shown before them."""

    name: str
    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    max_tokens: int = MAX_TOKENS


class Answer(Frozen):
    """One question as it was answered. `strict` and `flexible` are what the filters extracted, null when nothing."""

    index: int
    question_sha256: str
    prompt_sha256: str
    reference: str = Field(description="the gold answer, after the clean-up that both sides get")
    text: str | None
    strict: str | None
    flexible: str | None
    number: str | None
    strict_right: bool
    flexible_right: bool
    number_right: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    finish: str | None
    error: str | None = Field(description="a machine fault; such a record is no answer, right or wrong")


def cut(text: str) -> str:
    """The answer up to the first stop string."""
    return text[: min((place for stop in STOPS if (place := text.find(stop)) >= 0), default=len(text))]


def strict_match(text: str) -> str | None:
    """The first number after `####`."""
    found = _STRICT.findall(text)
    return found[0].strip() if found else None


def flexible_extract(text: str) -> str | None:
    """The last thing that looks like a number."""
    found = _FLEXIBLE.findall(text)
    return next(part for part in found[-1] if part).strip() if found else None


def clean(text: str) -> str:
    """What is taken out before strings are compared."""
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def number(text: str) -> str | None:
    """The value meant: after `####` where it is a number, else the last number, written plainly."""
    candidates = [strict_match(text) or ""]
    candidates += [next(part for part in found if part) for found in reversed(_FLEXIBLE.findall(text))]
    return next((value for candidate in candidates if (value := _value(candidate)) is not None), None)


def _value(text: str) -> str | None:
    bare = text.replace(",", "").replace("$", "").rstrip(".")
    try:
        found = Decimal(bare)
    except InvalidOperation:
        return None
    plain = format(found, "f")
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) or "0"


def prompt(questions: QuestionSet, shots: int, problem: Problem) -> str:
    """Worked examples from the start of the train split, then the question. The same examples for every question."""
    if shots > len(questions.train):
        raise ExpectedError(f"{questions.name}: {shots} worked examples are asked for, it has {len(questions.train)}")
    shown = "".join(f"Question: {item.question}\nAnswer: {item.answer}\n\n" for item in questions.train[:shots])
    return f"{shown}Question: {problem.question}\nAnswer:"


def requests(questions: QuestionSet, stage: AccuracyStage, indices: Sequence[int]) -> tuple[Question, ...]:
    """One greedy request for each of the questions at `indices`."""
    serve = stage.serve
    return tuple(
        Question(
            index=index,
            requested=questions.max_tokens,
            body=completion_body(
                prompt(questions, stage.shots, questions.test[index]),
                questions.max_tokens,
                model=serve.model,
                endpoint=serve.endpoint,
                stop=list(STOPS),
                **serve.request,
            ),
        )
        for index in indices
    )


def score(record: RequestRecord, problem: Problem) -> Answer:
    """An answer with its readings. A failed request scores nothing and says so."""
    error = record.error or (None if record.status == 200 else f"status {record.status}")
    if error is None and record.text is None:
        error = "the answer's text was not kept"
    text = cut(record.text or "")
    strict, flexible, value = None, None, None
    if error is None:
        strict, flexible, value = strict_match(text), flexible_extract(text), number(text)
    reference = clean(problem.answer)
    return Answer(
        index=record.index,
        question_sha256=hashlib.sha256(problem.question.encode()).hexdigest(),
        prompt_sha256=record.prompt_sha256,
        reference=reference,
        text=record.text,
        strict=strict,
        flexible=flexible,
        number=value,
        strict_right=strict is not None and clean(strict) == reference,
        flexible_right=flexible is not None and clean(flexible) == reference,
        number_right=value is not None and value == number(reference),
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        finish=record.finish,
        error=error,
    )


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """answers.jsonl, in order of index."""
    lines = (answer.model_dump_json() + "\n" for answer in sorted(answers, key=lambda item: item.index))
    write_atomic(path, "".join(lines).encode())


def read_answers(path: Path) -> tuple[Answer, ...]:
    """Stored answers. Raises StoredRunBroken naming the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoredRunBroken(f"{path} cannot be read: {error.strerror}; run the task again") from error
    found: list[Answer] = []
    for number_, line in enumerate(lines, start=1):
        try:
            found.append(Answer.model_validate_json(line))
        except ValidationError as error:
            raise StoredRunBroken(f"{path}:{number_}: no answer record; run the task again") from error
    return tuple(found)


def read_problems(path: Path) -> tuple[Problem, ...]:
    """A JSONL file of {question, answer}, as GSM8K is published. Raises ExpectedError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a question may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ExpectedError(f"{path}: cannot be read ({error})") from error
    found: list[Problem] = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(Problem(question=row["question"], answer=row["answer"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ExpectedError(f"{path}:{place}: not a question with its answer ({error})") from error
    return tuple(found)
