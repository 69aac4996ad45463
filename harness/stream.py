"""From stamped socket reads to a request record: HTTP/1.1, chunked bodies, server-sent events. Pure.

An event carries the stamp of the read that brought its last byte. Nothing here looks at a clock.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.request import Question, RequestRecord, prompt_sha256
from rtb.foreign_json import read_foreign_json

Read = tuple[int, bytes]  # ns since the request was sent, bytes
MAX_DIGITS = 15  # of a length or a count


class BadResponse(ValueError):
    """Bytes that are no HTTP response, or end in the middle of one."""


@dataclass(frozen=True)
class Head:
    """Status line and headers. `size` is where the body begins."""

    status: int
    headers: dict[str, str]
    size: int

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        text = self.headers.get("content-length", "")
        return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close" and (self.chunked or self.length is not None)


def parse_head(data: bytes) -> Head | None:
    """The head of a response, or None while it is not whole. Raises BadResponse."""
    size = data.find(b"\r\n\r\n")
    if size < 0:
        return None
    first, *rest = data[:size].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not re.fullmatch("[0-9]{3}", words[1]):
        raise BadResponse(f"not an HTTP/1.1 response: {first[:60]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return Head(int(words[1]), headers, size + 4)


def is_complete(head: Head, received: int, tail: bytes) -> bool:
    """Whether a response is whole, from its head, the bytes so far and the last few of them."""
    if head.chunked:
        return tail.endswith(b"\r\n0\r\n\r\n")
    return head.length is not None and received >= head.size + head.length


def body_parts(data: bytes, head: Head) -> Iterator[tuple[int, bytes]]:
    """Parts of the body, each with the position of its last byte in `data`. Raises BadResponse on a broken chunk."""
    if not head.chunked:
        end = len(data) if head.length is None else head.size + head.length
        yield min(end, len(data)) - 1, data[head.size : end]
        if end > len(data):
            raise BadResponse("the response ended in the middle of its body")
        return
    place = head.size
    while True:
        line_end = data.find(b"\r\n", place)
        if line_end < 0:
            raise BadResponse("the response ended in the middle of its body")
        try:
            size = int(data[place:line_end].split(b";")[0], 16)
        except ValueError as error:
            raise BadResponse(f"a chunk's length is {data[place:line_end][:20]!r}") from error
        if size == 0:
            return
        start = line_end + 2
        if start + size > len(data):
            raise BadResponse("the response ended in the middle of its body")
        yield start + size - 1, data[start : start + size]
        place = start + size + 2


def _by_line(parts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """A body that came without chunks is one part: its lines, so that each event has its own moment."""
    for position, part in parts:
        place = position + 1 - len(part)
        for line in part.splitlines(keepends=True):  # bytes: at line feeds and carriage returns only
            place += len(line)
            yield place - 1, line


def events(parts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """`data:` fields of server-sent events, each with the position of the last byte of the part that completed it."""
    held = b""
    position = 0
    for position, part in parts:
        held = (held + part).replace(b"\r\n", b"\n")
        *whole, held = held.split(b"\n\n")
        for event in whole:
            yield from ((position, value) for value in _data(event))
    if held.strip():
        yield from ((position, value) for value in _data(held))


def _data(event: bytes) -> Iterator[bytes]:
    lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    if lines:
        yield b"\n".join(lines)


@dataclass
class _Reading:
    """What has been understood of one response so far."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    text_chunks: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    chunks: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    done: bool = False

    def take(self, at: int, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            event = read_foreign_json(payload)
        except ValueError:
            self.error = self.error or f"an event is no JSON: {payload[:80]!r}"
            return
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            self.error = self.error or f"the server sent an error: {payload[:300].decode(errors='replace')}"
            return
        choices, usage = event.get("choices") or [], event.get("usage")
        if not isinstance(choices, list) or any(not _is_choice(choice) for choice in choices):
            self.error = self.error or f"an event is no completion: {payload[:80]!r}"
            return
        count = _count(usage, "completion_tokens")
        if count is not None:
            # A rise counts only where a choice came with it: the closing usage chunk brings no token. Text without a
            # rise is of tokens that were counted before they were there: the last of them came with it.
            known = self.tokens[-1][1] if self.tokens else 0
            if choices and (count > known or (known and _text(choices[0]))):
                self.tokens.append((at, max(count, known)))
            self.completion_tokens = count
            self.prompt_tokens = _count(usage, "prompt_tokens") or self.prompt_tokens
        if choices:
            self.chunks += 1
            self._choice(at, choices[0])

    def _choice(self, at: int, choice: dict[str, Any]) -> None:
        delta, text = choice.get("delta") or choice.get("message"), _text(choice)
        # A first chat chunk with a role only brings no token; an empty text in a completion may be half a character.
        if text or (text is not None and delta is None and choice.get("finish_reason") is None):
            self.text_chunks.append(at)
        if text:
            self.text.append(text)
        self.finish = choice.get("finish_reason") or self.finish


def _is_choice(choice: object) -> bool:
    """Whether what is read of a choice has the types that it must have."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or choice.get("message")
    if delta is not None and not isinstance(delta, dict):
        return False
    inner = delta or {}
    texts = (choice.get("text"), choice.get("finish_reason"), inner.get("content"), inner.get("reasoning_content"))
    return all(text is None or isinstance(text, str) for text in texts)


def _count(usage: object, name: str) -> int | None:
    """A count of tokens, where the server gave one that can be."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and 0 <= count < 10**MAX_DIGITS else None


def _text(choice: dict[str, Any]) -> str | None:
    """What a choice says, in the shape of either endpoint."""
    delta = choice.get("delta") or choice.get("message")
    text: str | None = choice.get("text") if delta is None else delta.get("content") or delta.get("reasoning_content")
    return text


def to_record(
    question: Question, sent_ns: int, reads: Sequence[Read], fault: str | None, *, keep_text: bool
) -> RequestRecord:
    """The record of one request. `fault` is what stopped the client (timeout, reset), or None."""
    reading = _Reading()
    status, error = None, fault
    try:
        status = _read_all(reads, reading)
    except BadResponse as problem:
        error = error or str(problem)
    error = error or reading.error
    if status is not None and status != 200:
        start = b"".join(data for _, data in reads).partition(b"\r\n\r\n")[2][:300]
        error = error or f"status {status}: {start.decode(errors='replace').strip()}"
    continuous = len(reading.tokens) > 1 or (len(reading.tokens) == 1 and reading.chunks == 1)
    counted = tuple((at, number) for number, at in enumerate(reading.text_chunks, start=1))
    text = "".join(reading.text)
    return RequestRecord(
        index=question.index,
        prompt_sha256=prompt_sha256(question.body),
        requested=question.requested,
        sent_ns=sent_ns,
        first_byte_ns=reads[0][0] if reads else None,
        end_ns=reads[-1][0] if reads else None,
        status=status,
        tokens=tuple(reading.tokens) if continuous else counted,
        continuous=continuous,
        chunks=reading.chunks,
        prompt_tokens=reading.prompt_tokens,
        completion_tokens=reading.completion_tokens,
        finish=reading.finish,
        text=text if keep_text else None,
        characters=len(text),
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        error=error,
    )


def _read_all(reads: Sequence[Read], reading: _Reading) -> int | None:
    """Feed every event of a response; the status. Raises BadResponse."""
    data = b"".join(part for _, part in reads)
    if not data:
        return None
    head = parse_head(data)
    if head is None:
        raise BadResponse("the response ended in the middle of its head")
    if head.status != 200:
        return head.status
    ends: list[int] = []
    total = 0
    for _, part in reads:
        total += len(part)
        ends.append(total)

    def stamp(position: int) -> int:
        return reads[bisect_left(ends, position + 1)][0]

    if "event-stream" in head.headers.get("content-type", ""):
        try:
            parts = body_parts(data, head)
            for position, payload in events(parts if head.chunked else _by_line(parts)):
                reading.take(stamp(position), payload)
        finally:
            if not reading.done and reading.error is None and reading.finish is None:
                reading.error = "the stream ended without a finish reason"
    else:
        for position, payload in body_parts(data, head):
            reading.take(stamp(position), payload)
    return head.status
