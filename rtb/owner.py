"""Who made a container or a folder, and whether that process still lives. Only what is ours is ever removed."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path


def owner_id() -> str:
    """One id for this user on this machine (and process name space): resources of others never carry it."""
    space = _process_space()
    text = f"{platform.node()}\0{os.getuid()}\0{space}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def process_id() -> str:
    """This process, never confused with a later one of the same number: `<pid>-<start>-<boot>`."""
    pid = os.getpid()
    return f"{pid}-{_started(pid)}-{_boot()}"


def is_alive(process: str) -> bool:
    """Whether the process that `process_id` named still runs. Other text counts as alive: not ours."""
    number, _, rest = process.partition("-")
    if not number.isdigit() or not rest:
        return True
    started = _started(int(number))
    return started is not None and rest == f"{started}-{_boot()}"


def _started(pid: int) -> str | None:
    """Start time of a living process in clock ticks since boot; None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        return _signalled(pid)
    return None if fields[0] == b"Z" else fields[19].decode()


def _signalled(pid: int) -> str | None:
    """Without /proc only the number can be asked for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except FileNotFoundError:
        return "0"


def _process_space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
