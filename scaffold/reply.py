"""What a model API answers: a whole chat completion, or one put together from its stream of events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rtb.foreign_json import read_foreign_json


@dataclass(frozen=True)
class Usage:
    """Tokens of one call as the server counts them. `cached` is the part of `prompt` that came from a cache."""

    prompt: int
    completion: int
    cached: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True)
class ToolCall:
    """A call the model made. `arguments` is the text as sent: it may not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """One answer of a model. `usage` is None when the server did not say; `raw` is the chat completion as JSON."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Usage | None
    raw: dict[str, Any] = field(repr=False)


class BrokenReply(ValueError):
    """The server sent something that is no chat completion, or only a part of one."""


class ErrorInReply(ValueError):
    """An error object where a completion belongs: servers send it with status 200 or in the middle of a stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(json.dumps(body))
        self.body = body


def read_completion(document: object) -> Reply:
    """A reply from a chat completion. Raises BrokenReply, ErrorInReply."""
    if not isinstance(document, dict):
        raise BrokenReply(f"the answer is a {type(document).__name__}, not an object")
    if document.get("error"):
        raise ErrorInReply(document)
    try:
        choice = document["choices"][0]
        message = choice["message"]
        calls = tuple(
            ToolCall(str(call.get("id") or f"call_{index}"), str(call["function"]["name"]), _text(call["function"]))
            for index, call in enumerate(message.get("tool_calls") or ())
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BrokenReply(f"the answer is no chat completion ({type(error).__name__}: {error})") from error
    return Reply(
        text=_content(message.get("content")),
        reasoning=str(message.get("reasoning_content") or message.get("reasoning") or ""),
        tool_calls=calls,
        finish_reason=str(choice.get("finish_reason") or ""),
        usage=read_usage(document.get("usage")),
        raw=document,
    )


def _text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _content(content: object) -> str:
    """Text of a message; some servers send a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def read_usage(document: object) -> Usage | None:
    """Token counts, or None when they are not there."""
    if not isinstance(document, dict):
        return None
    prompt, completion = document.get("prompt_tokens"), document.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    details = document.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(prompt, completion, cached if isinstance(cached, int) else 0)


def read_stream(lines: Iterable[str]) -> Reply:
    """A reply from server-sent events. Raises BrokenReply when the stream ends before it says why it ended."""
    whole = _Assembly()
    done = False
    for line in lines:
        if not line.startswith("data:"):
            continue  # comments, event names and blank lines
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            done = True
            break
        try:
            event = read_foreign_json(data)
        except json.JSONDecodeError as error:
            raise BrokenReply(f"an event of the stream is cut: {data[:80]!r}") from error
        whole.take(event)
    if not whole.finish_reason and not (done and whole.begun):
        raise BrokenReply("the stream ended before the answer did")
    return read_completion(whole.completion())


class _Assembly:
    """Deltas, in the order they come, into one message."""

    def __init__(self) -> None:
        self.begun = False
        self.finish_reason = ""
        self._head: dict[str, Any] = {}
        self._text: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: object = None

    def take(self, event: object) -> None:
        if not isinstance(event, dict):
            raise BrokenReply("an event of the stream is no object")
        if event.get("error"):
            raise ErrorInReply(event)
        self._usage = event.get("usage") or self._usage
        self._head = {key: event[key] for key in ("id", "created", "model") if event.get(key)} or self._head
        for choice in (event.get("choices") or ())[:1]:
            self.begun = True
            delta = choice.get("delta") or {}
            for name, target in (
                ("content", "content"),
                ("reasoning_content",) * 2,
                ("reasoning", "reasoning_content"),
            ):
                if isinstance(delta.get(name), str):
                    self._text[target].append(delta[name])
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_call(self, part: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(part.get("index") or 0, {"id": "", "name": "", "arguments": []})
        function = part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        call["arguments"].append(function.get("arguments") or "")

    def completion(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text["content"])}
        if self._text["reasoning_content"]:
            message["reasoning_content"] = "".join(self._text["reasoning_content"])
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"] or f"call_{index}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
                }
                for index, call in sorted(self._calls.items())
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason or "stop"}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}
