"""The faults: each breaks a real run at several moments and yields what came of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.bench import REFERENCE, Bench, Trial, docker, wait_for

Process = subprocess.Popen[str]
Battery = Callable[[Bench, int, Random], Iterator[Trial]]


@dataclass(frozen=True)
class Fault:
    """`run` yields a trial for each moment; `sandboxes` are those in which the fault can happen."""

    name: str
    run: Battery
    sandboxes: tuple[str, ...] = ("docker", "local")


class NotHere(Exception):
    """This machine cannot have the fault (no root, no compiler, no control groups)."""


def killed_hard(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """kill -9 of rtb itself."""
    for _ in range(moments):
        delay = chance.uniform(0.0, bench.seconds)

        def kill(process: Process, delay: float = delay) -> None:
            time.sleep(delay)
            process.kill()

        yield bench.trial(kill, killed=True)


def interrupted(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """Ctrl-C, or an end by the machine's shutdown."""
    for number in range(moments):
        run_id = f"chaos-{uuid.uuid4().hex[:10]}"
        delay = chance.uniform(0.0, bench.seconds * 0.8)
        how = (signal.SIGINT, signal.SIGTERM)[number % 2]

        def stop(process: Process, run_id: str = run_id, delay: float = delay, how: signal.Signals = how) -> None:
            # An interpreter that is starting has no handlers yet, and one that ends has none any more: it dies of the
            # signal itself, which a shell tells as 130 or 143.
            wait_for(lambda: (bench.runs / run_id / "run.json").exists() or process.poll() is not None)
            time.sleep(delay)
            process.send_signal(how)

        heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
        yield bench.trial(stop, run_id=run_id, inside=heed, codes=(0, 4, 130, 143, -signal.SIGTERM, -signal.SIGINT))


def _containers(run_id: str) -> list[str]:
    return docker("ps", "-q", "--filter", f"label=rtb.run={run_id}")


def container_killed(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """A container that somebody kills or removes."""
    for number in range(moments):
        yield _on_container(bench, chance, (("kill",), ("rm", "-f"))[number % 2])


def container_paused(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """A command that hangs because its container was frozen."""
    for _ in range(moments):
        yield _on_container(bench, chance, ("pause",))


def _on_container(bench: Bench, chance: Random, action: tuple[str, ...]) -> Trial:
    run_id = f"chaos-{uuid.uuid4().hex[:10]}"
    delay = chance.uniform(0.0, 1.5)

    def act(process: Process) -> None:
        found = wait_for(lambda: process.poll() is not None or _containers(run_id))
        time.sleep(delay)
        if found is not True:
            subprocess.run(["docker", *action, *found], capture_output=True, timeout=120, check=False)

    return bench.trial(act, run_id=run_id)


def local_processes_killed(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """The first process of a local sandbox is killed, as the kernel does when memory runs out."""
    for _ in range(moments):
        delay = chance.uniform(0.0, 0.5)

        def kill(process: Process, delay: float = delay) -> None:
            found = wait_for(lambda: process.poll() is not None or _children(process.pid, "local_init"))
            time.sleep(delay)
            for pid in found if found is not True else ():
                _signal(pid, signal.SIGKILL)

        yield bench.trial(kill)


def _children(parent: int, word: str) -> list[int]:
    listing = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True, timeout=30)
    rows = [line.split(None, 2) for line in listing.stdout.splitlines()[1:]]
    return [int(row[0]) for row in rows if row[1] == str(parent) and len(row) > 2 and word in row[2]]


def _signal(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def hung_test(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """A patch whose code never returns: that one is the patch's fault, and nobody else's."""
    expected = REFERENCE | {next(iter(REFERENCE)): "unresolved"}
    for _ in range(min(moments, 2)):
        yield bench.trial(lambda _: None, predictions="hang.jsonl", expected=expected)


@contextmanager
def _small_disk(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """A file system of so many bytes at `folder`; what is yielded makes it large."""
    if os.geteuid() != 0:
        raise NotHere("a small disk needs root")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "rtb-chaos", str(folder)], check=False)
    if done.returncode != 0:
        raise NotHere("a small disk needs the right to mount")
    grow = ["mount", "-o", "remount,size=2g", str(folder)]
    try:
        yield lambda: subprocess.run(grow, check=True) and None  # type: ignore[func-returns-value]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _disk_full(name: str, low: int, high: int) -> Battery:
    def battery(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
        for _ in range(moments):
            size = int(low * (high / low) ** chance.random()) // 4096 * 4096
            folder = {"runs": bench.runs, "tmp": bench.temporary, "cache": bench.root / "cache"}[name]
            aside = folder.with_name(f"{folder.name}.aside")
            if name == "tmp":  # what belongs to others must be seen there too
                shutil.copytree(folder, aside)
            with _small_disk(folder, size) as grow:
                if name == "tmp":
                    shutil.copytree(aside, folder, dirs_exist_ok=True)
                    shutil.rmtree(aside)
                trial = bench.trial(lambda _: None, mend=grow)
                trial.ended += f" ({size // 1024} kB)"
                yield trial

    return battery


def read_only(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """The folder of runs cannot be written."""
    if os.geteuid() != 0:
        raise NotHere("a read-only mount needs root")
    for number in range(min(moments, 2)):
        run_id = f"chaos-{uuid.uuid4().hex[:10]}"
        place = bench.runs if number else bench.runs / run_id
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        yield bench.trial(
            lambda _: None,
            run_id=run_id,
            mend=lambda place=place: subprocess.run(["umount", str(place)], check=True),  # type: ignore[misc]
            codes=(1, 4),
        )


def twice_at_once(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """A second command with the same run id while the first one works."""
    for _ in range(min(moments, 5)):
        run_id = f"chaos-{uuid.uuid4().hex[:10]}"
        refused: list[str] = []

        def second(
            process: Process,
            run_id: str = run_id,
            refused: list[str] = refused,
            delay: float = chance.uniform(0.0, bench.seconds / 2),
        ) -> None:
            wait_for(lambda: (bench.runs / run_id / "run.json").exists() or process.poll() is not None)
            time.sleep(delay)
            other = bench.start(bench.command(run_id))
            said = other.communicate(timeout=300)[1]
            busy = process.poll() is None
            if busy and (other.returncode != 1 or "another process" not in said):
                refused.append(f"the second command: exit {other.returncode}: {said[-300:]}")

        trial = bench.trial(second, run_id=run_id)
        trial.faults += refused
        yield trial


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) {
    static struct timespec first; struct timespec now;
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_MONOTONIC, &now);
    if (!first.tv_sec) first = now;
    long after = atol(getenv("RTB_CHAOS_AFTER_MS")), by = atol(getenv("RTB_CHAOS_JUMP_S"));
    return (now.tv_sec - first.tv_sec) * 1000 + (now.tv_nsec - first.tv_nsec) / 1000000 >= after ? by : 0;
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += jump();
    return code;
}
time_t time(time_t *at) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def clock_jump(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """The wall clock of rtb jumps an hour, a day or ten years, forth or back, in the middle of a run."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NotHere("a jumping clock needs a C compiler")
    source, library = bench.root / "clock.c", bench.root / "clock.so"
    source.write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    for number in range(moments):
        jump = (-3600, 86400, -86400, 315360000, -315360000)[number % 5]
        after = int(chance.uniform(0, bench.seconds * 1000))
        moved = {"LD_PRELOAD": str(library), "RTB_CHAOS_AFTER_MS": str(after), "RTB_CHAOS_JUMP_S": str(jump)}
        yield bench.trial(lambda _: None, env=moved)


@contextmanager
def _control_group(kind: str, limit: str, value: int) -> Iterator[Path]:
    """A control group (version 1) of our own; a process that is put into it takes its children along."""
    home = Path("/sys/fs/cgroup") / kind / f"rtb-chaos-{uuid.uuid4().hex[:8]}"
    try:
        home.mkdir()
        (home / limit).write_text(str(value))
    except OSError as error:
        raise NotHere(f"no control group of {kind} can be made here ({error.strerror})") from error
    try:
        yield home
    finally:
        wait_for(lambda: not (home / "cgroup.procs").read_text(), 10)
        home.rmdir()


def _limited(kind: str, limit: str, low: int, high: int) -> Battery:
    def battery(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
        for _ in range(moments):
            value = int(low * (high / low) ** chance.random())
            with _control_group(kind, limit, value) as home:

                def enter(home: Path = home) -> None:
                    (home / "cgroup.procs").write_text(str(os.getpid()))

                def lift(home: Path = home) -> None:
                    (home / limit).write_text("-1" if kind == "memory" else "max")

                trial = bench.trial(lambda _: None, inside=enter, mend=lift, killed=kind == "memory")
                trial.ended += f" ({value})"
                yield trial

    return battery


def damaged_files(bench: Bench, moments: int, chance: Random) -> Iterator[Trial]:
    """A file of an earlier run is cut at any byte, emptied, missing, or not what it was."""
    for _ in range(moments):
        run_id = f"chaos-{uuid.uuid4().hex[:10]}"
        subprocess.run(bench.command(run_id), env=bench.env, cwd=bench.root, capture_output=True, check=True)
        files = sorted(path for path in (bench.runs / run_id).rglob("*") if path.is_file() and path.name != ".lock")
        path = chance.choice(files)
        data = path.read_bytes()
        how = chance.choice(("cut", "cut", "gone", "garbage"))
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(data[: chance.randrange(len(data) or 1)] if how == "cut" else os.urandom(len(data)))
        report = [*bench.command(run_id)[:3], "report", str(bench.runs / run_id)]
        seen = subprocess.run(report, env=bench.env, cwd=bench.root, capture_output=True, text=True, check=False)
        trial = bench.trial(lambda _: None, run_id=run_id)
        if "Traceback" in seen.stderr or seen.returncode not in (0, 1, 4):
            trial.faults.append(f"rtb report: exit {seen.returncode}: {seen.stderr[-500:]}")
        trial.faults = [f"{path.relative_to(bench.runs / run_id)} {how}: {text}" for text in trial.faults]
        yield trial


FAULTS = (
    Fault("kill -9 of rtb", killed_hard),
    Fault("Ctrl-C or SIGTERM", interrupted),
    Fault("container killed or removed", container_killed, ("docker",)),
    Fault("command hangs: container frozen", container_paused, ("docker",)),
    Fault("sandbox's first process killed", local_processes_killed, ("local",)),
    Fault("test hangs (the patch's own fault)", hung_test),
    Fault("disk full: run folder", _disk_full("runs", 4096, 400 * 1024)),
    # Up to what a sandbox wants to have free, and a little over it.
    Fault("disk full: temporary files", _disk_full("tmp", 4096, 18 * 1024**2)),
    Fault("disk full: building the environment", _disk_full("cache", 64 * 1024, 30 * 1024**2), ("local",)),
    Fault("run folder read-only", read_only),
    Fault("two runs with one id", twice_at_once),
    Fault("clock jumps", clock_jump),
    Fault("out of memory (rtb and what it starts)", _limited("memory", "memory.limit_in_bytes", 24 << 20, 120 << 20)),
    Fault("no more processes", _limited("pids", "pids.max", 1, 24)),
    Fault("file of an earlier run damaged", damaged_files),
)
