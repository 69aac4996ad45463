"""A command's output on its way to a file: bytes only, bounded, never decoded."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from rtb.errors import MachineError, OutOfSpace

HEADER_BYTES = 8


class Frames:
    """Takes Docker's multiplexed stream apart: 8 bytes of header (stream, 0, 0, 0, big-endian length), then payload.

    Reads may cut anywhere, in a header or in a character; payloads come out as they went in.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Payload parts found in the next bytes of the stream. Raises MachineError when it is no such stream."""
        view = memoryview(data)
        while view:
            if self._left:
                part = view[: self._left]
                self._left -= len(part)
                view = view[len(part) :]
                yield part
                continue
            part = view[: HEADER_BYTES - len(self._header)]
            self._header += part
            view = view[len(part) :]
            if len(self._header) == HEADER_BYTES:
                if self._header[0] > 2 or any(self._header[1:4]):
                    raise MachineError(f"the engine sent {bytes(self._header)!r} where a frame header belongs")
                self._left = int.from_bytes(self._header[4:], "big")
                self._header.clear()


class OutputFile:
    """A file that takes any amount and keeps at most `limit` bytes: the first half and the last half.

    The second half of the file is written round and round, so memory stays flat; `close` puts it in order.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        if limit_bytes < 2:
            raise ValueError("limit_bytes must be at least 2")
        self.written = 0
        self.truncated = False
        self._half = limit_bytes // 2
        self._limit = limit_bytes
        self._position = 0
        self._path = path
        self._file: BinaryIO = path.open("w+b", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, data: bytes | memoryview) -> None:
        """Raises OutOfSpace when the host's disk is full."""
        view = memoryview(data)
        self.written += len(view)
        while view:
            if self._position == self._limit:
                self._position = self._half
                self.truncated = True
                self._file.seek(self._half)
            part = view[: self._limit - self._position]
            self._position += self._put(part)
            view = view[len(part) :]

    def close(self) -> None:
        """Idempotent. Puts the two halves in order, with the line that says what is missing between them."""
        if self._file.closed:
            return
        try:
            if self.truncated:
                self._file.seek(self._half)
                ring = self._file.read(self._limit - self._half)
                cut = self._position - self._half
                dropped = self.written - self._limit
                line = f"\n[rtb: {dropped} bytes of output dropped here]\n".encode()
                self._file.seek(self._half)
                self._put(line + ring[cut:] + ring[:cut])
        finally:
            self._file.close()

    def _put(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                done += self._file.write(view[done:])
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfSpace(f"the disk is full: output of a command cannot be kept in {self._path}") from error
            raise
        return done
