"""How to serve a framework, as data by version: serve_blocks.json. What a task's `serve` block is made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from rtb.errors import ExpectedError
from rtb.task import Frozen, Serve

_DATA = Path(__file__).with_suffix(".json")


class ServeBlock(Frozen):
    """Serves `framework` from version `from_version` on, and below `below`."""

    framework: str
    from_version: str
    below: str | None
    command: str
    env: dict[str, str]
    endpoint: Literal["completions", "chat"]
    request: dict[str, Any]
    notes: str


def blocks() -> tuple[ServeBlock, ...]:
    """Every block of the file."""
    rows = json.loads(_DATA.read_text(encoding="utf-8"))
    return tuple(ServeBlock.model_validate(row) for row in rows)


def serve_block(framework: str, version: str, model: str, port: int = 8000) -> Serve:
    """The serve block of a framework at a version. Raises ExpectedError naming what there is."""
    wanted = _numbers(version)
    for block in blocks():
        below = block.below is None or wanted < _numbers(block.below)
        if block.framework == framework and _numbers(block.from_version) <= wanted and below:
            return Serve(
                command=block.command, env=block.env, endpoint=block.endpoint, request=block.request, model=model,
                port=port,
            )  # fmt: skip
    known = ", ".join(f"{item.framework} {item.from_version} to {item.below or 'now'}" for item in blocks())
    raise ExpectedError(f"no serve block for {framework} {version}: there are {known}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
