"""A task's sandbox as the agent uses it: one command at a time, and the state of the tree after it as a patch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rtb.artefacts import rules_file
from rtb.errors import MachineError
from rtb.sandbox import Change, Entry, ExecResult, Sandbox
from rtb.temporary import temporary_folder
from scaffold.observation import Observation, read_output

# Nothing may wait for a key press, draw a bar, or page.
COMMAND_ENV: Mapping[str, str] = {
    "PAGER": "cat", "MANPAGER": "cat", "GIT_PAGER": "cat", "LESS": "-R", "TERM": "dumb", "NO_COLOR": "1",
    "PIP_PROGRESS_BAR": "off", "TQDM_DISABLE": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true",
}  # fmt: skip
LARGEST_NEW_FILE_BYTES = 10 * 1024**2
LARGEST_PATCH_BYTES = 256 * 1024**2
_SNAPSHOT_SECONDS = 300.0


@dataclass(frozen=True)
class Snapshot:
    """The tree's state: its git tree id, the patch against the first state, and what the patch leaves out and why."""

    tree: str
    patch: bytes
    left_out: tuple[tuple[str, str], ...] = ()


class Workbench:
    """One attempt's sandbox. Not shared between threads. Every method raises MachineError when the sandbox failed."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._output = folder / "output"
        self._home = f"{sandbox.scratch}/snapshot"
        self._script = resources.files("scaffold").joinpath("snapshot.sh").read_text(encoding="utf-8")
        self.tree = sandbox.tree
        self.busy_seconds = 0.0
        sandbox.write(self._home, Change(write={"exclude": Entry(rules_file())}))
        self.first = self._shoot("first")[0]
        self.last = Snapshot(self.first, b"")
        self.busy_seconds = 0.0
        """Wall time of commands and of the snapshots after them; the first snapshot is part of the start-up."""

    def execute(self, command: str, timeout_seconds: float) -> Observation:
        """Run a command of the model in a new bash. A time-out is an observation; a dead sandbox raises."""
        result = self._run(["bash", "-c", command], timeout_seconds, COMMAND_ENV)
        output = read_output(self._output, result.output_bytes)
        note = ""
        if result.timed_out:
            note = f"The command was stopped after {timeout_seconds:g} seconds, with everything it had started."
        elif result.oom_killed:
            note = "The memory limit was reached and a process of the command was killed."
        code = -1 if result.exit_code is None else result.exit_code
        return Observation(command, code, output, result.seconds, result.timed_out, result.oom_killed, note)

    def snapshot(self, *, final: bool = False) -> Snapshot:
        """The state of the tree now. The patch is read only when the state has changed since the last call."""
        tree, left_out = self._shoot("final" if final else "step")
        if tree == self.first:
            patch = b""
        elif tree == self.last.tree:
            patch = self.last.patch
        else:
            read = self._sandbox.read(f"{self._home}/patch", limit_bytes=LARGEST_PATCH_BYTES)
            if read is None:
                raise MachineError(f"{self._sandbox.name}: the patch of the work tree is gone from {self._home}")
            patch = read
        self.last = Snapshot(tree, patch, left_out)
        return self.last

    def _shoot(self, mode: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        argv = ["bash", "-c", self._script, "snapshot.sh", self._home, mode]
        if mode != "first":
            argv += [self.first, self.last.tree, str(LARGEST_NEW_FILE_BYTES)]
        result = self._run(argv, _SNAPSHOT_SECONDS, {})
        data = self._output.read_bytes()
        found: dict[str, list[str]] = {}
        for record in data.split(b"\0"):
            kind, _, value = record.decode("utf-8", "surrogateescape").partition(" ")
            found.setdefault(kind, []).append(value)
        if result.exit_code != 0 or "tree" not in found:
            state = "did not end in time" if result.timed_out else f"failed with exit code {result.exit_code}"
            tail = data[-500:].decode("utf-8", "replace").strip()
            raise MachineError(f"{self._sandbox.name}: taking the state of {self.tree} {state}: {tail}")
        kinds = {
            "large": f"a new file of more than {LARGEST_NEW_FILE_BYTES} bytes",
            "outside": "a symbolic link out of the tree",
            "unread": "could not be read",
        }
        left_out = [(name, why) for kind, why in kinds.items() for name in found.get(kind, ())]
        left_out += [(name, "ignored") for name in found.get("ignored", ()) if not name.startswith(".git/")]
        return found["tree"][0], tuple(left_out)

    def _run(self, argv: list[str], timeout_seconds: float, env: Mapping[str, str]) -> ExecResult:
        started = time.monotonic()
        try:
            return self._sandbox.execute(argv, output=self._output, timeout_seconds=timeout_seconds, env=env)
        finally:
            self.busy_seconds += time.monotonic() - started


@contextmanager
def workbench(sandbox: Sandbox) -> Iterator[Workbench]:
    """A workbench over an open sandbox; its files on this side are gone at the end."""
    with temporary_folder("solve") as folder:
        yield Workbench(sandbox, folder)
