"""The sandbox protocol: a place where a command of the model runs, apart from us. Local implementation: EDGE subprocess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

FileMode = Literal[0o644, 0o755]


@dataclass(frozen=True)
class Limits:
    """What a sandbox may take. Sizes in bytes; None means the host's own limit."""

    memory_bytes: int | None = 8 * 1024**3
    pids: int | None = 1024
    shm_bytes: int = 1024**3
    output_bytes: int = 64 * 1024**2
    network: bool = False


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` is None only when `timed_out`; a signal is negative as in subprocess.

    `output_bytes` counts what the command wrote; when `truncated` the file holds the first half and the last half of
    the limit with a line between them that says how much was dropped. `seconds` is wall time.
    """

    exit_code: int | None
    timed_out: bool
    output_bytes: int
    truncated: bool
    seconds: float
    oom_killed: bool = False


@dataclass(frozen=True)
class Entry:
    """A file to lay into the sandbox: bytes and mode, or a symbolic link's target."""

    data: bytes
    mode: int = 0o644  # 0o644, 0o755 or 0o120000 (symbolic link; data is the target)


@dataclass(frozen=True)
class Change:
    """What to do to a tree: paths relative to its root (as UTF-8 or surrogate-escaped text)."""

    write: Mapping[str, Entry] = field(default_factory=dict)
    delete: Sequence[str] = ()


class Sandbox(Protocol):
    """A running sandbox with a work tree. Got from `with open_sandbox(...) as sandbox`; gone when the block ends.

    Every method raises SandboxGone when the sandbox has died, EngineUnreachable when the engine does not answer,
    OutOfSpace when the host's disk is full: never a result that looks like the command's.
    """

    name: str
    tree: str  # absolute path of the work tree inside the sandbox
    scratch: str  # absolute path of an empty folder inside, outside the tree, for the harness's own files

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
        """Run a command; stdout and stderr go, interleaved, to the host file `output`. The whole process group is
        killed at the time limit, inside too. cwd defaults to the tree. Runs as the unprivileged user unless as_root
        (the local sandbox has one user only and ignores it)."""
        ...

    def write(self, root: str, change: Change) -> None:
        """Lay files (owned so that the command's user may read them) and delete paths under `root`, bytes exact."""
        ...

    def read(self, path: str, *, limit_bytes: int) -> bytes | None:
        """The file's bytes, or None when it is not there or no regular file. Raises OutOfSpace beyond the limit."""
        ...
