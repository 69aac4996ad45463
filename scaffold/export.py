"""Trajectories in the formats of others: ATIF (one JSON file each) and Inspect's .eval log (one file for all)."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rtb import __version__
from rtb.errors import ExpectedError
from rtb.storage import write_atomic
from scaffold.audit import find_trajectories
from scaffold.reply import Usage
from scaffold.trajectory import Trajectory, Turn, read_trajectory

ATIF_VERSION = "ATIF-v1.4"
FORMATS = ("atif", "inspect")


def export(paths: Sequence[Path], form: str, out: Path) -> tuple[Path, ...]:
    """Write trajectories in another format. `out`: a folder for atif, a file NAME.eval for inspect.

    Raises ExpectedError on an unknown format or when there is no trajectory.
    """
    if form not in FORMATS:
        raise ExpectedError(f"--format {form!r}: there are {', '.join(FORMATS)}")
    read = [read_trajectory(path) for path in find_trajectories(paths)]
    if form == "inspect":
        if out.suffix != ".eval":
            raise ExpectedError(f"--out {out}: the name of an Inspect log ends in .eval")
        write_atomic(out, to_inspect(read))
        return (out,)
    written = []
    for item in read:
        path = out / f"{session_id(item)}.atif.json"
        write_atomic(path, json.dumps(to_atif(item), indent=2).encode() + b"\n")
        written.append(path)
    return tuple(written)


def session_id(item: Trajectory) -> str:
    """A name for the attempt that is the same each time: task, number, and a digest of what was said."""
    said = json.dumps([[turn.text, [result.command for result in turn.results]] for turn in item.turns])
    digest = hashlib.sha256(f"{item.model}\0{item.task}\0{said}".encode()).hexdigest()[:12]
    return f"{item.instance_id or 'task'}-{item.rtb.get('attempt', 1)}-{digest}"


def to_atif(item: Trajectory) -> dict[str, Any]:
    """A trajectory as ATIF. Unknown numbers are left out, as its optional fields are meant to be."""
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "system", "message": item.system},
        {"step_id": 2, "source": "user", "message": item.task},
    ]
    for turn in item.turns:
        steps.append({"step_id": len(steps) + 1, **_atif_turn(turn, item.model)})
        if turn.complaint:
            steps.append({"step_id": len(steps) + 1, "source": "user", "message": turn.complaint})
    usages = [turn.usage for turn in item.turns if turn.usage]
    final: dict[str, Any] = {"total_steps": len(steps)}
    if usages and len(usages) == len(item.turns):
        final["total_prompt_tokens"] = sum(usage.prompt for usage in usages)
        final["total_completion_tokens"] = sum(usage.completion for usage in usages)
        final["total_cached_tokens"] = sum(usage.cached for usage in usages)
    if item.rtb.get("cost_usd") is not None:
        final["total_cost_usd"] = item.rtb["cost_usd"]
    extra = {"instance_id": item.instance_id, "exit_status": item.exit_status, "rtb": item.rtb}
    return {
        "schema_version": ATIF_VERSION,
        "session_id": session_id(item),
        "agent": {"name": item.agent, "version": item.version or "unknown", "model_name": item.model},
        "steps": steps,
        "final_metrics": final,
        "extra": extra,
    }


def _atif_turn(turn: Turn, model: str) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "model_name": model, "message": turn.text}
    if turn.timestamp:
        step["timestamp"] = _iso(turn.timestamp)
    if turn.reasoning:
        step["reasoning_content"] = turn.reasoning
    if turn.results:
        names = [result.call_id or f"command_{turn.number}_{place}" for place, result in enumerate(turn.results)]
        step["tool_calls"] = [
            {"tool_call_id": name, "function_name": "bash", "arguments": {"command": result.command}}
            for name, result in zip(names, turn.results, strict=True)
        ]
        step["observation"] = {
            "results": [
                {"source_call_id": name, "content": f"exit code {result.returncode}\n{result.output}"}
                for name, result in zip(names, turn.results, strict=True)
                if result.returncode is not None
            ]
        }
    metrics: dict[str, Any] = {}
    if turn.usage:
        metrics = {
            "prompt_tokens": turn.usage.prompt,
            "completion_tokens": turn.usage.completion,
            "cached_tokens": turn.usage.cached,
        }
    if turn.cost_usd is not None:
        metrics["cost_usd"] = turn.cost_usd
    return step | ({"metrics": metrics} if metrics else {})


def to_inspect(items: Sequence[Trajectory]) -> bytes:
    """Trajectories as one Inspect log: a zip with a header, a sample each, and summaries. Scores are not in it."""
    models = sorted({item.model for item in items})
    if len(models) != 1:
        raise ExpectedError(f"an Inspect log is of one model, these are of {', '.join(models)}: export them apart")
    epochs: dict[str, int] = {}
    samples = []
    for item in items:
        epochs[item.instance_id] = epochs.get(item.instance_id, 0) + 1
        samples.append(_sample(item, epochs[item.instance_id]))
    times = [turn.timestamp for item in items for turn in item.turns if turn.timestamp] or [0.0]
    header = _header(items, models[0], samples, max(epochs.values()), (min(times), max(times)))
    start = {"version": 2, "eval": header["eval"], "plan": header["plan"]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("_journal/start.json", json.dumps(start))
        for sample in samples:
            file.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        file.writestr("summaries.json", json.dumps([_summary(sample) for sample in samples]))
        file.writestr("header.json", json.dumps(header))
    return buffer.getvalue()


def _header(
    items: Sequence[Trajectory], model: str, samples: list[dict[str, Any]], epochs: int, times: tuple[float, float]
) -> dict[str, Any]:
    names = sorted({item.instance_id for item in items})
    digest = hashlib.sha256("".join(session_id(item) for item in items).encode()).hexdigest()
    suite = str(items[0].rtb.get("suite") or "rtb")
    done = sum(item.exit_status == "Submitted" for item in items)
    usages = [turn.usage for item in items for turn in item.turns if turn.usage]
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": digest[:22],
            "run_id": digest[22:44],
            "created": _iso(times[0]),
            "task": f"rtb/{suite}",
            "task_id": digest[:22],
            "task_version": 0,
            "solver": items[0].agent,
            "dataset": {"name": suite, "samples": len(names), "sample_ids": names, "shuffled": False},
            "model": model,
            "model_args": {},
            "config": {"epochs": epochs},
            "packages": {"rtb": __version__},
        },
        "plan": {"name": "plan", "steps": [{"solver": items[0].agent, "params": {}}], "config": {}},
        "results": {"total_samples": len(samples), "completed_samples": done, "scores": []},
        "stats": {
            "started_at": _iso(times[0]),
            "completed_at": _iso(times[1]),
            "model_usage": {model: _inspect_usage(usages)},
        },
    }


def _inspect_usage(usages: Sequence[Usage]) -> dict[str, int]:
    prompt, completion = sum(item.prompt for item in usages), sum(item.completion for item in usages)
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_cache_read": sum(item.cached for item in usages),
    }


def _sample(item: Trajectory, epoch: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": item.system},
        {"role": "user", "content": item.task, "source": "input"},
    ]
    for turn in item.turns:
        messages += _inspect_turn(turn, item.model)
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    usages = [turn.usage for turn in item.turns if turn.usage]
    choices = [{"message": last, "stop_reason": "stop"}] if last else []
    return {
        "id": item.instance_id,
        "epoch": epoch,
        "input": item.task,
        "target": "",
        "messages": messages,
        "output": {"model": item.model, "choices": choices},
        "scores": {},
        "metadata": {"exit_status": item.exit_status, "submission": item.submission, "rtb": item.rtb},
        "store": {},
        "events": [],
        "model_usage": {item.model: _inspect_usage(usages)},
        "attachments": {},
    }


def _inspect_turn(turn: Turn, model: str) -> list[dict[str, Any]]:
    content: str | list[dict[str, Any]] = turn.text
    if turn.reasoning:
        content = [{"type": "reasoning", "reasoning": turn.reasoning}, {"type": "text", "text": turn.text}]
    names = [result.call_id or f"command_{turn.number}_{place}" for place, result in enumerate(turn.results)]
    calls = [
        {"id": name, "function": "bash", "arguments": {"command": result.command}, "type": "function"}
        for name, result in zip(names, turn.results, strict=True)
    ]
    said: dict[str, Any] = {"role": "assistant", "content": content, "model": model, "source": "generate"}
    messages = [said | ({"tool_calls": calls} if calls else {})]
    messages += [
        {"role": "tool", "content": result.output, "tool_call_id": name, "function": "bash"}
        for name, result in zip(names, turn.results, strict=True)
        if result.returncode is not None
    ]
    if turn.complaint:
        messages.append({"role": "user", "content": turn.complaint})
    return messages


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    facts = {"exit_status": sample["metadata"]["exit_status"]}
    kept = {name: sample[name] for name in ("id", "epoch", "target", "model_usage")}
    return kept | {"input": sample["input"][:1000], "metadata": facts, "scores": {}, "completed": True}


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat()
