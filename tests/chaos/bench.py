"""A place where machines are broken on purpose: a small suite, the verdicts of an undisturbed run, and what is ours.

Everything lies in one folder; nothing outside it is touched, but for containers of the engine that DOCKER_HOST names.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import pocketsuite
from tests.pocketsuite import patch, right, write_predictions

NAMES = [f"rtb__pocket-{number}" for number in (1, 2, 3)]
SLOW = "import time\n\n\ndef f1(x):\n    time.sleep(0.3)\n    return 2 * x"
CUT_PATCH = right(3)[: len(right(3)) // 2]
REFERENCE = dict(zip(NAMES, ("resolved", "unresolved", "apply_failed"), strict=True))
SECONDS = 300.0


@dataclass
class Trial:
    """One fault, once. `faults` says what broke the promise; `ended` how the disturbed command came out."""

    ended: str
    faults: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """`env` points rtb at the suite, a cache that is warm, and a folder for temporary files that nobody else uses."""

    root: Path
    sandbox: str
    env: dict[str, str]
    seconds: float = 0.0  # of an undisturbed run

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def command(self, run_id: str, predictions: str = "p.jsonl", **more: str) -> list[str]:
        values = {"workers": "2", "retries": "2", "out": str(self.runs), **more}
        return [
            sys.executable, "-m", "rtb.cli", "evaluate", "--predictions", str(self.root / predictions),
            "--suite", "pocket", "--sandbox", self.sandbox, "--run-id", run_id, "--plain",
            *(word for name, value in values.items() for word in (f"--{name}", value)),
        ]  # fmt: skip

    def start(
        self, command: list[str], env: Mapping[str, str] | None = None, inside: Callable[[], object] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env={**self.env, **(env or {})}, cwd=self.root, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True, preexec_fn=inside,
        )  # fmt: skip

    def outcomes(self, run_id: str) -> dict[str, str]:
        """What the run's verdicts say. A verdict that is not there, or not whole, says nothing."""
        found = {}
        for path in (self.runs / run_id).glob("*/verdict.json"):
            try:
                found[path.parent.name] = str(json.loads(path.read_bytes())["outcome"])
            except ValueError:
                found[path.parent.name] = "broken verdict.json"
        return found

    def trial(
        self,
        break_it: Callable[[subprocess.Popen[str]], object],
        *,
        run_id: str | None = None,
        mend: Callable[[], object] = lambda: None,
        env: Mapping[str, str] | None = None,
        inside: Callable[[], object] | None = None,
        killed: bool = False,
        expected: Mapping[str, str] = REFERENCE,
        predictions: str = "p.jsonl",
        codes: tuple[int, ...] = (0, 4),
    ) -> Trial:
        """Run, break it, mend it, run the same command again; what came of it and what is left behind.

        `killed`: rtb itself may die of signal 9, and then says nothing.
        """
        run_id = run_id or f"chaos-{uuid.uuid4().hex[:10]}"
        command = self.command(run_id, predictions)
        process = self.start(command, env, inside)
        try:
            break_it(process)
            said = process.communicate(timeout=SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
            return Trial("hung", [f"still running after {SECONDS:g} s: {said[-300:]}"])
        finally:
            mend()
        trial = Trial(f"exit {process.returncode}")
        for words in ("Traceback", "a fault of rtb itself"):
            if words in said:
                trial.faults.append(f"a traceback: ...{said[max(0, said.index(words) - 600) :][:2000]}")
        if process.returncode not in codes and not (killed and process.returncode == -signal.SIGKILL):
            trial.faults.append(f"exit code {process.returncode}: {said[-500:]}")
        first = self.outcomes(run_id)
        wrong = {name: got for name, got in first.items() if got not in (expected.get(name), "error")}
        if wrong:
            trial.faults.append(f"wrong verdicts under the fault: {wrong}")
        if process.returncode == 0 and first != expected:
            trial.faults.append(f"exit code 0 without all verdicts: {first}")
        self._finish(command, run_id, expected, trial)
        trial.left = self.left_behind(run_id)
        shutil.rmtree(self.runs / run_id, ignore_errors=True)
        return trial

    def _finish(self, command: list[str], run_id: str, expected: Mapping[str, str], trial: Trial) -> None:
        """The same command, on a machine that works again, must give the verdicts of an undisturbed run."""
        again = self.start(command)
        try:
            said = again.communicate(timeout=SECONDS)[1]
        except subprocess.TimeoutExpired:
            again.kill()
            again.communicate()
            trial.faults.append("the same command hung")
            return
        if again.returncode != 0 or self.outcomes(run_id) != expected:
            trial.faults.append(
                f"the same command did not finish it: exit {again.returncode}, {self.outcomes(run_id)}: {said[-800:]}"
            )

    def left_behind(self, run_id: str) -> list[str]:
        """Containers, processes and files that a finished run should not have left."""
        found = [f"file {path}" for path in self.temporary.iterdir() if path.name != "of-others"]
        strange = [path for path in (self.runs / run_id).rglob(".*") if path.name != ".lock"]
        strange += (self.runs / run_id).rglob("*.part")
        found += [f"file {path}" for path in strange]
        found += [f"process {line}" for line in self.processes()]
        if self.sandbox == "docker":
            found += [f"container {name}" for name in docker("ps", "-aq", "--filter", f"label=rtb.run={run_id}")]
        return found

    def processes(self) -> list[str]:
        """Living processes that work in our folder, but for this one and its parents."""
        wanted = os.fsencode(self.root)
        found = []
        deadline = time.monotonic() + 5.0  # what was killed a moment ago may take a moment to go
        while True:
            found = [text for pid, text in _command_lines() if wanted in _facts(pid)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def _command_lines() -> Iterator[tuple[int, str]]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if line and int(place.name) not in (os.getpid(), os.getppid()):
            yield int(place.name), f"{place.name}: {line[:200]}"


def _facts(pid: int) -> bytes:
    """Environment of a process; rtb's own and its sandboxes' hold the bench's folder."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    return environ if b"RTB_CHAOS_BYSTANDER=" not in environ else b""


def docker(*arguments: str) -> list[str]:
    """Lines of the docker command's answer. Raises CalledProcessError."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


@contextmanager
def bench(root: Path, sandbox: str, host: str | None = None) -> Iterator[Bench]:
    """A bench under `root`, warm: environments are made, an undisturbed run has given the reference verdicts.

    `host`: address of an engine without a network, which gets its images from the one that answers now.
    """
    pocketsuite.make(root, tasks=3)
    patches = {1: patch(1, SLOW), 2: patch(2, "def f2(x):\n    return 3 * x"), 3: CUT_PATCH}
    write_predictions(root / "p.jsonl", patches)
    write_predictions(root / "hang.jsonl", {**patches, 1: patch(1, "while True:\n    pass")})
    for name in ("tmp", "runs"):
        (root / name).mkdir()
    keep = {name: value for name, value in os.environ.items() if not name.startswith("RTB_")}
    env = {
        **keep, "PYTHONPATH": str(pocketsuite.ROOT), "TMPDIR": str(root / "tmp"),
        "RTB_TASKS": str(root / "tasks"), "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
        "RTB_CACHE": str(root / "cache"),
    }  # fmt: skip
    made = Bench(root, sandbox, env)
    if host is not None:
        _carry_images(made, host)
        os.environ["DOCKER_HOST"] = made.env["DOCKER_HOST"] = host
    for number in range(2):  # the first one builds
        started = time.monotonic()
        calm = made.start(made.command(f"calm-{number}"))
        said = calm.communicate(timeout=600)[1]
        assert calm.returncode == 0, said
        assert made.outcomes(f"calm-{number}") == REFERENCE, made.outcomes(f"calm-{number}")
        made.seconds = time.monotonic() - started
    with _bystanders(made) as alive:
        yield made
        assert not (gone := alive()), f"removed though it is not ours: {gone}"


def _carry_images(made: Bench, host: str) -> None:
    """Build the environments in the engine that answers now, take them to the other one."""
    build = [*made.command("")[:3], "build-env", "--suite", "pocket", "--sandbox", "docker", "--json"]
    done = subprocess.run(build, env=made.env, cwd=made.root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the environments could not be built: {done.stderr[-2000:]}")
    names = [item["name"] for item in json.loads(done.stdout)]
    with subprocess.Popen(["docker", "save", "rtb/base:cpu", *names], stdout=subprocess.PIPE) as saved:
        subprocess.run(
            ["docker", "-H", host, "load", "-q"], stdin=saved.stdout, check=True, stdout=subprocess.DEVNULL
        )


@contextmanager
def _bystanders(made: Bench) -> Iterator[Callable[[], list[str]]]:
    """Things of others that look much like ours: a process, a folder, a container. They must survive."""
    other = made.temporary / "of-others"
    folder = other / "rtb-local-0123456789abcdef-1-1-0-x"
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        ["sleep", "86400"], env={"RTB_CHAOS_BYSTANDER": "1", "RTB_SANDBOX": folder.name}, start_new_session=True
    )
    container: list[str] = []
    if made.sandbox == "docker":
        labels = ("--label", "rtb.owner=0123456789abcdef", "--label", "rtb.process=1-1-0")
        container = docker("run", "-d", "--network", "none", *labels, "rtb/base:cpu", "sleep", "86400")

    def gone() -> list[str]:
        found = [] if folder.is_dir() else [str(folder)]
        found += ["a process"] if process.poll() is not None else []
        there = docker("ps", "-aq", "--no-trunc") if container else []
        return found + [name for name in container if name not in there]

    try:
        yield gone
    finally:
        process.kill()
        process.wait()
        if container:
            docker("rm", "-f", *container)


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer of `condition`, or its last one after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
