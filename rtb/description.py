"""A draft's problem statement in the words of a language model. Pure: messages out, answers in; whoever calls asks.

What a model writes is checked for lines of the gold patch like any other statement, and a person still reviews it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rtb.draft import leaks
from rtb.draft_store import Draft
from rtb.task import Task

Message = dict[str, str]
Ask = Callable[[list[Message]], str]

_MOST_DIFF = 24_000  # characters
_RULES = """You write problem statements for programming tasks. A reader who never saw the change has to be able to
do it from your statement and the repository alone, and tests he cannot see will judge him.

- Say what is to be achieved and why: behaviour, inputs, shapes, data types, limits, and what counts as done.
- Name each file and function to be added or changed, with its parameters as given below; others may call them.
- Do not say how: no code, no lines or expressions of the change, no algorithm that only the change knows.
- Do not mention pull requests, commits, reviewers or tests.
- Markdown, at most 400 words, beginning with a title line "# ...". Answer with the statement alone."""
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"^```(?:markdown|md)?\n(.*)\n```$", re.DOTALL)


@dataclass(frozen=True)
class Described:
    """A statement and the lines of the gold patch it repeats."""

    text: str
    leaked: tuple[str, ...]


def messages_for(draft: Draft) -> list[Message]:
    """What a model is asked for one draft."""
    diff = draft.gold.decode("utf-8", "replace")
    cut = "\n(cut here)" if len(diff) > _MOST_DIFF else ""
    asked = f"{draft.statement.strip()}\n\n## The change (for you alone)\n\n```diff\n{diff[:_MOST_DIFF]}{cut}\n```\n"
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": asked}]


def key_of(model: str, messages: list[Message]) -> str:
    """Stands for a question to a model, so that an answer need not be paid for twice."""
    return hashlib.sha256(json.dumps([model, messages], sort_keys=True).encode()).hexdigest()


def describe(draft: Draft, ask: Ask) -> Described:
    """Ask for a statement; one that repeats lines of the gold patch is sent back once, with the lines.

    The better of two answers is kept with what it still repeats. An empty answer is none: the draft keeps its own.
    """
    messages = messages_for(draft)
    first = _checked(draft, ask(messages))
    if not first.leaked:
        return first
    lines = "\n".join(f"    {line}" for line in first.leaked[:20])
    again = f"Your statement repeats these lines of the change. Write it again without them:\n\n{lines}"
    told = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": again}]
    second = _checked(draft, ask(told))
    return min(first, second, key=lambda item: len(item.leaked))


def _checked(draft: Draft, answer: str) -> Described:
    text = _THINKING.sub("", answer).strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    if not text:
        return Described(draft.statement, draft.leaked)
    text += "\n"
    return Described(text, leaks_of(text, draft))


def leaks_of(text: str, draft: Draft) -> tuple[str, ...]:
    """Lines of the gold patch in a statement; signatures of targets are part of the question."""
    asked = {f"{item.name}{item.signature}".replace(" ", "") for item in draft.task.targets}
    found = leaks(text, draft.gold)
    return tuple(line for line in found if line.replace(" ", "").removeprefix("def").rstrip(":") not in asked)


def described_draft(draft: Draft, found: Described, model: str) -> Draft:
    """The draft with the statement of a model; its state stays `draft`, and a note says who wrote it."""
    if found.text == draft.statement:
        return draft
    provenance = draft.task.provenance
    note = f"the description was written by {model} and read by nobody yet"
    evidence = (*provenance.evidence, *(f"the description repeats: {line}" for line in found.leaked))
    changed = provenance.model_copy(update={"notes": (*provenance.notes, note), "evidence": evidence})
    task = Task.model_validate(draft.task.model_copy(update={"provenance": changed}).model_dump())
    return replace(draft, task=task, statement=found.text, leaked=found.leaked)
