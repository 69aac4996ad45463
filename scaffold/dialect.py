"""How commands are written: as tool calls, or fenced in plain text for models without tools. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from rtb.foreign_json import read_foreign_json
from scaffold.endpoint import Dialect
from scaffold.reply import Reply

BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run one bash command in the work tree and see its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "the command to run"}},
            "required": ["command"],
        },
    },
}
_FENCE = re.compile(
    r"^[ \t]*```(?:mswea_bash_command|bash|sh|shell)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Action:
    """The command of a turn. `call_id` is None in plain text; `unread` are further calls of the turn, not run."""

    command: str
    call_id: str | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Malformed:
    """A turn without a command that can be run, and why."""

    reason: str


class Speech(Protocol):
    """One way to write commands."""

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """What is offered to the model beside the conversation."""
        ...

    def read(self, reply: Reply) -> Action | Malformed:
        """The turn's command."""
        ...

    def turn(self, reply: Reply, action: Action | Malformed) -> dict[str, Any]:
        """The model's turn as it is sent back to the model later."""
        ...

    def observations(self, action: Action, text: str) -> list[dict[str, Any]]:
        """What came of the command, as messages."""
        ...


class ToolSpeech:
    """Commands as calls of one tool, `bash`."""

    tools: tuple[dict[str, Any], ...] = (BASH_TOOL,)

    def read(self, reply: Reply) -> Action | Malformed:
        if not reply.tool_calls:
            if reply.finish_reason == "length":
                return Malformed("the answer was cut at the output limit before a command came; be brief")
            return Malformed("there is no call of the bash tool in the answer")
        call = reply.tool_calls[0]
        if call.name != "bash":
            return Malformed(f"there is no tool named {call.name!r}; the only one is bash")
        try:
            arguments = read_foreign_json(call.arguments)
        except json.JSONDecodeError as error:
            cut = "; the answer was cut at the output limit" if reply.finish_reason == "length" else ""
            return Malformed(f"the arguments of the call are not JSON ({error.msg}){cut}")
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if not isinstance(command, str) or not command.strip():
            return Malformed('the arguments of the call must be {"command": "..."} with a command in it')
        return Action(command, call.id, tuple(other.id for other in reply.tool_calls[1:]))

    def turn(self, reply: Reply, action: Action | Malformed) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if isinstance(action, Action):
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _valid_json(call.arguments)},
                }
                for call in reply.tool_calls
            ]
        elif not reply.text:
            # Servers refuse a malformed call, and an empty turn, in a conversation that is sent to them.
            message["content"] = "(a tool call that could not be read)"
        return message

    def observations(self, action: Action, text: str) -> list[dict[str, Any]]:
        unread = "Not run: one command a turn. Send it again in a turn of its own if it is still needed."
        return [
            {"role": "tool", "tool_call_id": action.call_id, "content": text},
            *({"role": "tool", "tool_call_id": name, "content": unread} for name in action.unread),
        ]


class TextSpeech:
    """Commands in one fenced block of plain text."""

    tools: tuple[dict[str, Any], ...] = ()

    def read(self, reply: Reply) -> Action | Malformed:
        blocks = _FENCE.findall(reply.text.replace("\r\n", "\n"))
        if len(blocks) == 1 and blocks[0].strip():
            return Action(blocks[0].rstrip("\n"))
        if reply.finish_reason == "length":
            return Malformed("the answer was cut at the output limit before the command was whole; be brief")
        if len(blocks) > 1:
            return Malformed(f"there are {len(blocks)} fenced bash blocks in the answer; exactly one is wanted")
        return Malformed("there is no fenced bash block with a command in the answer")

    def turn(self, reply: Reply, action: Action | Malformed) -> dict[str, Any]:  # noqa: ARG002
        return {"role": "assistant", "content": reply.text or "(empty)"}

    def observations(self, action: Action, text: str) -> list[dict[str, Any]]:  # noqa: ARG002
        return [{"role": "user", "content": text}]


def _valid_json(text: str) -> str:
    try:
        read_foreign_json(text)
    except json.JSONDecodeError:
        return "{}"
    return text


def speech(dialect: Dialect) -> Speech:
    """The way to write commands that a model option names."""
    return ToolSpeech() if dialect == "tools" else TextSpeech()
