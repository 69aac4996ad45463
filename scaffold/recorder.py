"""What an attempt leaves on disk while it runs: a journal line for each message, a patch for each changed tree."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, BinaryIO

from rtb.prediction import Prediction
from rtb.storage import storage_error, write_atomic
from scaffold.keys import Secrets
from scaffold.workbench import Snapshot

FORMAT = "mini-swe-agent-1.1"


class AttemptFolder:
    """The folder of one attempt; every file name is a property here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> Path:
        """Written last: an attempt without it did not come to its end."""
        return self.path / "attempt.json"

    @property
    def trajectory(self) -> Path:
        return self.path / "trajectory.traj.json"

    @property
    def journal(self) -> Path:
        """One JSON line per message as it came; all that is left after a hard kill."""
        return self.path / "journal.jsonl"

    @property
    def steps(self) -> Path:
        """One prediction line per step that changed the tree: `rtb evaluate --steps` reads it."""
        return self.path / "steps.jsonl"

    @property
    def patch(self) -> Path:
        return self.path / "patch.diff"


class Recorder:
    """Keeps an attempt's messages, on disk at once. No value of a secret variable gets through."""

    def __init__(self, folder: AttemptFolder, secrets: Secrets, instance_id: str, model_name: str) -> None:
        self.folder = folder
        self.messages: list[dict[str, Any]] = []
        self._secrets = secrets
        self._instance_id = instance_id
        self._model_name = model_name
        self._started = time.monotonic()
        folder.path.mkdir(parents=True, exist_ok=True)
        self._journal = _open(folder.journal)
        self._steps = _open(folder.steps)

    def close(self) -> None:
        self._journal.close()
        self._steps.close()

    def message(self, message: dict[str, Any]) -> None:
        """Keep one message. Bytes that are no UTF-8 stand as escapes. Raises OutOfSpace."""
        kept = self._secrets.hide_in(message)
        self.messages.append(kept)
        self._append(self._journal, json.dumps(kept).encode() + b"\n")

    def changed_tree(self, step: int, snapshot: Snapshot, facts: dict[str, Any]) -> None:
        """Keep the patch of a tree that a step changed. Raises OutOfSpace."""
        seconds = round(time.monotonic() - self._started, 3)
        line = Prediction(
            instance_id=self._instance_id,
            model_name_or_path=self._model_name,
            model_patch=snapshot.patch.decode("utf-8", "surrogateescape"),
            extra={"step": step, "tree": snapshot.tree, "seconds": seconds, **facts},
        )
        self._append(self._steps, line.to_line())

    def finish(self, info: dict[str, Any]) -> None:
        """Write the trajectory in mini-SWE-agent's format. Raises OutOfSpace."""
        document = {
            "info": self._secrets.hide_in(info),
            "messages": self.messages,
            "trajectory_format": FORMAT,
            "instance_id": self._instance_id,
        }
        write_atomic(self.folder.trajectory, json.dumps(document, indent=1).encode() + b"\n")

    def _append(self, file: BinaryIO, line: bytes) -> None:
        try:
            file.write(line)
            file.flush()
        except OSError as error:
            raise storage_error(error, Path(file.name)) from error


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise storage_error(error, path) from error
