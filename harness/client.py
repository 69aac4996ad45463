"""The client that measures: its own process, one loop over sockets, a stamp at every read, parsing afterwards.

EDGE: HTTP to the server under test. Run as `python -m harness.client PLAN.json OUT.jsonl`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.request import Plan, Question, RequestRecord, read_records, write_records
from harness.stream import BadResponse, Head, Read, is_complete, parse_head, to_record
from rtb.errors import MachineError
from rtb.storage import write_model

READ_BYTES = 1 << 18
CONNECT_SECONDS = 10.0
HEAD_BYTES = 1 << 16
ANSWER_BYTES = 64 * 1024**2  # what is kept lies in this machine's memory, for each request under way
READ_COST = 128  # bytes that a read of one byte takes


class ClientFailed(MachineError):
    """The measuring client itself did not end well."""


def connect(address: str, timeout: float = CONNECT_SECONDS) -> socket.socket:
    """An open connection to `unix:PATH` or `HOST:PORT`. Raises OSError."""
    if address.startswith("unix:"):
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.settimeout(timeout)
        try:
            unix.connect(address.removeprefix("unix:"))
        except OSError:
            unix.close()
            raise
        return unix
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def encode(path: str, body: dict[str, object]) -> bytes:
    """A POST request as bytes."""
    data = json.dumps(body, ensure_ascii=False).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@dataclass
class _Flight:
    """One request under way."""

    question: Question
    connection: socket.socket
    sent: int
    deadline: float
    reads: list[Read] = field(default_factory=list)
    received: int = 0
    tail: bytes = b""
    head: Head | None = None


@dataclass
class _Landed:
    """One request that is over; parsed when the clock no longer matters."""

    question: Question
    sent: int
    reads: list[Read]
    fault: str | None


class _Loop:
    """Keeps requests in flight and stamps what comes back."""

    def __init__(self, plan: Plan, payloads: Sequence[bytes]) -> None:
        self._plan = plan
        self._waiting = deque(zip(plan.questions, payloads, strict=True))
        self._selector = selectors.DefaultSelector()
        self._flying = 0
        self._idle: list[socket.socket] = []
        self._landed: list[_Landed] = []
        self._start = 0

    def run(self) -> list[_Landed]:
        count = min(self._plan.concurrency, len(self._waiting))
        with contextlib.suppress(OSError):  # what cannot be reached is noted at its first request
            self._idle = [connect(self._plan.address) for _ in range(count)]
        self._start = time.perf_counter_ns()
        try:
            while self._waiting or self._flying:
                self._launch()
                for key, _ in self._selector.select(self._patience()):
                    self._read(key.data)
                self._expire()
        finally:
            for connection in self._idle:
                connection.close()
            self._selector.close()
        return self._landed

    def _due(self) -> float:
        """Seconds until the next request may start by the schedule of a fixed rate."""
        if self._plan.rate is None or not self._waiting:
            return 0.0
        at = self._waiting[0][0].index / self._plan.rate
        return at - (time.perf_counter_ns() - self._start) / 1e9

    def _patience(self) -> float:
        if self._waiting and self._flying < self._plan.concurrency:
            return max(0.0, min(self._due(), 0.25))
        return 0.25

    def _launch(self) -> None:
        while self._waiting and self._flying < self._plan.concurrency and self._due() <= 0:
            question, payload = self._waiting.popleft()
            sent = time.perf_counter_ns()
            try:
                connection = self._connection()
                sent = time.perf_counter_ns()
                connection.sendall(payload)
            except OSError as error:
                self._landed.append(_Landed(question, sent, [], f"cannot send: {error}"))
                continue
            connection.setblocking(False)
            flight = _Flight(question, connection, sent, time.monotonic() + self._plan.timeout_seconds)
            self._selector.register(connection, selectors.EVENT_READ, flight)
            self._flying += 1

    def _connection(self) -> socket.socket:
        while self._idle:
            kept = self._idle.pop()
            kept.setblocking(False)
            try:
                kept.recv(1, socket.MSG_PEEK)  # closed by the server, or bytes that nobody asked for
            except BlockingIOError:
                kept.settimeout(CONNECT_SECONDS)
                return kept
            except OSError:
                pass
            kept.close()
        return connect(self._plan.address)

    def _read(self, flight: _Flight) -> None:
        try:
            data = flight.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._land(flight, f"the connection broke: {error}")
            return
        now = time.perf_counter_ns()
        if not data:
            whole = flight.head is not None and not flight.head.chunked and flight.head.length is None
            self._land(flight, None if whole else "the server closed the connection before the response ended")
            return
        flight.reads.append((now - flight.sent, data))
        flight.received += len(data)
        flight.tail = (flight.tail + data)[-8:]
        if flight.received + READ_COST * len(flight.reads) > ANSWER_BYTES:
            self._land(flight, f"the answer is larger than {ANSWER_BYTES >> 20} MiB")
            return
        try:
            if flight.head is None:
                flight.head = parse_head(b"".join(part for _, part in flight.reads))
            if flight.head is None and flight.received > HEAD_BYTES:
                raise BadResponse(f"no head of a response within {HEAD_BYTES} bytes")
        except BadResponse as error:
            self._land(flight, str(error))
            return
        if flight.head is not None and is_complete(flight.head, flight.received, flight.tail):
            self._land(flight, None, keep=flight.head.keeps_alive)

    def _expire(self) -> None:
        now = time.monotonic()
        for key in list(self._selector.get_map().values()):
            if key.data.deadline < now:
                self._land(key.data, f"no whole answer within {self._plan.timeout_seconds:g} s")

    def _land(self, flight: _Flight, fault: str | None, *, keep: bool = False) -> None:
        self._selector.unregister(flight.connection)
        self._flying -= 1
        if keep:
            self._idle.append(flight.connection)
        else:
            flight.connection.close()
        self._landed.append(_Landed(flight.question, flight.sent - self._start, flight.reads, fault))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector must not stop the loop between two stamps."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def perform(plan: Plan) -> list[RequestRecord]:
    """Make every request of the plan in this process; parse when all are over."""
    payloads = [encode(plan.path, question.body) for question in plan.questions]
    with _no_collection():
        landed = _Loop(plan, payloads).run()
    return [to_record(item.question, item.sent, item.reads, item.fault, keep_text=plan.keep_text) for item in landed]


def measure(plan: Plan, out: Path) -> list[RequestRecord]:
    """Make every request in a process of its own, which writes `out`. Raises ClientFailed.

    The plan is left beside it as `<name>.plan.json` without the prompts' text being needed to grade.
    """
    plan_path = out.with_suffix(".plan.json")
    write_model(plan_path, plan)
    waves = -(-len(plan.questions) // plan.concurrency)
    limit = 60 + waves * plan.timeout_seconds + (len(plan.questions) / plan.rate if plan.rate else 0)
    root = str(Path(__file__).resolve().parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    argv = [sys.executable, "-m", "harness.client", str(plan_path), str(out)]
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClientFailed(f"the client did not end within {limit:.0f} s") from error
    finally:
        plan_path.unlink(missing_ok=True)
    if done.returncode != 0:
        raise ClientFailed(f"the client ended with exit code {done.returncode}: {done.stderr[-1000:]}")
    return list(read_records(out))


def main(arguments: Sequence[str]) -> int:
    """Entry point of the client's own process."""
    plan = Plan.model_validate_json(Path(arguments[0]).read_bytes())
    write_records(Path(arguments[1]), perform(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
