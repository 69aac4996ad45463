"""Reading trajectories: ours and any of mini-SWE-agent's, as a list of steps. Pure but for the reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtb.errors import InvalidFile
from rtb.foreign_json import read_foreign_json
from rtb.suite import read_json
from scaffold.recorder import FORMAT, AttemptFolder
from scaffold.reply import Usage, read_usage


@dataclass(frozen=True)
class Result:
    """A command that ran and what came of it. `tree` is the git tree after it, None in trajectories of others."""

    command: str
    call_id: str | None
    returncode: int | None
    output: str
    seconds: float | None = None
    output_sha256: str | None = None
    tree: str | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Turn:
    """One turn of the model. `number` counts from 1; `results` are of its commands, in order."""

    number: int
    text: str
    reasoning: str
    results: tuple[Result, ...]
    usage: Usage | None
    cost_usd: float | None
    timestamp: float | None
    complaint: str | None = None  # what the model was told when the turn had no usable command


@dataclass(frozen=True)
class Trajectory:
    """An attempt as it was recorded. `rtb` holds our own facts, empty in trajectories of others."""

    path: Path
    instance_id: str
    model: str
    agent: str
    version: str
    exit_status: str
    submission: str
    system: str
    task: str
    turns: tuple[Turn, ...]
    rtb: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def commands(self) -> Iterator[tuple[int, Result]]:
        """Every command with the number of its turn."""
        for turn in self.turns:
            for result in turn.results:
                yield turn.number, result


def read_trajectory(path: Path) -> Trajectory:
    """A trajectory by its file, or by the folder of an attempt; one that was cut short is read from its journal.

    Raises InvalidFile.
    """
    if path.is_dir():
        folder = AttemptFolder(path)
        path = folder.trajectory if folder.trajectory.is_file() else folder.journal
    document = _journal(path) if path.suffix == ".jsonl" else read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        raise InvalidFile(f"{path}: no trajectory of mini-SWE-agent's format (no list of messages in it)")
    form = document.get("trajectory_format", FORMAT)
    if not str(form).startswith("mini-swe-agent-1"):
        raise InvalidFile(f"{path}: trajectory_format {form!r} is not one that rtb reads ({FORMAT})")
    for number, message in enumerate(document["messages"], start=1):
        if not (
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("extra") or {}, dict)
        ):
            raise InvalidFile(f"{path}: message {number} of {len(document['messages'])} is no object with a role")
    info = document.get("info") or {}
    ours = info.get("rtb") or {}
    config = info.get("config") or {}
    messages = document["messages"]
    return Trajectory(
        path=path,
        instance_id=str(document.get("instance_id") or ours.get("instance_id") or ""),
        model=str((config.get("model") or {}).get("model_name") or "unknown"),
        agent=str(config.get("agent_type") or "unknown"),
        version=str(info.get("mini_version") or ""),
        exit_status=str(info.get("exit_status") or ""),
        submission=str(info.get("submission") or ""),
        system=_first(messages, "system"),
        task=_first(messages, "user"),
        turns=tuple(_turns(messages)),
        rtb=ours,
    )


def _journal(path: Path) -> dict[str, Any]:
    """Messages of an attempt that was killed. Its last line may be cut."""
    if not path.is_file():
        raise InvalidFile(f"{path}: no such file; name a trajectory or the folder of an attempt")
    messages = []
    for line in path.read_bytes().splitlines():
        try:
            messages.append(read_foreign_json(line))
        except ValueError:
            break
    return {"messages": messages}


def _first(messages: list[dict[str, Any]], role: str) -> str:
    return next((str(item.get("content") or "") for item in messages if item.get("role") == role), "")


def _turns(messages: list[dict[str, Any]]) -> Iterator[Turn]:
    number = 0
    for index, message in enumerate(messages):
        facts = message.get("extra") or {}
        # mini-SWE-agent keeps no assistant message of a turn it could not read, only its complaint with the reply.
        unread = (
            message.get("role") == "user" and facts.get("interrupt_type") == "FormatError" and "response" in facts
        )
        if message.get("role") != "assistant" and not unread:
            continue
        number += 1
        following = messages[index + 1] if index + 1 < len(messages) else {}
        complained = unread or (following.get("extra") or {}).get("interrupt_type") == "FormatError"
        said = _reply_message(facts) if unread else message
        yield Turn(
            number=number,
            text=str(said.get("content") or ""),
            reasoning=str(said.get("reasoning_content") or _reply_message(facts).get("reasoning_content") or ""),
            results=tuple(_results(messages, index)),
            usage=read_usage((facts.get("response") or {}).get("usage")),
            cost_usd=facts.get("cost"),
            timestamp=facts.get("timestamp"),
            complaint=str((message if unread else following).get("content") or "") if complained else None,
        )


def _reply_message(facts: dict[str, Any]) -> dict[str, Any]:
    choices = (facts.get("response") or {}).get("choices") or [{}]
    message: dict[str, Any] = choices[0].get("message") or {}
    return message


def _results(messages: list[dict[str, Any]], index: int) -> Iterator[Result]:
    """The commands of a turn, each with the observation that answers it, when there is one."""
    seen = []
    for message in messages[index + 1 :]:
        if message.get("role") == "assistant":
            break
        if "returncode" in (message.get("extra") or {}):
            seen.append(message)
    for place, action in enumerate((messages[index].get("extra") or {}).get("actions") or ()):
        name = action.get("tool_call_id")
        answer = next((item for item in seen if name and item.get("tool_call_id") == name), None)
        if answer is None and place < len(seen) and not seen[place].get("tool_call_id"):
            answer = seen[place]
        facts = (answer or {}).get("extra") or {}
        yield Result(
            command=str(action.get("command") or ""),
            call_id=name,
            returncode=facts.get("returncode"),
            output=str(facts.get("raw_output") or ""),
            seconds=facts.get("seconds"),
            output_sha256=facts.get("output_sha256"),
            tree=facts.get("tree"),
            timed_out="stopped after" in str(facts.get("exception_info") or ""),
        )
