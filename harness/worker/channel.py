"""The record file: signed lines, appended by one process only. Standard library only, Python 3.9+."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

EXIT_RECORDS_FULL = 86  # no space for a record
EXIT_RECORDS_LOST = 87  # the record file's descriptor was closed or replaced
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Emit = Callable[[str, Mapping[str, Any]], None]


def open_channel(path: str, key: bytes) -> Emit:
    """Open the record file (it must not exist) and return `emit(kind, fields)`.

    Each line is JSON, a tab and an HMAC over the line before it and this one, so a cut, edited or reordered file
    shows. A forked child is silent. Raises OSError.
    """
    write, getpid, dumps, leave = os.write, os.getpid, json.dumps, os._exit
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 200)  # away from what programs close by habit
    os.close(low)
    identity = (os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino)
    keyed = hmac.new(key, digestmod=hashlib.sha256)
    owner = getpid()
    lock = threading.Lock()
    sequence, chain = 0, b""

    def hush() -> None:
        try:
            os.close(descriptor)
        except OSError:
            pass

    os.register_at_fork(after_in_child=hush)

    def emit(kind: str, fields: Mapping[str, Any]) -> None:
        nonlocal sequence, chain
        if getpid() != owner:
            return
        with lock:
            payload = dumps({"seq": sequence, "kind": kind, **fields}).encode("ascii")
            mac = keyed.copy()
            mac.update(chain + payload)
            sequence, chain = sequence + 1, mac.hexdigest().encode("ascii")
            line = payload + b"\t" + chain + b"\n"
            try:
                found = os.fstat(descriptor)
                if (found.st_dev, found.st_ino) != identity:
                    leave(EXIT_RECORDS_LOST)
                while line:
                    line = line[write(descriptor, line) :]
            except OSError as error:
                leave(EXIT_RECORDS_FULL if error.errno in _NO_SPACE else EXIT_RECORDS_LOST)

    return emit
