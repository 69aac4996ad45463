"""Calling a model over HTTP. EDGE model API: the only module that talks to it.

What can be tried again is tried again with growing waits; what cannot stops at once with the reason. A call ends at
its deadline and when the run is interrupted, also in the middle of a stream or of a wait.
"""

from __future__ import annotations

import email.utils
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx

from rtb.errors import ExpectedError, MachineError, RtbError
from rtb.foreign_json import read_foreign_json
from scaffold.endpoint import ModelOptions, resolve
from scaffold.keys import Secrets
from scaffold.reply import BrokenReply, ErrorInReply, Reply, read_completion, read_stream

_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))
_OVERFLOW = (
    "context_length", "context length", "context window", "maximum context", "max_model_len", "prompt is too long",
    "too many tokens", "input is too long", "exceeds the maximum",
    "longer than the model's", "string_above_max_length",
)  # fmt: skip
_SPENT = ("insufficient_quota", "billing_hard_limit", "credit balance", "account_deactivated", "billing_not_active")
_ERROR_BYTES = 64 * 1024


class ModelUnavailable(MachineError):
    """The API failed again and again for a reason that is not the model's."""


class ModelRefused(ExpectedError):
    """The API will never take this call as it is: wrong key, unknown model, bad request."""


class ContextOverflow(RtbError):
    """The conversation is longer than the model takes. Not a fault: the agent shortens it or ends."""


class DeadlinePassed(RtbError):
    """The time of the attempt was used up during a call."""


class Interrupted(RtbError):
    """The user stopped the run."""


@dataclass(frozen=True)
class FailedTry:
    """A try that did not give an answer: what happened, and how long was waited before the next one."""

    reason: str
    waited_seconds: float


@dataclass(frozen=True)
class Call:
    """An answer with what it took to get it. `seconds` is of the last try alone."""

    reply: Reply
    seconds: float
    failed: tuple[FailedTry, ...]


class Model:
    """One conversation's line to a model; not shared between threads except for `abort`.

    `on_wait` is told, in words, why a call is tried again and when. Raises ExpectedError at once when the endpoint or
    its key is not known. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        options: ModelOptions,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.options = options
        self._stop = stop or threading.Event()
        self._on_wait = on_wait
        self._endpoint = resolve(options)
        self._secrets = Secrets.of_environment(self._endpoint.key)
        self._random = random.Random()
        self._socket: socket.socket | None = None
        headers = {"Authorization": f"Bearer {self._endpoint.key}"} if self._endpoint.key else {}
        # One connection, kept: a handshake for each step would cost more than the loop itself.
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=600.0)
        try:
            self._client = httpx.Client(headers=headers, limits=limits, follow_redirects=False)
        except (UnicodeEncodeError, ValueError) as error:
            raise ExpectedError(
                f"the key in {self._endpoint.key_variable}, or a proxy setting, cannot be used "
                f"({type(error).__name__}); check for stray characters"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def abort(self) -> None:
        """End a call that is under way, from another thread. Set the stop event first."""
        current = self._socket
        if current is not None:
            with suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)

    def ask(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        deadline: float | None = None,
    ) -> Call:
        """One answer to a conversation. `deadline` is on the clock of time.monotonic.

        Raises ModelRefused, ModelUnavailable, ContextOverflow, DeadlinePassed, Interrupted.
        """
        body = self._body(messages, tools)
        failed: list[FailedTry] = []
        while True:
            started = time.monotonic()
            try:
                reply = self._once(body, deadline)
                return Call(reply, time.monotonic() - started, tuple(failed))
            except _Retry as fault:
                reason = self._secrets.hide(fault.reason)
                if len(failed) + 1 >= self.options.tries:
                    raise ModelUnavailable(
                        f"{self.options.name}: no answer after {len(failed) + 1} tries, the last one: {reason}; "
                        "run the same command again when the API is well"
                    ) from None
                wait = self._wait_before(len(failed), fault.retry_after)
                failed.append(FailedTry(reason, wait))
                self._on_wait(f"try {len(failed) + 1} of {self.options.tries} in {wait:.1f} s: {reason[:200]}")
            self._pause(wait, deadline)

    def _body(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> bytes:
        body: dict[str, Any] = {"model": self._endpoint.served_name, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if self.options.temperature is not None:
            body["temperature"] = self.options.temperature
        if self.options.max_output_tokens is not None:
            body["max_tokens"] = self.options.max_output_tokens
        if self.options.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= self.options.extra
        # Lone surrogates (bytes of a file that are no UTF-8) must not break the request.
        text = json.dumps({key: value for key, value in body.items() if value is not None}, ensure_ascii=False)
        return text.encode("utf-8", "replace")

    def _once(self, body: bytes, deadline: float | None) -> Reply:
        options = self.options
        left = self._left(deadline)
        timeout = httpx.Timeout(
            min(options.read_timeout_seconds, left), connect=min(options.connect_timeout_seconds, left)
        )
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream(
                "POST", self._endpoint.url, content=body, headers=headers, timeout=timeout,
                extensions={"trace": self._remember_socket},
            ) as response:  # fmt: skip
                return self._read(response, deadline)
        except (httpx.TransportError, BrokenReply) as error:
            if self._stop.is_set():
                raise Interrupted("stopped by the user") from None
            self._left(deadline)
            raise _Retry(f"{type(error).__name__}: {error}") from None
        except ErrorInReply as error:
            self._judge(_status_in(error.body), json.dumps(error.body), None)
        except httpx.InvalidURL as error:
            raise ModelRefused(f"{self._endpoint.url} is no address ({error})") from None

    def _read(self, response: httpx.Response, deadline: float | None) -> Reply:
        if response.status_code != 200:
            self._judge(response.status_code, _head(response), response.headers.get("retry-after"))
        if "text/event-stream" in response.headers.get("content-type", ""):
            lines = self._watched(response.iter_lines(), deadline)
            reply = read_stream(lines)
            # Read on to the end of the answer: only then can the next call have the same connection.
            for _ in lines:
                pass
            return reply
        try:
            return read_completion(read_foreign_json(b"".join(self._watched(response.iter_bytes(), deadline))))
        except json.JSONDecodeError as error:
            raise BrokenReply(f"the answer is not JSON ({error.msg})") from error

    def _judge(self, status: int, text: str, retry_after: str | None) -> NoReturn:
        """Raise what a refusal means."""
        said = self._secrets.hide(_message(text))
        lowered = text.lower()
        if status in (400, 413, 422, 500) and any(mark in lowered for mark in _OVERFLOW):
            raise ContextOverflow(said)
        if status in _AGAIN and not any(mark in lowered for mark in _SPENT):
            raise _Retry(f"HTTP {status}: {said}", _seconds(retry_after))
        advice = {401: self._key_advice(), 403: self._key_advice(), 404: "check --model and --base-url"}
        raise ModelRefused(
            f"{self.options.name} at {self._endpoint.url}: HTTP {status}: {said}; "
            f"{advice.get(status, 'this will not change by trying again: mend it and run the same command again')}"
        )

    def _key_advice(self) -> str:
        name = self._endpoint.key_variable
        return f"check the API key in {name}" if name else "name the variable that holds the API key (--api-key-env)"

    def _watched(self, parts: Iterator[Any], deadline: float | None) -> Iterator[Any]:
        for part in parts:
            self._left(deadline)
            yield part

    def _left(self, deadline: float | None) -> float:
        """Seconds until the deadline. Raises Interrupted, DeadlinePassed."""
        if self._stop.is_set():
            raise Interrupted("stopped by the user")
        if deadline is None:
            return float("inf")
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed("the attempt's time was used up while the model was asked")
        return left

    def _wait_before(self, failures: int, retry_after: float | None) -> float:
        """Doubling waits with jitter, so that workers do not come back together; the server's own wish wins."""
        if retry_after is not None:
            return min(retry_after, self.options.longest_wait_seconds)
        grown = min(self.options.backoff_seconds * 2.0**failures, self.options.longest_wait_seconds)
        return grown * self._random.uniform(0.5, 1.0)

    def _pause(self, seconds: float, deadline: float | None) -> None:
        seconds = min(seconds, self._left(deadline))
        self._stop.wait(seconds)
        self._left(deadline)

    def _remember_socket(self, event: str, info: dict[str, Any]) -> None:
        # TLS wraps the first socket in another one, and only that one is connected then.
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")


class _Retry(Exception):
    """This try failed and another may not."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


def _head(response: httpx.Response) -> str:
    """The start of an error's body: nobody needs more of it."""
    data = b""
    for part in response.iter_bytes():
        data += part
        if len(data) > _ERROR_BYTES:
            break
    return data[:_ERROR_BYTES].decode("utf-8", "replace")


def _message(text: str) -> str:
    """The words of an error body, in the shapes that servers use."""
    with suppress(json.JSONDecodeError, AttributeError):
        document = read_foreign_json(text)
        error = document.get("error", document)
        for found in (
            (error.get("message"), document.get("message"), document.get("detail"))
            if isinstance(error, dict)
            else (error,)
        ):
            if isinstance(found, str) and found:
                return found[:1000]
    return text.strip()[:1000] or "(empty answer)"


def _status_in(body: Any) -> int:
    """The status an error object stands for; an error without one is taken as the server's fault."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else body.get("code")
    return int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdigit()) else 500


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header: seconds, or a date."""
    if retry_after is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(retry_after))
    with suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None
