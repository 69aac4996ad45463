"""`rtb solve` over the toy suite with the scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtb.suite import LoadedSuite
from scaffold.budget import Budget
from scaffold.endpoint import ModelOptions
from scaffold.plans import SolveOptions
from scaffold.solve import Summary
from tests.scripted_model import ScriptedModel

KEY = "sk-scripted-secret-key"


def options(server: ScriptedModel, out: Path, character: str, **more: Any) -> SolveOptions:
    line = {"backoff_seconds": 0.01, "longest_wait_seconds": 0.05, "tries": 3, **more.pop("line", {})}
    model = ModelOptions(name=f"local/{character}", base_url=server.url, **line)
    defaults: dict[str, Any] = {
        "sandbox": "local", "workers": 2, "quiet": True, "budget": Budget(steps=8, command_seconds=20.0),
    }  # fmt: skip
    return SolveOptions(model=model, out=out / f"{character}.jsonl", **{**defaults, **more})


def one(suite: LoadedSuite) -> tuple[Any, ...]:
    return suite.entries[:1]


def patch_of(summary: Summary, out: Path) -> str:
    return str(lines_of(out)[summary.rows[0].record.instance_id]["model_patch"])


def lines_of(out: Path) -> dict[str, dict[str, Any]]:
    """What stands in a predictions file, also lines of attempts that a fault ended (no answers to rtb)."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line["instance_id"]: line for line in lines}
