"""How an answer came about, as a page shows it: what the scaffold said in the prediction's line, and the trajectory.

Lines come from strangers. A trajectory is read only where it lies in the folder of the predictions file (or below).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.excerpts import Excerpt, text_excerpt
from rtb.prediction import CONTROLS, read_predictions
from rtb.run import Run, RunRecord

NAMES = {
    "attempt": "Attempt", "steps": "Steps", "exit_status": "Ended with", "exit_reason": "Because",
    "patch_origin": "Patch taken from", "prompt_tokens": "Prompt tokens", "completion_tokens": "Completion tokens",
    "trajectory": "Trajectory",
}  # fmt: skip
MOST_BYTES = 64 * 1024**2
MESSAGE = 2000  # characters of one message


@dataclass(frozen=True)
class AgentView:
    """What the scaffold said, and the end of what it did."""

    facts: Sequence[tuple[str, str]]
    trajectory: Excerpt | None


def agent_facts(run: Run, record: RunRecord) -> dict[str, dict[str, Any]]:
    """Of each prediction of a run, by instance id, the keys that are shown. Controls have none."""
    if record.predictions in CONTROLS or not run.predictions.is_file():
        return {}
    found = read_predictions(run.predictions, set(record.instance_ids))
    lines = {name: found.load(name).extra for name in found.ids}
    return {name: {key: extra[key] for key in NAMES if extra.get(key) is not None} for name, extra in lines.items()}


def agent_view(facts: Mapping[str, Any], predictions: Path, limit: int) -> AgentView | None:
    """The view of one line's facts; None where it has none."""
    if not facts:
        return None
    shown = [(NAMES[key], str(value)) for key, value in facts.items() if isinstance(value, str | int | float)]
    text = _trajectory(facts.get("trajectory"), predictions.parent)
    return AgentView(shown, text_excerpt("Trajectory", text, limit, "answer") if text else None)


def _trajectory(name: object, folder: Path) -> str:
    """The messages of a trajectory of mini-SWE-agent's format; nothing where it is not there or not of that form."""
    if not isinstance(name, str) or "\0" in name:
        return ""
    path = (folder / name).resolve()
    try:
        if not path.is_relative_to(folder.resolve()) or path.stat().st_size > MOST_BYTES:
            return ""
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list):
        return ""
    return "\n\n".join(_message(item) for item in messages if isinstance(item, dict))


def _message(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = str(content or "").strip()
    calls = item.get("tool_calls")
    if isinstance(calls, list) and calls:
        text += "\n" + json.dumps(calls, ensure_ascii=False)
    return f"== {item.get('role', '?')}\n{text if len(text) <= MESSAGE else text[:MESSAGE] + ' …'}"
