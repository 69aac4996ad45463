"""The hijacked connection of a container's command: raw bytes both ways, in one thread, never decoded."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any

from rtb.errors import EngineUnreachable

READ_BYTES = 1 << 20
SEND_BYTES = 1 << 16


class ExecConnection:
    """Takes over the socket of a started exec. Use with contextlib.closing.

    `raw` is what docker's `exec_start(socket=True)` gives for a Unix socket or plain TCP.
    """

    def __init__(self, raw: Any, stdin: bytes | None) -> None:
        if not isinstance(raw, socket.SocketIO):
            raise EngineUnreachable(
                "rtb talks to a Docker engine over its Unix socket or plain TCP only; for a remote engine forward its"
                " socket (ssh -L) and set DOCKER_HOST to it"
            )
        self._response: Any = raw._response  # type: ignore[attr-defined]
        self._socket: socket.socket = raw._sock  # type: ignore[attr-defined]
        self._socket.setblocking(False)
        self._unsent = None if stdin is None else memoryview(stdin)
        # The HTTP reader may have taken the first frames together with the headers; they are given out first.
        reader = self._response.raw._fp.fp
        try:
            self._early: bytes = reader.read1(READ_BYTES) or b""
        except BlockingIOError:
            self._early = b""

    def receive(self, seconds: float) -> bytes | None:
        """The next bytes, b"" at the end, None when nothing came in that time. Sends standard input meanwhile."""
        if self._early:
            early, self._early = self._early, b""
            return early
        deadline = time.monotonic() + seconds
        while True:
            wait = max(0.0, deadline - time.monotonic())
            writers = [] if self._unsent is None else [self._socket]
            readable, writable, _ = select.select([self._socket], writers, [], wait)
            if writable:
                self._send()
            if readable:
                try:
                    return self._socket.recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    return b""
            if not writable or wait == 0.0:
                return None

    def _send(self) -> None:
        """Some of the input, then its end. A command that reads no further is no error."""
        assert self._unsent is not None
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent[:SEND_BYTES]) :]
            if not self._unsent:
                self._socket.shutdown(socket.SHUT_WR)
                self._unsent = None
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError, OSError):
            self._unsent = None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._response.close()
