"""A sandbox of plain processes on this machine, for where no container engine runs. EDGE: subprocess.

Each run has its own folder with a fresh copy of the tree, a home, a temporary folder and a scratch folder, a clean
environment, and, where the kernel lets us, its own process and network name spaces. It keeps accidents apart, not an
attacker: `isolation` says what holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rtb.errors import MachineError, OutOfSpace, SandboxGone
from rtb.guarded_folder import copy_tree, lay_entry, parent_folder, read_regular, remove_entry, remove_folder
from rtb.name_spaces import name_spaces
from rtb.output import OutputFile
from rtb.owner import is_alive, owner_id, process_id
from rtb.sandbox import FIXED_ENV, Change, ExecResult, Isolation, Limits, SharedFolder

READ_BYTES = 1 << 20
MARKER = "RTB_SANDBOX"
SPARE_BYTES = 16_000_000  # less than this on the disk before or after a command is the machine's fault


@contextmanager
def open_local_sandbox(
    base: Path,
    *,
    env: Mapping[str, str],
    path: str,
    limits: Limits,
    parent: Path | None = None,
    shared: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
) -> Iterator[LocalSandbox]:
    """A sandbox with a copy of the folder `base` as its tree; all of it is deleted at the end.

    `shared` folders, such as a virtual environment, are read-only for commands where the kernel lets us;
    `hidden` ones (those that are there and hold nothing a command needs) are empty for them, there too.
    `env` is added to a clean environment; `path` is its PATH; `$RTB_TREE` in a value of `env` stands for the tree.
    Raises OutOfSpace.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_leftovers(parent)
    home = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{process_id()}-", dir=parent))
    try:
        for name in ("home", "tmp", "scratch", "s"):
            (home / name).mkdir(mode=0o700)
        copy_tree(base, home / "tree")
        clean = {"PATH": path, "HOME": f"{home}/home", "TMPDIR": f"{home}/tmp", MARKER: home.name, **FIXED_ENV}
        clean |= {name: value.replace("$RTB_TREE", f"{home}/tree") for name, value in env.items()}
        yield LocalSandbox(home, clean, limits, shared, _can_hide(hidden, (home, *shared)))
    finally:
        if not name_spaces(limits.network).processes:
            _kill_marked(home.name)
        remove_folder(home)


def local_isolation(limits: Limits) -> Isolation:
    """What processes of this machine can be kept from here."""
    spaces = name_spaces(limits.network)
    return Isolation("local", spaces.network, spaces.processes, files=False, memory=False, user=False, disk=False)


class LocalSandbox:
    """See rtb.sandbox.Sandbox."""

    def __init__(
        self, home: Path, env: Mapping[str, str], limits: Limits, shared: Sequence[Path], hidden: Sequence[Path]
    ) -> None:
        self._home = home
        self._hidden = [str(folder) for folder in hidden]
        self._shared = [str(folder) for folder in shared]
        self._env = dict(env)
        self._limits = limits
        self._spaces = name_spaces(limits.network)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._killed = False
        self.name = home.name
        self.tree = str(home / "tree")
        self.scratch = str(home / "scratch")

    @property
    def sockets(self) -> SharedFolder:
        return SharedFolder(self._home / "s", str(self._home / "s"))

    @property
    def isolation(self) -> Isolation:
        return local_isolation(self._limits)

    def execute(
        self,
        argv: Sequence[str],
        *,
        output: Path,
        timeout_seconds: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        as_root: bool = False,  # noqa: ARG002  (one user only)
    ) -> ExecResult:
        """See rtb.sandbox.Sandbox.execute."""
        self._check_there()
        self._check_space()
        rlimits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self._limits.disk_bytes}
        if self._limits.address_space_bytes is not None:
            rlimits["RLIMIT_AS"] = self._limits.address_space_bytes
        options = {
            "cwd": cwd or self.tree,
            "loopback": self.isolation.network,
            "read_only": self._shared if self._spaces.mounts else [],
            "hidden": self._hidden if self._spaces.mounts else [],
            "rlimits": rlimits,
        }
        started, kills = time.monotonic(), _memory_kills()
        status_read, status_write = os.pipe()
        with OutputFile(output, self._limits.output_bytes) as kept:
            try:
                process = subprocess.Popen(
                    [*self._spaces.command, *_init(status_write, options), *argv],
                    stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self._env | dict(env or {}),
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(status_write,),
                    bufsize=0,
                )
            except BaseException:
                os.close(status_read)
                raise
            finally:
                os.close(status_write)
            try:
                with self._lock:
                    self._running.add(process)
                if self._killed:
                    self._signal(process)
                status = _pump(process, status_read, stdin, kept, started + timeout_seconds)
            finally:
                with self._lock:
                    self._running.discard(process)
                os.close(status_read)
                self._end(process)
                for pipe in (process.stdin, process.stdout):
                    if pipe:
                        with contextlib.suppress(BrokenPipeError):
                            pipe.close()
            seconds = time.monotonic() - started
        self._check_there()
        self._check_space()
        if status == b"" and process.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            said = output.read_bytes()[-2000:].decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise MachineError(f"{argv[0]} could not be started in {self.name}: {said[-1]}")
        if status == b"" and self._spaces.processes:
            # Nothing in a process name space can end its first process: that was done from outside.
            raise SandboxGone(f"the first process of {self.name} was killed from outside while {argv[0]} ran")
        # Without one, the command may have killed it.
        code = None if status is None else int(status or -signal.SIGKILL)
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and _memory_kills() > kills:
            # No limit of this sandbox did that: it has none. The machine's memory was used up, by whomever.
            raise MachineError(f"the kernel killed a command in {self.name}: this machine has no memory left")
        return ExecResult(code, status is None, kept.written, kept.truncated, seconds)

    def write(self, root: str, change: Change) -> None:
        """See rtb.sandbox.Sandbox.write."""
        with self._folder(root) as top:
            for path in change.delete:
                with parent_folder(top, path, create=False) as found:
                    if found is not None:
                        remove_entry(found, path.rpartition("/")[2])
            for path, entry in change.write.items():
                with parent_folder(top, path, create=True) as found:
                    assert found is not None
                    lay_entry(found, path.rpartition("/")[2], entry)

    def read(self, path: str, *, limit_bytes: int) -> bytes | None:
        """See rtb.sandbox.Sandbox.read. Paths outside the sandbox's own folder are not there."""
        relative = Path(os.path.normpath(path))
        if not relative.is_relative_to(self._home):
            return None
        with (
            self._folder(str(self._home)) as top,
            parent_folder(top, str(relative.relative_to(self._home)), create=False) as found,
        ):
            if found is None:
                return None
            return read_regular(found, relative.name, path, limit_bytes)

    def kill(self) -> None:
        """See rtb.sandbox.Sandbox.kill."""
        with self._lock:
            self._killed = True
            for process in self._running:
                self._signal(process)

    def _check_there(self) -> None:
        if self._killed:
            raise SandboxGone(f"the local sandbox {self.name} was ended")
        if not self._home.is_dir():
            raise SandboxGone(f"the local sandbox's folder {self._home} is gone")

    def _check_space(self) -> None:
        """What a command cannot write is missing in its records: nobody could tell that from a cheat."""
        free = shutil.disk_usage(self._home).free
        if free < SPARE_BYTES:
            raise OutOfSpace(
                f"{free / 1e6:.1f} MB are free in {self._home.parent}, {SPARE_BYTES / 1e6:.0f} MB are needed: free "
                "some space, or name another folder with TMPDIR, and run the same command again"
            )

    @contextmanager
    def _folder(self, root: str) -> Iterator[int]:
        """A folder of the sandbox as a file descriptor, reached without following a link of the command's."""
        path = Path(os.path.normpath(root))
        if not path.is_relative_to(self._home):
            raise ValueError(f"{root} is not inside the sandbox {self._home}")
        self._check_there()
        top = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path == self._home:
                yield top
                return
            with parent_folder(top, f"{path.relative_to(self._home)}/x", create=True) as found:
                assert found is not None
                yield found
        finally:
            os.close(top)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Nothing of the command is left when this returns."""
        self._signal(process)
        if not self._spaces.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _signal(self, process: subprocess.Popen[bytes]) -> None:
        """End the command's first process. In a process name space all others die with it; without one, only it knows
        its descendants, and kills them at SIGTERM."""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self._spaces.processes:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.terminate()


def _can_hide(folders: Sequence[Path], needed: Sequence[Path]) -> list[Path]:
    """Those folders that are there and hold nothing that the command needs."""
    real = dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir())
    wanted = [*(place.resolve() for place in needed), Path(sys.prefix), Path(sys.base_prefix), Path(__file__)]
    return [folder for folder in real if not any(place.is_relative_to(folder) for place in wanted)]


def _init(status_fd: int, options: Mapping[str, object]) -> list[str]:
    script = str(Path(__file__).with_name("local_init.py"))
    return [sys.executable, "-I", "-S", script, str(status_fd), json.dumps(options)]


def _is_watched(waiting: selectors.BaseSelector, item: object) -> bool:
    """Also for what is closed or None, which the selector itself refuses to look up."""
    return item in [key.fileobj for key in waiting.get_map().values()]


def _pump(
    process: subprocess.Popen[bytes], status: int, stdin: bytes | None, kept: OutputFile, deadline: float
) -> bytes | None:
    """Move bytes until the command has ended and its output is read. The status text, or None at the deadline."""
    assert process.stdout is not None
    left = memoryview(stdin or b"")
    ended: bytes | None = None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        waiting.register(status, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return ended
            for key, _ in waiting.select(remaining):
                if not _is_watched(waiting, key.fileobj):
                    continue  # the command's end, seen in this very round, has put its input away
                if key.fileobj is process.stdin:
                    left = _feed(process.stdin, left)
                    if not left:
                        waiting.unregister(process.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.close()
                elif key.fileobj == status:
                    ended = os.read(status, 64)
                    waiting.unregister(status)
                    if process.stdin and _is_watched(waiting, process.stdin):
                        waiting.unregister(process.stdin)
                else:
                    data = os.read(process.stdout.fileno(), READ_BYTES)
                    kept.write(data)
                    if not data:
                        waiting.unregister(process.stdout)
    return ended


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _feed(pipe: object, left: memoryview) -> memoryview:
    assert hasattr(pipe, "fileno")
    try:
        return left[os.write(pipe.fileno(), left[:65536]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:  # the command reads no further
        return left[len(left) :]


def remove_leftovers(parent: Path) -> None:
    """Folders of runs whose process has died (killed hard, or before a restart)."""
    for folder in parent.glob(f"{_prefix()}*"):
        process = folder.name.removeprefix(_prefix()).rpartition("-")[0]
        if not is_alive(process):
            _kill_marked(folder.name)
            remove_folder(folder)


def _prefix() -> str:
    return f"rtb-local-{owner_id()}-"


def _kill_marked(name: str) -> None:
    """Last resort where there is no process name space: every process that carries the sandbox's name."""
    wanted = f"{MARKER}={name}".encode()
    for _ in range(3):
        found = False
        for place in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in place.read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(place.parent.name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)
