"""A traced run: lays the tracer into a sandbox, names the phases, brings the launches home."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.coverage import Launches, parse_trace
from rtb.sandbox import Change, Entry, Sandbox
from rtb.storage import write_atomic
from rtb.task import Serve, Task

START, READY, REQUESTS = "start", "ready", "requests"
_WORKER = Path(__file__).parent / "worker" / "launches.py"
_COLLECT = 'for f in "$1"/launches-*.json; do [ -f "$f" ] && cat "$f" && echo; done; :'
COLLECT_SECONDS = 60.0
MAX_TRACE_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class Trace:
    """A folder in the sandbox that every Python process of a command writes its launches to."""

    sandbox: Sandbox
    folder: str

    @property
    def env(self) -> Mapping[str, str]:
        return {"RTB_TRACE": self.folder}

    def serve(self, serve: Serve) -> Serve:
        """A server whose processes are traced."""
        path = f'export PYTHONPATH="{self.folder}/path${{PYTHONPATH:+:$PYTHONPATH}}"; '
        return serve.model_copy(update={"command": path + serve.command, "env": {**serve.env, **self.env}})

    def task(self, task: Task) -> Task:
        """A task whose test processes are traced."""
        known = task.environment.env.get("PYTHONPATH")
        path = f"{self.folder}/path" + (f":{known}" if known else "")
        env = {**task.environment.env, **self.env, "PYTHONPATH": path}
        return task.model_copy(update={"environment": task.environment.model_copy(update={"env": env})})

    def enter(self, phase: str) -> None:
        """Name what goes on from now on. Processes notice within half a second."""
        self.sandbox.write(self.folder, Change(write={"phase": Entry(phase.encode())}))

    def collect(self, out: Path) -> tuple[Launches, ...]:
        """Keep the raw launches in `out` and read them."""
        part = out.with_name(f".{out.name}.part")
        self.sandbox.execute(
            ["sh", "-c", _COLLECT, "rtb", self.folder], output=part, timeout_seconds=COLLECT_SECONDS, cwd=self.folder
        )
        data = part.read_bytes()[:MAX_TRACE_BYTES]
        part.unlink()
        write_atomic(out, data)
        return read_trace(out) or ()


def lay_tracer(sandbox: Sandbox) -> Trace:
    """Make a trace folder in the sandbox's scratch."""
    name = f"trace-{secrets.token_hex(4)}"
    worker = Entry(_WORKER.read_bytes())
    files = {f"{name}/path/sitecustomize.py": worker, f"{name}/phase": Entry(START.encode())}
    sandbox.write(sandbox.scratch, Change(write=files))
    return Trace(sandbox, f"{sandbox.scratch}/{name}")


def read_trace(path: Path) -> tuple[Launches, ...] | None:
    """Stored launches; None when the run was not traced."""
    return parse_trace(path.read_text(errors="replace")) if path.is_file() else None
