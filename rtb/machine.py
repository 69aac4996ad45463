"""The machine that numbers come from: processor, memory, GPUs, versions. EDGE nvidia-smi."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rtb import __version__
from rtb.run import Machine

GIB = 1024**3


def gpus() -> tuple[tuple[str, ...], str | None]:
    """Names of the GPUs and the driver's version; nothing without nvidia-smi or without a device."""
    said = _nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader")
    pairs = [line.rsplit(",", 1) for line in said.splitlines() if "," in line]
    return tuple(name.strip() for name, _ in pairs), pairs[0][1].strip() if pairs else None


@dataclass(frozen=True)
class Card:
    """A GPU. `capability`: NVIDIA's compute capability, such as 9.0."""

    name: str
    capability: float
    memory_gib: float


def cards() -> tuple[tuple[Card, ...], str | None]:
    """The GPUs, and the newest CUDA that their driver serves; nothing without nvidia-smi or without a device."""
    listed = _nvidia_smi("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    found = []
    for line in listed.splitlines():
        words = [word.strip() for word in line.rsplit(",", 2)]
        with contextlib.suppress(ValueError):  # an old nvidia-smi does not know the capability
            found.append(Card(words[0], float(words[1]), float(words[2]) * 1024**2 / GIB))
    said = re.search(r"CUDA Version:\s*([\d.]+)", _nvidia_smi()) if found else None
    return tuple(found), said[1] if said else None


def _nvidia_smi(*words: str) -> str:
    """What nvidia-smi says, or nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


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
