"""Both sides of a paired stage as local sandboxes that hold the mock server; `flags` in a tree makes sides differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from harness.stages.sides import Sides
from rtb.baseline import Baseline
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits, Sandbox
from rtb.task import Task

MOCK = Path(__file__).with_name("mock_server.py")
COMMAND = "exec python mock_server.py --listen 127.0.0.1:{port} $(cat flags)"


def opener(
    folder: Path, flags: str, files: dict[str, str] | None = None
) -> Callable[[], AbstractContextManager[Sandbox]]:
    """Opens a sandbox whose server gets `flags`."""
    folder.mkdir(parents=True)
    (folder / "mock_server.py").write_bytes(MOCK.read_bytes())
    (folder / "flags").write_text(flags)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return lambda: open_local_sandbox(folder, env={}, path=path, limits=Limits())


@contextmanager
def both(
    gold: Callable[[], AbstractContextManager[Sandbox]],
    model: Callable[[], AbstractContextManager[Sandbox]],
    cache: Path | None = None,
    known: Baseline | None = None,
) -> Iterator[Sides]:
    with model() as box:
        yield Sides(model=box, gold=gold, gold_cache=cache, concurrency=4, known=known or Baseline())


def task(**stages: object) -> Task:
    """A task with one kernel target and the given stages."""
    return Task.model_validate(
        {
            "instance_id": "own__repo-1", "repo": "own/repo", "pull_number": 1, "base_commit": "0" * 40,
            "merge_commit": "1" * 40, "title": "t", "category": "optimization",
            "targets": [{"path": "a.py", "name": "k", "kind": "triton_kernel", "change": "modified"}],
            "patches": {"gold": {"sha256": None, "paths": ["a.py"]}, "test": {"sha256": None, "paths": ["t.py"]}},
            "environment": {"dockerfile": "cpu"}, "unit": None, "provenance": {"source": "test"}, **stages,
        }
    )  # fmt: skip


def serve(**more: object) -> dict[str, object]:
    return {"command": COMMAND, "model": "m", "port": 8124, "ready_timeout_seconds": 60, **more}
