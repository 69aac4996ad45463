"""The sandbox protocol: a place where a command of the model runs, apart from us.

Two implementations keep it: `rtb.container` (Docker) and `rtb.local_sandbox` (processes of this machine). Get either
through `rtb.environment.open_sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

FILE = 0o644
EXECUTABLE = 0o755
SYMBOLIC_LINK = 0o120000

# Every command sees these, so that two runs of one thing have one result. A task's own `env` wins over them.
FIXED_ENV: Mapping[str, str] = {"TZ": "UTC", "PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Limits:
    """What a sandbox may take. Sizes in bytes; None means the host's own limit."""

    memory_bytes: int | None = 8 * 1024**3
    pids: int | None = 1024
    shm_bytes: int = 1024**3
    output_bytes: int = 64 * 1024**2
    disk_bytes: int = 16 * 1024**3  # what a container's commands may write in all, and the size of one file anywhere
    network: bool = False
    address_space_bytes: int | None = None  # RLIMIT_AS of each process; torch reserves far more than it uses


@dataclass(frozen=True)
class Isolation:
    """What this sandbox really keeps apart, for the run record. False is said aloud, never assumed."""

    kind: str  # "docker" or "local"
    network: bool  # no way out (loopback only)
    processes: bool  # a process cannot outlive its command
    files: bool  # the host's files cannot be seen
    memory: bool  # the memory limit is enforced
    user: bool  # runs as another user than rtb does
    disk: bool  # the limit on what is written is enforced for all files together, and not for each alone

    def record(self) -> dict[str, str | bool]:
        return asdict(self)


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` is None only when `timed_out`; a signal is negative as in subprocess.

    A container engine cannot tell `exit 137` from a death by signal 9: there, 128 + N is reported as −N.
    127 means that the command is not there, 126 that it cannot be run.
    `output_bytes` counts what the command wrote; when `truncated` the file holds the first half and the last half of
    the limit with a line between them that says how much was dropped. `seconds` is wall time.
    `oom_killed`: the memory limit killed a process of this command, while the sandbox lives on.
    `disk_killed`: the command was ended because it had written more than `Limits.disk_bytes`.
    """

    exit_code: int | None
    timed_out: bool
    output_bytes: int
    truncated: bool
    seconds: float
    oom_killed: bool = False
    disk_killed: bool = False


@dataclass(frozen=True)
class Entry:
    """A file to lay into the sandbox: bytes and mode, or a symbolic link's target."""

    data: bytes
    mode: int = FILE  # FILE, EXECUTABLE or SYMBOLIC_LINK (data is the target)

    def __post_init__(self) -> None:
        if self.mode not in (FILE, EXECUTABLE, SYMBOLIC_LINK):
            raise ValueError(f"mode {self.mode:o} is not one of 644, 755, 120000")


@dataclass(frozen=True)
class Change:
    """What to do to a tree: paths relative to its root (as UTF-8 or surrogate-escaped text). Deletes come first."""

    write: Mapping[str, Entry] = field(default_factory=dict)
    delete: Sequence[str] = ()

    def __post_init__(self) -> None:
        for path in (*self.write, *self.delete):
            parts = path.split("/")
            if not path or "\0" in path or ".." in parts or "." in parts or "" in parts:
                raise ValueError(f"{path!r} is no clean path relative to the root")


@dataclass(frozen=True)
class SharedFolder:
    """A folder that both sides see, for Unix sockets: the one way to a server in a sandbox without a network.

    What lies in it on the outside was laid by the command: look before following it.
    """

    outside: Path
    inside: str


class Sandbox(Protocol):
    """A running sandbox with a work tree. Got from `with open_sandbox(...) as sandbox`; gone when the block ends.

    Every method raises SandboxGone when the sandbox has died, EngineUnreachable when the engine does not answer,
    OutOfSpace when the host's disk is full: never a result that looks like the command's.
    """

    @property
    def name(self) -> str:
        """For people: which sandbox this is."""
        ...

    @property
    def tree(self) -> str:
        """Absolute path of the work tree inside the sandbox."""
        ...

    @property
    def scratch(self) -> str:
        """Absolute path of an empty folder inside, outside the tree, for the harness's own files."""
        ...

    @property
    def sockets(self) -> SharedFolder:
        """Where a server's Unix sockets meet; short, because a socket's path has at most 107 bytes."""
        ...

    @property
    def isolation(self) -> Isolation:
        """What is really kept apart."""
        ...

    def execute(
        self,
        argv: Sequence[str],
        *,
        output: Path,
        timeout_seconds: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        as_root: bool = False,
    ) -> ExecResult:
        """Run a command; stdout and stderr go, interleaved, to the host file `output`.

        When it ends, or at the time limit, every process that it started is killed, inside too: nothing goes
        on behind the caller's back. Several commands may run at once, from several threads. `cwd`: default the tree.
        Runs as the unprivileged user unless as_root (the local sandbox has one user only and ignores it).
        """
        ...

    def write(self, root: str, change: Change) -> None:
        """Delete paths and lay files under `root`, bytes exact, owned by the command's user.

        A symbolic link or a file in the way of a folder is replaced by a folder: nothing is written through a link.
        """
        ...

    def read(self, path: str, *, limit_bytes: int) -> bytes | None:
        """The file's bytes, or None when it is not there or no regular file (a link is none).

        Raises OutOfSpace beyond the limit.
        """
        ...

    def kill(self) -> None:
        """End the sandbox from another thread: a command that runs, and every later call, raises SandboxGone."""
        ...
