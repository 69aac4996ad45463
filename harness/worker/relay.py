"""Start a server in the sandbox, let the outside reach it by a Unix socket. Called as `python -I -S relay.py`.

Standard library only, Python 3.8+. The plan comes on stdin as JSON: command, port, socket, grace_seconds. The server
listens on a TCP port inside, where nobody outside can go; bytes are passed on as they come, unread. The server lives
while somebody is connected to `<socket>.control`: when that connection ends, however it ends, the server is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any, Dict, List, Optional

EXIT_BAD_PLAN = 91


class Back(asyncio.Protocol):
    """Our connection to the server."""

    def __init__(self, front: "Front") -> None:
        self.front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.front.opened(transport)

    def data_received(self, data: bytes) -> None:
        self.front.transport.write(data)

    def connection_lost(self, _error: Optional[Exception]) -> None:
        self.front.transport.close()


class Front(asyncio.Protocol):
    """A connection from outside, and what it sent before the one to the server was open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.back: Any = None
        self.held: List[bytes] = []
        self.transport: Any = None
        self.task: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.task = asyncio.ensure_future(self.open())

    async def open(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Back(self), "127.0.0.1", self.port)
        except OSError:
            self.transport.close()  # not listening yet, or no longer

    def opened(self, back: asyncio.BaseTransport) -> None:
        self.back = back
        for data in self.held:
            self.back.write(data)
        self.held = []

    def data_received(self, data: bytes) -> None:
        if self.back is None:
            self.held.append(data)
        else:
            self.back.write(data)

    def connection_lost(self, _error: Optional[Exception]) -> None:
        if self.back is not None:
            self.back.close()


class Control(asyncio.Protocol):
    """Whoever started us. Sets `gone` when the last one has left."""

    def __init__(self, gone: asyncio.Event, count: List[int]) -> None:
        self.gone = gone
        self.count = count

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        self.count[0] += 1

    def connection_lost(self, _error: Optional[Exception]) -> None:
        self.count[0] -= 1
        if self.count[0] == 0:
            self.gone.set()


def signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def stop(process: asyncio.subprocess.Process, grace_seconds: float) -> None:
    """Ask the server to end, then end it."""
    signal_group(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), grace_seconds)
    except asyncio.TimeoutError:
        print("rtb: the server did not end within %g s of SIGTERM; killed" % grace_seconds, flush=True)
    signal_group(process, signal.SIGKILL)
    await process.wait()


async def listen(path: str, protocol: Any) -> Any:
    server = await asyncio.get_running_loop().create_unix_server(protocol, path, backlog=256)
    os.chmod(path, 0o777)  # the harness may be another user
    return server


async def run(plan: Dict[str, Any]) -> int:
    gone, count = asyncio.Event(), [0]
    # The control socket first: whoever sees the other one can hold on to this one.
    control = await listen(plan["socket"] + ".control", lambda: Control(gone, count))
    front = await listen(plan["socket"], lambda: Front(plan["port"]))
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", plan["command"], stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    ended = asyncio.ensure_future(process.wait())
    left = asyncio.ensure_future(gone.wait())
    await asyncio.wait([ended, left], return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if ended.done():
        code = ended.result()
        signal_group(process, signal.SIGKILL)  # what the server left behind
    else:
        await stop(process, plan["grace_seconds"])
    left.cancel()
    for server in (control, front):
        server.close()
    return code if code >= 0 else 128 - code


def main() -> int:
    try:
        plan = json.loads(sys.stdin.buffer.read())
        plan["command"], plan["port"], plan["socket"], plan["grace_seconds"]
    except (ValueError, KeyError, TypeError) as error:
        print("rtb: the plan on standard input cannot be read: %s" % error, flush=True)
        return EXIT_BAD_PLAN
    return asyncio.run(run(plan))


if __name__ == "__main__":
    sys.exit(main())
