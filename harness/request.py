"""What is sent to a server under test, and what came back: plain data that reaches disk. Times in nanoseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from rtb.errors import StoredRunBroken
from rtb.storage import write_atomic
from rtb.task import Frozen

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Question(Frozen):
    """One request to be made. `body` is the JSON that is sent; `requested` the tokens that are asked for."""

    index: int = Field(ge=0)
    body: dict[str, Any]
    requested: int | None = None


class Plan(Frozen):
    """One run of the client: all that its own process is told.

    `address` is `unix:PATH` or `HOST:PORT`. With `rate` null, `concurrency` requests are kept in flight; else
    requests start at fixed times, `rate` a second, with no more than `concurrency` connections.
    """

    address: str
    path: str = PATHS["completions"]
    questions: tuple[Question, ...] = Field(min_length=1)
    concurrency: int = Field(default=1, ge=1)
    rate: float | None = Field(default=None, gt=0)
    timeout_seconds: float = Field(default=600.0, gt=0)
    keep_text: bool = False


class RequestRecord(Frozen):
    """One request as it went. Enough to compute every number again; a fault is in `error`, never a zero.

    `tokens`: (ns since sent, completion tokens so far) at each chunk where the server's count rose, and at each later
    one that brought text all the same: a server may count tokens before it has them. Without counts in the chunks
    (`continuous` false): (ns, number of text chunks so far).
    """

    index: int
    prompt_sha256: str
    requested: int | None
    sent_ns: int = Field(description="since the client's start")
    first_byte_ns: int | None = Field(description="since sent")
    end_ns: int | None = Field(description="since sent: the last byte read")
    status: int | None
    tokens: tuple[tuple[int, int], ...] = ()
    continuous: bool = False
    chunks: int = Field(default=0, description="chunks with a choice; not tokens")
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    text: str | None = None
    characters: int | None = Field(default=None, description="of the text, kept or not; null in runs of before")
    text_sha256: str | None = None
    error: str | None = None


def prompt_sha256(body: dict[str, Any]) -> str:
    """Digest of what the model is asked, whatever the sampling keys."""
    asked = body.get("messages", body.get("prompt"))
    return hashlib.sha256(json.dumps(asked, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def completion_body(
    prompt: str | list[int], max_tokens: int, *, model: str, endpoint: Endpoint = "completions", **extra: object
) -> dict[str, Any]:
    """A greedy streaming request with token counts in each chunk. An `extra` key that is None is left out."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    body |= {"messages": [{"role": "user", "content": prompt}]} if endpoint == "chat" else {"prompt": prompt}
    body |= extra
    return {key: value for key, value in body.items() if value is not None}


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """requests.jsonl, in order of index."""
    lines = (record.model_dump_json() + "\n" for record in sorted(records, key=lambda item: item.index))
    write_atomic(path, "".join(lines).encode())


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Records of a stored file. Raises StoredRunBroken naming the line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoredRunBroken(f"{path} cannot be read: {error.strerror}; run the task again") from error
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            yield RequestRecord.model_validate_json(line)
        except ValidationError as error:
            raise StoredRunBroken(f"{path}:{number}: no request record; run the task again") from error
