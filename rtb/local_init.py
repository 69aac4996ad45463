"""First process of a local sandbox: runs one command and lets none of its processes outlive it.

Standard library only. Run by path with `python -I -S`, often as process 1 of its own process and network name spaces:

    python -I -S local_init.py STATUS_FD OPTIONS_JSON COMMAND...

It writes the command's exit code (−N for death by signal N) to the file descriptor STATUS_FD, which the command does
not inherit. When nobody reads there any more, rtb is gone and everything is killed. SIGTERM kills everything too.
OPTIONS_JSON: {"cwd": PATH, "loopback": bool, "read_only": [PATH], "hidden": [PATH], "rlimits": {NAME: int}}.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP = 24
CAP_SYS_ADMIN = 21
CAP_MKNOD = 27
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def be_subreaper() -> None:
    """Orphans below us become our children, not process 1's. Without prctl, the caller's sweep by marker remains."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def raise_loopback() -> None:
    """A new network name space has its loopback down; tests may use it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        (flags,) = struct.unpack("16xh", fcntl.ioctl(control, SIOCGIFFLAGS, request)[:18])
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def make_read_only(path: str) -> None:
    """For this mount name space only: what later runs share must not be changed by this one. Best effort."""
    mount = ctypes.CDLL(None).mount
    place = os.fsencode(path)
    if mount(place, place, None, MS_BIND | MS_REC, None) == 0:
        mount(None, place, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)


def hide(path: str) -> None:
    """For this mount name space only: an empty folder over what a command must not read. Best effort."""
    options = b"size=4k,mode=755"
    ctypes.CDLL(None).mount(b"none", os.fsencode(path), b"tmpfs", MS_RDONLY, options)


def give_up_mounting() -> None:
    """Without this, a command that runs as root could take the hiding mounts away, or read the disk as a device."""
    with contextlib.suppress(OSError, AttributeError):
        for capability in (CAP_SYS_ADMIN, CAP_MKNOD):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every living process below `root`, by /proc. Empty where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208  (pathlib costs start-up time here)
            if name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                    if state != b"Z":
                        parents[int(name)] = int(parent)
    found: list[int] = []
    below = {root}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found += below
    return found


def kill_all(root: int) -> None:
    """Kill below `root` until nothing is left; a process that forks while we look is caught by the next look."""
    deadline = time.monotonic() + 10.0
    while (left := descendants(root)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.002)
    reap()


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start(command: list[str], options: dict[str, Any]) -> NoReturn:
    """In the child: limits and folder, then become the command."""
    os.setpgid(0, 0)
    for name, value in options["rlimits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (soft, soft))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; a command expects the default
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    what = options["cwd"]
    try:
        os.chdir(what)
        what = command[0]
        os.execvp(what, command)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and what is not options["cwd"]
        os.write(2, f"{what}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(127 if missing else 126)


def wait_for(child: int, status_fd: int) -> int | None:
    """The child's exit code, or None when we are to stop. Orphans come to us too, and are reaped on the way."""
    reader = select.poll()
    reader.register(status_fd, 0)  # only errors: nobody reads any more
    while True:
        got = signal.sigtimedwait(WATCHED, 0.5)
        if (got and got.si_signo == signal.SIGTERM) or reader.poll(0):
            return None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return os.waitstatus_to_exitcode(ended[1])


def main() -> int:
    status_fd = int(sys.argv[1])
    options = json.loads(sys.argv[2])
    os.set_inheritable(status_fd, False)
    be_subreaper()
    if options["loopback"]:
        raise_loopback()
    for path in options["read_only"]:
        make_read_only(path)
    for path in options["hidden"]:
        hide(path)
    if options["hidden"]:
        give_up_mounting()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    child = os.fork()
    if child == 0:
        start(sys.argv[3:], options)
    code = wait_for(child, status_fd)
    kill_all(os.getpid())
    if code is not None:
        os.write(status_fd, str(code).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
