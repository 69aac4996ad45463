"""Environments: from a task to a place where its commands can run. What harness and scaffold use of Docker and of the
local sandbox is here; they import neither.

    prepared = environment.prepare(entry, environment.choose_kind(None))
    with environment.session() as session, session.open_sandbox(prepared, run="a run's id") as sandbox:
        sandbox.execute(["python", "-m", "pytest"], output=Path("log"), timeout_seconds=60)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rtb import machine
from rtb.errors import EngineUnreachable, ExpectedError, MachineError
from rtb.recipe import Recipe, read_recipe
from rtb.sandbox import Isolation, Limits, Sandbox
from rtb.storage import cache_folder
from rtb.suite import TaskEntry

Kind = Literal["docker", "local"]
Say = Callable[[str], None]
# Where a host keeps its driver and compiler: a clean environment would hide them from who has leased a GPU.
CPU_LOOK_SECONDS = 1.5
STEADY_RATIO = 1.15  # above it, gold against gold is wider than any difference worth deciding
GPU_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "CC")
NOT_ISOLATED = {
    "network": "commands can reach the network",
    "processes": "a command's processes are only found by their parents and an environment variable",
    "files": "commands can read the host's files",
    "memory": "no limit on memory",
    "disk": "no limit on the disk but for each single file",
    "user": "commands run as the user who runs rtb",
}


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready. `digest` names it whole; equal digests mean equal environments.

    `image` is set for docker; `tree`, `venv`, `path` (the command's PATH) and `hidden` for local: folders of this
    machine that hold gold patches, held-out tests or later commits, and that a command must not read.
    """

    kind: Kind
    digest: str
    name: str
    env: Mapping[str, str]
    image: str | None = None
    tree: Path | None = None
    venv: Path | None = None
    path: str = ""
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Fact:
    """One line of `rtb doctor`."""

    what: str
    ok: bool
    found: str
    advice: str = ""


def choose_kind(wanted: str | None) -> Kind:
    """The sandbox that the user names, else docker where an engine answers, else local.

    Raises ExpectedError for another word, EngineUnreachable when docker is wanted and does not answer.
    """
    if wanted == "local":
        return "local"
    if wanted not in (None, "docker"):
        raise ExpectedError(f"--sandbox {wanted!r}: there are docker and local")
    from rtb.container import connect

    try:
        with connect():
            return "docker"
    except EngineUnreachable:
        if wanted == "docker":
            raise
        return "local"


def prepare(entry: TaskEntry, kind: Kind, *, rebuild: bool = False, progress: Say | None = None) -> Prepared:
    """Make a task's environment, or find it. The same call from several processes makes it once.

    Raises BuildFailed, LeakFound, OutOfSpace, EngineUnreachable; ExpectedError for a task that names missing files.
    """
    recipe = read_recipe(entry)
    say = progress or _silent
    if kind == "docker":
        return _prepare_image(entry, recipe, rebuild, say)
    from rtb.local_environment import build_local

    made = build_local(entry, recipe, rebuild=rebuild, progress=say)
    env = {"VIRTUAL_ENV": str(made.venv), **recipe.environment.env}
    name = f"local:{made.digest[:12]} (Python {made.python})"
    return Prepared(
        "local", made.digest, name, env, tree=made.tree, venv=made.venv, path=made.path, hidden=_answers(entry)
    )


# Folders of the cache that hold answers.
_ANSWERS = ("bases", "devices", "gold-answers", "mined", "mirrors", "patches", "repositories", "series")


def _answers(entry: TaskEntry) -> tuple[Path, ...]:
    """Where the answers to a task lie on this machine: the suite, the history it may be kept in, our cache."""
    histories = [parent / ".git" for parent in (entry.suite_path, *entry.suite_path.parents)]
    caches = [cache_folder() / name for name in _ANSWERS]
    return (entry.suite_path, *(folder for folder in histories if folder.is_dir()), *caches)


def _prepare_image(entry: TaskEntry, recipe: Recipe, rebuild: bool, say: Say) -> Prepared:
    from rtb.container import connect
    from rtb.image import build_image, image_name

    with connect() as engine:
        digest = build_image(engine, entry, recipe, rebuild=rebuild, progress=say)
    name = image_name(digest)
    return Prepared("docker", digest, name, dict(recipe.environment.env), image=name)


@contextmanager
def open_sandbox(
    prepared: Prepared,
    *,
    limits: Limits | None = None,
    run: str = "",
    devices: Sequence[str] = (),
    hidden: Sequence[Path] = (),
) -> Iterator[Sandbox]:
    """A fresh sandbox with the task's tree; all of it is gone at the end. `devices`: ids of the GPUs it may use.
    `hidden`: more folders that a local command must not read.

    Raises what the sandbox raises.
    """
    limits = limits or Limits()
    env = dict(prepared.env)
    if not devices:
        # Without a leased GPU, Triton's interpreter runs the kernels on the CPU.
        env.setdefault("TRITON_INTERPRET", "1")
    if prepared.kind == "docker":
        from rtb.docker_sandbox import open_docker_sandbox

        assert prepared.image is not None
        with open_docker_sandbox(prepared.image, env=env, limits=limits, run=run, devices=devices) as container:
            yield container
        return
    from rtb.local_sandbox import open_local_sandbox

    assert prepared.tree is not None
    env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(devices))
    if devices:
        env = {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ} | env
    shared = [folder for folder in (prepared.venv, prepared.tree) if folder]
    with open_local_sandbox(
        prepared.tree,
        env=env,
        path=prepared.path,
        limits=limits,
        shared=shared,
        hidden=(*prepared.hidden, *hidden),
    ) as processes:
        yield processes


class Session:
    """The sandboxes that are open now, so that Ctrl-C can end them all. Made by `session`."""

    def __init__(self, hidden: Sequence[Path] = ()) -> None:
        self._hidden = tuple(hidden)
        self._lock = threading.Lock()
        self._open: list[Sandbox] = []
        self._interrupted = False

    @contextmanager
    def open_sandbox(
        self, prepared: Prepared, *, limits: Limits | None = None, run: str = "", devices: Sequence[str] = ()
    ) -> Iterator[Sandbox]:
        """Like `open_sandbox`. Raises Interrupted once `interrupt` was called."""
        with open_sandbox(prepared, limits=limits, run=run, devices=devices, hidden=self._hidden) as sandbox:
            with self._lock:
                self._open.append(sandbox)
                late = self._interrupted
            try:
                if late:
                    sandbox.kill()
                yield sandbox
            finally:
                with self._lock:
                    self._open.remove(sandbox)

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called: a machine fault seen from then on is the interrupt's."""
        return self._interrupted

    def interrupt(self) -> None:
        """End what runs in every open sandbox; whoever waits for it gets SandboxGone. Safe from any thread."""
        with self._lock:
            self._interrupted = True
            running = list(self._open)
        for sandbox in running:
            sandbox.kill()


@contextmanager
def session(hidden: Sequence[Path] = ()) -> Iterator[Session]:
    """For the length of a run. Removes what dead runs of ours have left, at the start. `hidden`: see open_sandbox."""
    with contextlib.suppress(EngineUnreachable):
        remove_leftovers()
    made = Session(hidden)
    try:
        yield made
    finally:
        made.interrupt()


def remove_leftovers() -> int:
    """Containers of ours whose process has died. Returns how many were removed. Raises EngineUnreachable."""
    from rtb.container import connect

    with connect() as engine:
        return engine.remove_leftovers()


def isolation(kind: Kind, limits: Limits | None = None) -> Isolation:
    """What a sandbox of this kind keeps apart on this machine."""
    limits = limits or Limits()
    if kind == "docker":
        from rtb.docker_sandbox import docker_isolation

        return docker_isolation(limits)
    from rtb.local_sandbox import local_isolation

    return local_isolation(limits)


def not_isolated(kind: Kind) -> tuple[str, ...]:
    """What it does not keep apart, in words for the run record."""
    facts = isolation(kind).record()
    return tuple(text for name, text in NOT_ISOLATED.items() if not facts[name])


def versions(kind: Kind) -> dict[str, str]:
    """Versions of what sandboxes of this kind stand on."""
    if kind == "local":
        return {}
    from rtb.container import connect

    with connect() as engine:
        return {"docker": str(engine.facts()["version"])}


def diagnose() -> list[Fact]:
    """What this machine can do. Never raises for something that is missing: that is the answer."""
    git = machine.git_version()
    names, driver = machine.gpus()
    free = machine.free_bytes(cache_folder())
    local = not_isolated("local")
    return [
        *_engine_facts(),
        _cpu_fact(machine.loop_times(CPU_LOOK_SECONDS)),
        Fact("local sandbox", True, "; ".join(local), "fine for trusted code; use Docker for a model's"),
        Fact("git", git is not None, git or "none", "install git"),
        Fact(
            "GPU", bool(names), ", ".join(names) + f" (driver {driver})" if names else "none", "CPU tasks run without"
        ),
        Fact("disk", free > 20e9, f"{free / 1e9:.0f} GB free in {cache_folder()}", "environments need about 20 GB"),
        Fact("bash", shutil.which("bash") is not None, shutil.which("bash") or "none", "needed by install steps"),
    ]


def diagnose_tasks(entries: Sequence[TaskEntry]) -> list[Fact]:
    """Whether each task can run on this machine. Raises ExpectedError for an RTB_LOCAL_PYTHON that is none."""
    from rtb.local_environment import host_python
    from rtb.needs import Host, unmet

    cards, cuda = machine.cards()
    host = Host(cards, cuda, host_python())
    found = []
    for entry in entries:
        lacking = unmet(entry.task.environment, host)
        needed = entry.task.environment.gpu.count
        has = f"needs {needed} GPU(s), and they are here" if needed else "runs on a CPU"
        advice = "run it on another host, or name another Python or driver" if lacking else ""
        found.append(Fact(entry.instance_id, not lacking, "; ".join(lacking) or has, advice))
    return found


def _cpu_fact(times: list[float]) -> Fact:
    fast, slow = times[len(times) // 10], times[len(times) * 9 // 10]
    found = f"a fixed loop takes {fast:.1f} to {slow:.1f} ms (first and last decile of {len(times)})"
    what = "latency needs quiet cores of its own: stop other work, pin cores, no shared virtual machine"
    return Fact("CPU speed", slow <= STEADY_RATIO * fast, found, what)


def _engine_facts() -> list[Fact]:
    from rtb.container import connect
    from rtb.image import LOCAL_BASE

    try:
        with connect() as engine:
            said = engine.facts()
            base = engine.image_id(LOCAL_BASE)
    except MachineError as error:
        return [Fact("Docker", False, str(error), "scripts/setup-docker starts one on Debian; local works without")]
    gpu = "nvidia" in said["runtimes"]
    make = "pulled at the first build, or made by scripts/make-base-image"
    return [
        Fact("Docker", True, f"{said['version']}, {said['storage']}, cgroup v{said['cgroup_version']}"),
        Fact("CPU base image", base is not None, LOCAL_BASE if base else "not made", make),
        Fact("GPUs in Docker", gpu, "runtime nvidia" if gpu else "no runtime nvidia", "NVIDIA Container Toolkit"),
    ]


def _silent(_text: str) -> None:
    """No progress wanted."""
