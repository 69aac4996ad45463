"""The machine that numbers come from: processor, memory, GPUs, versions. EDGE nvidia-smi."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rtb import __version__
from rtb.run import Machine

GIB = 1024**3


def gpus() -> tuple[tuple[str, ...], str | None]:
    """Names of the GPUs and the driver's version; nothing without nvidia-smi or without a device."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), None
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (), None
    if done.returncode != 0:
        return (), None
    pairs = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
    return tuple(name.strip() for name, _ in pairs), pairs[0][1].strip() if pairs else None


def processor() -> str:
    """The processor's model name, as /proc/cpuinfo gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def this_machine() -> Machine:
    """What is recorded with every run."""
    names, driver = gpus()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=names,
        driver=driver,
    )


def git_version() -> str | None:
    """The installed git, or None."""
    program = shutil.which("git")
    if program is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().removeprefix("git version ") or None


def versions() -> dict[str, str]:
    """Versions of what decides how a run goes."""
    found = {"rtb": __version__, "python": sys.version.split()[0], "git": git_version() or "none"}
    return found


def free_bytes(path: Path) -> int:
    """Free disk space where a path is, or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def loop_times(seconds: float) -> list[float]:
    """Times of one fixed loop of arithmetic, in milliseconds, sorted, over some seconds; each takes a few.

    On a core of one's own they hardly differ. Two levels far apart mean that somebody else shares the core, and then
    no latency bound by the CPU can be measured here.
    """
    times = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        sum(number * number for number in range(40_000))
        times.append((time.perf_counter() - begun) * 1e3)
    return sorted(times)
