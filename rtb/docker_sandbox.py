"""The Docker sandbox: one container per run, the model's commands run in it as an unprivileged user."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rtb.archive import pack_files
from rtb.container import Engine, NotThere, connect
from rtb.errors import EngineUnreachable, MachineError, OutOfSpace, SandboxGone
from rtb.output import Frames, OutputFile
from rtb.sandbox import FIXED_ENV, Change, ExecResult, Isolation, Limits, SharedFolder
from rtb.temporary import temporary_folder

USER_ID = 10001  # the unprivileged user of every rtb image
TREE = "/testbed"
SCRATCH = "/rtb"
HOME = "/home/rtb"
SOCKETS = "/rtb-sockets"
IDLE_SECONDS = 0.5  # with no output for so long, ask whether the command still runs
DISK_LOOK_SECONDS = 2.0  # how often a command's disk use is measured while it runs; short ones are not
SERVICE_SECONDS = 120.0  # for our own small commands

# Both streams into one pipe, so that their order is the command's own.
_START = 'exec 2>&1; cd -- "$1" || exit 126; shift; exec "$@"'
_COUNT_OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null; "
# Signal 9 to -1 reaches every process that this user may signal, however well it hid, but not process 1 or `cat`.
_KILL_USER = "kill -9 -1 2>/dev/null; :"
_KILL_MARKED = (
    'for f in $(grep -lsaF "RTB_COMMAND=$1" /proc/[0-9]*/environ); do '
    'p=${f#/proc/}; kill -9 "${p%/environ}" 2>/dev/null; done; :'
)
_READ_ODD = 'path=$(cat; echo x); path=${path%x}; [ -f "$path" ] && [ ! -L "$path" ] && exec cat -- "$path"'
_DELETE = (
    'list=$(mktemp); cat >"$list"; xargs -0 -r rm -rf -- <"$list" 2>/dev/null || '
    '{ chmod -R u+rwX . 2>/dev/null; xargs -0 -r rm -rf -- <"$list"; }; code=$?; rm -f "$list"; exit $code'
)


@contextmanager
def open_docker_sandbox(
    image: str, *, env: Mapping[str, str], limits: Limits, run: str, devices: Sequence[str] = ()
) -> Iterator[DockerSandbox]:
    """A sandbox in a fresh container of `image` (one that rtb.environment built). `devices`: GPU ids of the lease.

    `$RTB_TREE` in a value of `env` stands for the tree. Raises NotThere when there is no such image, SandboxGone,
    EngineUnreachable, OutOfSpace.
    """
    name = f"rtb-{uuid.uuid4().hex[:12]}"
    fixed = {**FIXED_ENV, "HOME": HOME, **{key: value.replace("$RTB_TREE", TREE) for key, value in env.items()}}
    with (
        temporary_folder("sandbox") as private,
        connect() as engine,
    ):
        shared = private / "s"
        shared.mkdir()
        shared.chmod(0o777)  # the container's user is another one; the folder above is ours alone
        binds = {str(shared): SOCKETS}
        with engine.container(
            image, name, env=fixed, limits=limits, run=run, devices=devices, binds=binds
        ) as container:
            yield DockerSandbox(engine, container, name, limits, SharedFolder(shared, SOCKETS))


def docker_isolation(limits: Limits) -> Isolation:
    """What a container keeps apart."""
    memory = limits.memory_bytes is not None
    return Isolation(
        "docker", network=not limits.network, processes=True, files=True, memory=memory, user=True, disk=True
    )


class DockerSandbox:
    """See rtb.sandbox.Sandbox."""

    tree = TREE
    scratch = SCRATCH

    def __init__(self, engine: Engine, container: str, name: str, limits: Limits, sockets: SharedFolder) -> None:
        self._engine = engine
        self._container = container
        self._limits = limits
        self._lock = threading.Lock()
        self._live = 0
        self._oom_kills = 0
        self.name = name
        self.sockets = sockets

    @property
    def isolation(self) -> Isolation:
        return docker_isolation(self._limits)

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
        """See rtb.sandbox.Sandbox.execute."""
        started = time.monotonic()
        mark = uuid.uuid4().hex
        oom, over = False, False

        def wrote_too_much() -> bool:
            nonlocal over
            over = self._written_bytes() > self._limits.disk_bytes
            return over

        with self._counted(), OutputFile(output, self._limits.output_bytes) as kept:
            code = self._stream(
                ["/bin/sh", "-c", _START, "rtb", cwd or TREE, *argv],
                kept.write,
                deadline=started + timeout_seconds,
                env={**(env or {}), "RTB_COMMAND": mark},
                stdin=stdin,
                as_root=as_root,
                on_timeout=lambda: self._clean_up(mark, as_root),
                too_much=wrote_too_much,
            )
            seconds = time.monotonic() - started
            if code is not None and (code != 0 or self._others()):
                oom = self._clean_up(mark, as_root)
        if over and code is None:
            return ExecResult(-signal.SIGKILL, False, kept.written, kept.truncated, seconds, oom, disk_killed=True)
        return ExecResult(_signal(code), code is None, kept.written, kept.truncated, seconds, oom)

    def write(self, root: str, change: Change) -> None:
        """See rtb.sandbox.Sandbox.write."""
        if change.delete:
            self._delete(root, change.delete)
        if change.write:
            self._put(root, pack_files(change.write, USER_ID))

    def read(self, path: str, *, limit_bytes: int) -> bytes | None:
        """See rtb.sandbox.Sandbox.read."""
        try:
            path.encode()
        except UnicodeEncodeError:
            return self._read_odd(path, limit_bytes)
        try:
            data = self._engine.get(self._container, path, limit_bytes)
        except MachineError as error:
            if not isinstance(error, OutOfSpace):
                self._check_alive()  # a container that is dying refuses in many words
            raise
        if data is None:
            self._check_alive()  # a container that is being removed has no files either
        return data

    def _read_odd(self, path: str, limit_bytes: int) -> bytes | None:
        """The engine gives an empty archive for a name that is not UTF-8; as an argument it cannot be sent at all."""
        found = bytearray()

        def take(part: memoryview) -> None:
            if len(found) + len(part) > limit_bytes:
                raise OutOfSpace(f"{path!r} in {self.name} is over the limit of {limit_bytes} bytes")
            found.extend(part)

        command = ["/bin/sh", "-c", _READ_ODD]
        code = self._stream(command, take, deadline=time.monotonic() + SERVICE_SECONDS, stdin=os.fsencode(path))
        return bytes(found) if code == 0 else None

    def kill(self) -> None:
        """See rtb.sandbox.Sandbox.kill."""
        with connect() as engine:  # a connection of its own: another thread waits on ours
            engine.remove(self._container)

    def _put(self, root: str, archive: bytes) -> None:
        """A folder that is not there is made first, by the user who will own it."""
        try:
            self._engine.put(self._container, root, archive)
        except NotThere:
            self._check_alive()
            self._run_quietly(["mkdir", "-p", "--", root], f"the folder {root} cannot be made in {self.name}")
            self._engine.put(self._container, root, archive)

    def _delete(self, root: str, paths: Sequence[str]) -> None:
        gone = b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths)
        command = ["/bin/sh", "-c", _START, "rtb", root, "/bin/sh", "-c", _DELETE]
        self._run_quietly(command, f"{len(paths)} paths cannot be deleted in {root} of {self.name}", gone)

    def _run_quietly(self, command: Sequence[str], problem: str, stdin: bytes | None = None) -> None:
        said = bytearray()
        code = self._stream(command, said.extend, deadline=time.monotonic() + SERVICE_SECONDS, stdin=stdin)
        if code != 0:
            raise MachineError(f"{problem}: {bytes(said[-500:]).decode(errors='replace')}")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._live += 1
        try:
            yield
        finally:
            with self._lock:
                self._live -= 1

    def _written_bytes(self) -> int:
        """In the container's own layer and in the folder that it shares with us."""
        shared = 0
        for folder, _, names in os.walk(self.sockets.outside):
            for name in names:
                with contextlib.suppress(OSError):  # gone since it was listed
                    shared += Path(folder, name).lstat().st_blocks * 512
        return shared + self._engine.written_bytes(self._container)

    def _others(self) -> bool:
        """Whether more runs in the container than our two own processes (init and cat)."""
        return self._engine.process_count(self._container) > 2

    def _clean_up(self, mark: str, as_root: bool) -> bool:
        """Kill what a command left running. Returns whether the memory limit killed something since the last look."""
        with self._lock:
            alone = self._live == 1
        kill = _KILL_USER if alone and not as_root else _KILL_MARKED
        said = self._end_processes(["/bin/sh", "-c", _COUNT_OOM + kill, "rtb", mark], as_root)
        kills = _oom_kills(said)
        with self._lock:
            new, self._oom_kills = kills > self._oom_kills, max(kills, self._oom_kills)
        return new

    def _end_processes(self, command: Sequence[str], as_root: bool) -> bytes:
        """Run a killing command; what it says. A fork bomb leaves no process for it: then the limit is lifted for a
        moment, each time further."""
        limit = self._limits.pids
        problem: MachineError | None = None
        for spare in (0, 64, 1024):
            said = bytearray()
            if spare and limit is not None:
                self._engine.set_pids_limit(self._container, limit + spare)
            try:
                code = self._stream(command, said.extend, deadline=time.monotonic() + 20, as_root=as_root)
                if code == 0:
                    return bytes(said)
            except (SandboxGone, EngineUnreachable, OutOfSpace):
                raise
            except MachineError as error:
                problem = error
            finally:
                if spare and limit is not None:
                    self._engine.set_pids_limit(self._container, limit)
        self._check_alive()
        raise SandboxGone(f"processes in {self.name} could not be ended") from problem

    def _check_alive(self) -> None:
        """Raises SandboxGone, with the reason where the engine still knows it."""
        try:
            state = self._engine.state(self._container)
        except SandboxGone as error:
            raise SandboxGone(f"{self.name} is gone: killed or removed from outside, or out of memory") from error
        if not state.running:
            why = "out of memory" if state.oom_killed else f"exit code {state.exit_code}"
            raise SandboxGone(f"{self.name} has ended while work in it was not done ({why})")

    def _stream(
        self,
        command: Sequence[str],
        take: Callable[[memoryview], object],
        *,
        deadline: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        as_root: bool = False,
        on_timeout: Callable[[], object] | None = None,
        too_much: Callable[[], bool] | None = None,
    ) -> int | None:
        """Run and pass on the output. `too_much` is asked now and then: true ends the command. Returns the exit
        code, None after the deadline or such an end. Raises SandboxGone."""
        user = "0:0" if as_root else f"{USER_ID}:{USER_ID}"
        try:
            running, connection = self._engine.start(self._container, command, user=user, env=env or {}, stdin=stdin)
        except (SandboxGone, EngineUnreachable, OutOfSpace):
            raise
        except MachineError:
            self._check_alive()  # a container that is dying refuses in many words
            raise
        frames = Frames()
        finished = False
        look = time.monotonic() + DISK_LOOK_SECONDS
        with contextlib.closing(connection):
            while not finished and (remaining := deadline - time.monotonic()) > 0:
                if too_much is not None and time.monotonic() > look:
                    if too_much():
                        break
                    look = time.monotonic() + DISK_LOOK_SECONDS
                data = connection.receive(min(remaining, IDLE_SECONDS))
                if data is None:
                    # Something that holds the output open must not hold us: ask for the command itself.
                    finished = not self._engine.exit_code(running)[0]
                    # It may have written and ended between the wait and the question: read what is there.
                    while finished and (data := connection.receive(IDLE_SECONDS)):
                        for part in frames.feed(data):
                            take(part)
                elif data:
                    for part in frames.feed(data):
                        take(part)
                else:
                    finished = True
            if finished:
                code = self._exit_code(running, deadline)
                if code is not None:
                    return code
            self._check_alive()
            if on_timeout:
                on_timeout()
            stop = time.monotonic() + 2.0
            while time.monotonic() < stop and (data := connection.receive(0.2)):
                for part in frames.feed(data):
                    take(part)
        return None

    def _exit_code(self, command: str, deadline: float) -> int | None:
        """The stream ends a little before the engine knows the exit code; a command may also close its output early.
        None after the deadline."""
        pause = 0.002
        while True:
            running, code = self._engine.exit_code(command)
            if not running:
                # A container that dies takes its commands along, with a code that looks like their own, or none.
                if code is None or code > 128:
                    self._check_alive()
                if code is not None:
                    return code
            if time.monotonic() + pause > deadline:
                return None
            time.sleep(pause)
            pause = min(pause * 2, 0.25)


def _signal(code: int | None) -> int | None:
    """128 + N, as a shell and the engine report a death by signal N, becomes −N."""
    if code is not None and 128 < code <= 128 + int(signal.SIGRTMAX):
        return 128 - code
    return code


def _oom_kills(text: bytes) -> int:
    """The counter `oom_kill` of either cgroup version."""
    for line in text.splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
