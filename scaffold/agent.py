"""The agent: ask the model, run its command, show it what came of it, until it submits or a limit is reached.

This is mini-SWE-agent's loop, written for one sandbox and read from top to bottom. The other way to run it is
`scaffold.mini`, which has mini-swe-agent's own code do the same with the same model, sandbox and records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scaffold.budget import Budget, ExitStatus, Spent
from scaffold.conversation import Conversation
from scaffold.dialect import Action, Malformed, speech
from scaffold.model import Call, ContextOverflow, DeadlinePassed, Interrupted, Model
from scaffold.observation import Observation
from scaffold.prompt import Prompt, Templates
from scaffold.recorder import Recorder
from scaffold.workbench import Workbench


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `reason` is one sentence; `submission` what was printed after the marker, a hint."""

    status: ExitStatus
    reason: str
    submission: str = ""


@dataclass(frozen=True)
class Work:
    """All that an agent needs for one attempt. `deadline` is on the clock of time.monotonic."""

    prompt: Prompt
    model: Model
    bench: Workbench
    budget: Budget
    spent: Spent
    templates: Templates
    recorder: Recorder
    deadline: float | None
    stop: threading.Event
    on_step: Callable[[Spent], None]
    published_prompts: bool = False  # of mini-swe-agent, with `run_mini` only


AgentFunction = Callable[[Work], Ending]


def run_light(work: Work) -> Ending:
    """Our own loop. Raises MachineError when the sandbox or the model API failed, ModelRefused when it refused."""
    talk = Conversation()
    language = speech(work.model.options.dialect)
    faults = 0

    def say(*messages: dict[str, Any]) -> None:
        for message in messages:
            talk.add(message)
            work.recorder.message(message)

    say({"role": "system", "content": work.prompt.system}, {"role": "user", "content": work.prompt.instance})
    while True:
        if (over := work.spent.over(work.budget)) is not None:
            return Ending("LimitsExceeded", over)
        try:
            call = ask(work, talk, language.tools)
        except DeadlinePassed as error:
            return Ending("TimeExceeded", str(error))
        except ContextOverflow as error:
            return Ending("ContextWindowExceeded", f"the conversation does not fit the model any more: {error}")
        cost = work.spent.add(call.reply.usage)
        work.on_step(work.spent)
        action = language.read(call.reply)
        say(language.turn(call.reply, action) | {"extra": turn_facts(call, action, cost)})
        if isinstance(action, Malformed):
            faults += 1
            if faults >= work.budget.format_errors:
                return Ending(
                    "RepeatedFormatError", f"{faults} turns in a row without a usable command: {action.reason}"
                )
            text = work.templates.format_error(action, work.model.options.dialect)
            say({"role": "user", "content": text, "extra": {"interrupt_type": "FormatError"}})
            continue
        faults = 0
        left = time_left(work)
        if left <= 0:
            return Ending("TimeExceeded", "the attempt's time was used up before its next command")
        seen = work.bench.execute(action.command, min(work.budget.command_seconds, left))
        facts = observe(work, seen)
        first, *rest = language.observations(action, seen.render())
        say(first | {"extra": facts}, *rest)
        if seen.submission is not None:
            return Ending("Submitted", "the agent submitted", seen.submission)


def ask(work: Work, talk: Conversation, tools: tuple[dict[str, Any], ...]) -> Call:
    """The model's next turn; a conversation that is too long for it is shortened as often as that helps."""
    while True:
        try:
            return work.model.ask(talk.to_send(), tools=tools, deadline=work.deadline)
        except ContextOverflow:
            if not talk.shorten():
                raise


def time_left(work: Work) -> float:
    """Seconds until the attempt's deadline. Raises Interrupted when the user stopped the run."""
    if work.stop.is_set():
        raise Interrupted("stopped by the user")
    return float("inf") if work.deadline is None else work.deadline - time.monotonic()


def turn_facts(call: Call, action: Action | Malformed, cost: float | None) -> dict[str, Any]:
    """What is recorded with a turn and never sent: the action, the whole reply with its usage, cost and times."""
    actions = []
    if isinstance(action, Action):
        actions = [{"command": action.command} | ({"tool_call_id": action.call_id} if action.call_id else {})]
    facts: dict[str, Any] = {
        "actions": actions,
        "response": call.reply.raw,
        "cost": cost,
        "timestamp": time.time(),
        "seconds": round(call.seconds, 4),
    }
    if call.failed:
        facts["failed_tries"] = [
            {"reason": item.reason, "waited_seconds": item.waited_seconds} for item in call.failed
        ]
    return facts


def observe(work: Work, seen: Observation) -> dict[str, Any]:
    """Take the tree's state after a command and keep its patch when it changed. What is recorded with the output."""
    before = work.bench.last.tree
    after = work.bench.snapshot()
    if after.tree != before:
        facts = {"tokens": work.spent.tokens, "cost_usd": work.spent.cost_usd}
        work.recorder.changed_tree(work.spent.calls, after, facts)
    return {
        "raw_output": seen.output.text,
        "returncode": seen.returncode,
        "exception_info": seen.note,
        "timestamp": time.time(),
        "seconds": round(seen.seconds, 4),
        "output_bytes": seen.output.size_bytes,
        "output_sha256": seen.output.sha256,
        "tree": after.tree,
        "step": work.spent.calls,
    }
