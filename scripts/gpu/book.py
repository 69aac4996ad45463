"""What a GPU script knows so far: items by name, steps with a budget, commands that end in time."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class Book:
    """gpu.json: items by name, written after each. `left` is what remains of a step's budget, in seconds.

    `page` makes gpu.md of it; `packages` is the folder below the state's that rtb's own needs are in, and `python`
    the interpreter whose packages stand in for lock files.
    """

    def __init__(
        self, options: argparse.Namespace, page: Callable[[dict[str, Any]], str], packages: str, python: str
    ) -> None:
        self.options, self._page = options, page
        self.state, self.out = options.state.absolute(), options.out.absolute()
        for folder in (self.state, self.out, self.state / "raw"):
            folder.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "gpu.json"
        if options.resume and options.resume.is_file() and not self.path.exists():
            shutil.copy(options.resume, self.path)
        self.data: dict[str, Any] = {"host": {}, "steps": {}, "items": {}}
        if self.path.is_file():
            self.data = json.loads(self.path.read_text())
        self.env = {
            **os.environ, "RTB_LOCAL_PYTHON": python, "PYTHONPATH": f"{self.state / packages}:{ROOT}",
            "PYTHONUNBUFFERED": "1", "NO_COLOR": "1",
        }  # fmt: skip
        self._end = time.monotonic()
        self._lock = threading.Lock()

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1, sort_keys=True) + "\n")
        part.replace(self.path)
        (self.out / "gpu.md").write_text(self._page(self.data))

    def done(self, item: str) -> bool:
        return bool(self.data["items"].get(item, {}).get("done"))

    def keep(self, item: str, facts: dict[str, Any], *, done: bool = True) -> None:
        with self._lock:
            self.data["items"][item] = {**facts, "done": done}
            self.save()

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @contextmanager
    def step(self, name: str, seconds: float) -> Iterator[None]:
        begun, self._end = time.monotonic(), time.monotonic() + seconds
        print(f"== {name} (at most {seconds:.0f} s)", flush=True)
        try:
            yield
        finally:
            self.data["steps"][name] = {"budget": seconds, "seconds": round(time.monotonic() - begun, 1)}
            self.save()

    def call(
        self, argv: list[str], *, seconds: float, cache: str = "cache", tasks: str = "tasks"
    ) -> tuple[int | None, str]:
        """Run a command: (exit code, end of its output); code None when its time was up and it was interrupted."""
        env = {**self.env, "RTB_CACHE": str(self.state / cache), "RTB_TASKS": str(self.state / tasks)}
        begun = time.monotonic()
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        code: int | None
        try:
            output, _ = process.communicate(timeout=max(1.0, seconds))
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            code = None
        text = output.decode(errors="replace")
        with (self.out / "log.txt").open("a") as log:
            log.write(f"+ {' '.join(argv)[:300]}\n{text[-6000:]}[{code}, {time.monotonic() - begun:.1f} s]\n")
        return code, text

    def rtb(self, *words: str, seconds: float, cache: str = "cache", tasks: str = "tasks") -> tuple[int | None, str]:
        argv = [self.options.python, "-m", "rtb.cli", *words]
        return self.call(argv, seconds=seconds, cache=cache, tasks=tasks)

    def go_on_from(self, made: Path, folder: Path) -> None:
        """The control runs of a validation stand for another one, in a copy; what was concluded of them does not."""
        if made.is_dir() and not folder.exists():
            shutil.copytree(made, folder, ignore=shutil.ignore_patterns("validation.json"))

    @property
    def gpu(self) -> list[str]:
        return [] if self.options.cpu else ["--gpu"]


def host(book: Book) -> dict[str, Any]:
    asked = "import torch, triton, numpy; print(torch.__version__, triton.__version__, numpy.__version__)"
    _, text = book.call([book.options.python, "-c", asked], seconds=60)
    query = "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit"
    smi = [] if book.options.cpu else ["nvidia-smi", query, "--format=csv,noheader"]
    device = subprocess.run(smi, capture_output=True, text=True, check=False).stdout.strip() if smi else "none"
    return {
        "python": platform.python_version(), "torch, triton, numpy": text.strip().rpartition("\n")[2],
        "device": device, "cores": os.cpu_count(), "kernel": platform.release(),
    }  # fmt: skip


def run_steps(book: Book, budgets: Mapping[str, float], work: Mapping[str, Callable[[Book], None]]) -> None:
    """The wanted steps in order, each within its budget: those of --step with setup, else all. A budget of 0 leaves a
    step out."""
    wanted = dict(budgets)
    if book.options.step:
        named = {word.partition("=")[0]: word.partition("=")[2] for word in book.options.step}
        if unknown := sorted(set(named) - set(budgets)):
            raise SystemExit(f"no step {unknown[0]!r}: there are {', '.join(budgets)}")
        wanted = {name: float(named[name] or budgets[name]) for name in budgets if name in named}
        wanted = {"setup": budgets["setup"], **wanted}
    for name, seconds in wanted.items():
        if seconds:
            with book.step(name, seconds):
                work[name](book)


def unpack_wheels(wheels: Iterable[Path], folder: Path) -> None:
    """Wheels side by side: a wheel is a zip of what goes on the path."""
    for path in sorted(wheels):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
