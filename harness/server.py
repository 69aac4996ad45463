"""The server under test: started in a sandbox, reached through a Unix socket, ready or explained, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.client import HEAD_BYTES, connect, perform
from harness.request import PATHS, Plan, Question, completion_body
from harness.stream import BadResponse, parse_head
from harness.timing import fault_of
from rtb.errors import MachineError, SandboxGone
from rtb.sandbox import Change, Entry, ExecResult, Sandbox
from rtb.task import Serve

GRACE_SECONDS = 10.0  # for a clean shutdown
STOP_SECONDS = 60.0
HEALTH_SECONDS = 10.0
COMPLETION_SECONDS = 300.0  # the first one may compile kernels
LOG_TAIL_BYTES = 4000
READY_TOKENS = 2
SERVE_LIMIT_SECONDS = 24 * 3600.0
_RELAY = Path(__file__).parent / "worker" / "relay.py"


class ServerStuck(MachineError):
    """A server that could not be stopped."""


@dataclass(frozen=True)
class NotReady:
    """A server that did not come up, and everything one needs to know why."""

    seconds: float
    tries: int
    last_answer: str
    exit_code: int | None
    log_tail: str

    def __str__(self) -> str:
        how = f"ended with exit code {self.exit_code}" if self.exit_code is not None else "was not ready"
        last = self.log_tail.strip().splitlines()[-1:] or ["(empty log)"]
        return (
            f"the server {how} after {self.seconds:.0f} s and {self.tries} tries; last answer: {self.last_answer}; "
            f"end of its log: {last[0][:300]}"
        )


@dataclass(frozen=True)
class Ready:
    """A server that answers. `address` is for the client."""

    address: str
    seconds: float
    tries: int


@dataclass
class _Command:
    """The relay's command, running in a thread of ours."""

    result: ExecResult | None = None
    error: MachineError | None = None
    thread: threading.Thread | None = None
    control: socket.socket | None = None
    killed: bool = False

    @property
    def ended(self) -> bool:
        return self.thread is not None and not self.thread.is_alive()


@contextmanager
def serving(
    sandbox: Sandbox, serve: Serve, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Ready | NotReady]:
    """A server for as long as the block lasts. Its output goes to the host file `log`.

    Yields NotReady when it does not come up: what that means (the patch, the machine) is the caller's to say. Raises
    ServerStuck and what the sandbox raises.
    """
    name = f"s{secrets.token_hex(4)}"
    folder = sandbox.sockets
    outside = folder.outside / name
    command = _start(sandbox, serve, log, f"{folder.inside}/{name}", env or {})
    try:
        yield _wait(command, serve, outside, log)
    finally:
        _stop(command, sandbox)
        for path in (outside, control_path(outside)):
            path.unlink(missing_ok=True)
    if command.error is not None and not command.killed:
        raise command.error


def control_path(path: Path) -> Path:
    """The socket whose connection keeps the server alive."""
    return path.with_name(f"{path.name}.control")


def _start(sandbox: Sandbox, serve: Serve, log: Path, inside: str, env: Mapping[str, str]) -> _Command:
    relay = f"relay-{secrets.token_hex(4)}.py"
    sandbox.write(sandbox.scratch, Change(write={relay: Entry(_RELAY.read_bytes())}))
    text = serve.command.replace("{port}", str(serve.port)).replace("{model}", serve.model)
    plan = {"command": text, "port": serve.port, "socket": inside, "grace_seconds": GRACE_SECONDS}
    command = _Command()

    def work() -> None:
        try:
            command.result = sandbox.execute(
                ["python", "-I", "-S", f"{sandbox.scratch}/{relay}"],
                output=log,
                timeout_seconds=SERVE_LIMIT_SECONDS,
                env={**serve.env, **env},
                stdin=json.dumps(plan).encode(),
            )
        except MachineError as error:
            command.error = error

    command.thread = threading.Thread(target=work, name=f"serve-{sandbox.name}", daemon=True)
    command.thread.start()
    return command


def _wait(command: _Command, serve: Serve, path: Path, log: Path) -> Ready | NotReady:
    """Ready is health 200 and then one completion. Tries grow rarer, from 20 a second to one."""
    started = time.monotonic()
    tries, pause, last = 0, 0.05, "none"
    while True:
        passed = time.monotonic() - started
        if command.ended or passed > serve.ready_timeout_seconds:
            return _not_ready(command, passed, tries, last, log)
        if command.control is None:
            command.control = _hold(path)
        if command.control is not None:
            tries += 1
            last = health(path) if _is_socket(path) else "none, something else took the place of its socket"
            if last == "health 200":
                last = _complete(serve, path)
                if last == "":
                    return Ready(f"unix:{path}", time.monotonic() - started, tries)
        time.sleep(pause)
        pause = min(1.0, pause * 1.2)


def _not_ready(command: _Command, seconds: float, tries: int, last: str, log: Path) -> NotReady:
    if command.error is not None:
        raise command.error
    if tries == 0 and not command.ended:
        last = (
            "none, its socket never appeared on this side (is the Docker engine on another machine? Then use "
            "--sandbox local, or an engine on this machine)"
        )
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.is_file() else ""
    code = command.result.exit_code if command.result is not None else None
    return NotReady(seconds, tries, last, code, tail)


def _is_socket(path: Path) -> bool:
    """Whether a socket, and no link that the other side laid, is there."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _hold(path: Path) -> socket.socket | None:
    if not _is_socket(path) or not _is_socket(control_path(path)):
        return None
    try:
        return connect(f"unix:{control_path(path)}")
    except OSError:
        return None


def health(path: Path) -> str:
    """`health 200`, or what came instead."""
    deadline, data = time.monotonic() + HEALTH_SECONDS, b""
    try:
        with connect(f"unix:{path}", HEALTH_SECONDS) as asking:
            asking.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
            while (head := parse_head(data)) is None:
                # One limit for the whole answer: a server that sends a byte now and then would hold us for ever.
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                asking.settimeout(left)
                if not (part := asking.recv(HEAD_BYTES)) or len(data) > HEAD_BYTES:
                    raise BadResponse("no head")
                data += part
            return f"health {head.status}"
    except (OSError, BadResponse) as error:
        return f"no answer to /health ({type(error).__name__})"


def _complete(serve: Serve, path: Path) -> str:
    """One short completion; empty when it is sound, else what was wrong."""
    body = completion_body("1", READY_TOKENS, model=serve.model, endpoint=serve.endpoint, **serve.request)
    asked = (Question(index=0, body=body),)
    plan = Plan(
        address=f"unix:{path}", path=PATHS[serve.endpoint], questions=asked, timeout_seconds=COMPLETION_SECONDS
    )
    record = perform(plan)[0]
    fault = fault_of(record)
    # An answer that ends early is an answer: how long it must be is asked when it is measured.
    ended_early = record.error is None and record.finish == "stop"
    return "" if fault is None or ended_early else f"health 200, but a completion fails: {fault}"


def _stop(command: _Command, sandbox: Sandbox) -> None:
    """Let go of the control connection, which stops the server; the sandbox dies when that does not help."""
    if command.control is not None:
        command.control.close()
    assert command.thread is not None
    if command.control is None and not command.ended:
        with contextlib.suppress(SandboxGone):
            command.killed = True
            sandbox.kill()  # never reached: nothing else ends it
    command.thread.join(STOP_SECONDS)
    if command.thread.is_alive():
        sandbox.kill()
        raise ServerStuck(f"the server in {sandbox.name} did not end within {STOP_SECONDS:.0f} s of being told to")
