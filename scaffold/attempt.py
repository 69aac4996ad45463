"""One attempt at one task, from a fresh sandbox to its files. Whatever happens, the tree's patch is taken."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rtb import __version__
from rtb.errors import ExpectedError, MachineError, RtbError
from rtb.prediction import Prediction
from rtb.sandbox import Sandbox
from rtb.steps import STEPS_FILE
from rtb.storage import write_atomic, write_model
from rtb.suite import TaskEntry, read_model
from rtb.task import SCHEMA_VERSION, Frozen
from scaffold import mini
from scaffold.agent import AgentFunction, Ending, Work, run_light
from scaffold.budget import FINISHED, Budget, ExitStatus, Spent
from scaffold.endpoint import ModelOptions
from scaffold.keys import Secrets
from scaffold.model import Interrupted, Model, ModelRefused, ModelUnavailable
from scaffold.prices import Price
from scaffold.prompt import Facts, Templates
from scaffold.recorder import AttemptFolder, Recorder
from scaffold.workbench import Snapshot, Workbench, workbench

AgentName = Literal["light", "mini"]
AGENTS: Mapping[AgentName, AgentFunction] = {"light": run_light, "mini": mini.run_mini}
Place = Callable[[TaskEntry], AbstractContextManager[Sandbox]]


class Settings(Frozen):
    """What makes two attempts the same experiment; part of attempt.json. No key is in it."""

    model: str
    base_url: str | None
    agent: AgentName
    agent_version: str
    dialect: str
    temperature: float | None
    max_output_tokens: int | None
    extra: dict[str, Any]
    budget: Budget
    with_context: bool
    published_prompts: bool
    prompt_sha256: str = Field(description="of the prompt of this task, work tree's path left out")
    base_commit: str


class AttemptRecord(Frozen):
    """attempt.json, written last. `finished` false: a machine or the user ended it, and it is to be run again."""

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: str
    attempt: int = Field(ge=1)
    settings: Settings
    exit_status: ExitStatus
    exit_reason: str
    finished: bool
    patch_origin: Literal["submitted", "salvaged"]
    patch_sha256: str
    patch_bytes: int
    left_out: tuple[tuple[str, str], ...] = ()
    steps: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tokens: int | None
    cost_usd: float | None
    seconds: dict[str, float] = Field(description="total, of which sandbox (commands and snapshots) and start-up")
    sandbox: dict[str, str | bool] = {}
    rtb_version: str

    def prediction(self, folder: AttemptFolder, relative_to: Path) -> Prediction:
        """The line of the predictions file, its patch read from patch.diff. Raises InvalidFile-like ExpectedError."""
        patch = folder.patch.read_bytes() if folder.patch.is_file() else b""
        if hashlib.sha256(patch).hexdigest() != self.patch_sha256:
            raise ExpectedError(
                f"{folder.patch} is not the patch that {folder.record.name} records; remove {folder.path}"
            )
        extra = {
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost_usd": self.cost_usd,
            "steps": self.steps,
            "exit_status": self.exit_status,
            "exit_reason": self.exit_reason,
            "finished": self.finished,
            "patch_origin": self.patch_origin,
            "attempt": self.attempt,
            "trajectory": os.path.relpath(folder.trajectory, relative_to),
            STEPS_FILE: os.path.relpath(folder.steps, relative_to),
        }
        return Prediction(
            instance_id=self.instance_id,
            model_name_or_path=self.settings.model,
            model_patch=patch.decode("utf-8", "surrogateescape"),
            extra=extra,
        )


def read_record(folder: AttemptFolder) -> AttemptRecord | None:
    """A stored attempt, or None when there is none or it did not come to its end."""
    return read_model(folder.record, AttemptRecord) if folder.record.is_file() else None


@dataclass(frozen=True)
class Plan:
    """One attempt to be made."""

    entry: TaskEntry
    number: int
    folder: AttemptFolder
    settings: Settings
    model: ModelOptions
    price: Price | None
    templates: Templates
    facts: Facts
    place: Place
    stop: threading.Event
    on_step: Callable[[Spent], None]
    on_wait: Callable[[str], None]
    on_model: Callable[[Model], None]  # so that Ctrl-C can end a call that is under way


@dataclass
class _State:
    """What is known of an attempt at any moment, for the record that is written whatever happens."""

    spent: Spent
    last: Snapshot | None = None
    start_seconds: float = 0.0
    busy_seconds: float = 0.0
    isolation: dict[str, str | bool] | None = None
    first_tree: str = ""
    tree_path: str = ""


def run_attempt(plan: Plan) -> AttemptRecord:
    """Make an attempt and leave its files. A machine's fault, a refusal or the user's stop is a record too."""
    started = time.monotonic()
    state = _State(Spent(plan.price))
    key_variable = plan.model.key_variable
    secrets = Secrets.of_environment(os.environ.get(key_variable) if key_variable else None)
    plan.folder.record.unlink(missing_ok=True)
    recorder = Recorder(plan.folder, secrets, plan.entry.instance_id, plan.model.name)

    def keep(ending: Ending) -> AttemptRecord:
        recorder.message(_exit_message(ending))
        record = _record(plan, state, ending, time.monotonic() - started, secrets)
        write_atomic(plan.folder.patch, state.last.patch if state.last else b"")
        recorder.finish(_info(plan, state, ending, record))
        write_model(plan.folder.record, record)
        return record

    try:
        return keep(_fault_as_ending(lambda: _in_sandbox(plan, recorder, state, started), plan.stop))
    except RtbError:
        raise  # nothing can be written here, or the task cannot be set up: told to the user as it is
    except BaseException as error:
        # A fault of the code, or a hard stop: what the agent did until then is kept before it goes on up.
        keep(Ending("AgentCrashed", f"{type(error).__name__}: {error}"))
        raise
    finally:
        recorder.close()


def _fault_as_ending(run: Callable[[], Ending], stop: threading.Event) -> Ending:
    """Faults of machines are endings of an attempt: named, kept, and never counted as the model's answer."""
    try:
        return run()
    except Interrupted as error:
        return Ending("Interrupted", str(error))
    except ModelRefused as error:
        return Ending("ModelRefused", str(error))
    except ModelUnavailable as error:
        return Ending("ModelUnavailable", str(error))
    except MachineError as error:
        if stop.is_set():  # the user's stop ended the sandbox
            return Ending("Interrupted", "stopped by the user")
        return Ending("SandboxFault", f"{type(error).__name__}: {error}")


def _in_sandbox(plan: Plan, recorder: Recorder, state: _State, started: float) -> Ending:
    line = Model(plan.model, stop=plan.stop, on_wait=plan.on_wait)
    with line as model, plan.place(plan.entry) as sandbox, workbench(sandbox) as bench:
        plan.on_model(model)
        state.isolation = sandbox.isolation.record()
        state.start_seconds = time.monotonic() - started
        state.first_tree, state.tree_path, state.last = bench.first, bench.tree, bench.last
        budget = plan.settings.budget
        work = Work(
            prompt=plan.templates.prompt(plan.facts, plan.model.dialect, budget, bench.tree),
            model=model,
            bench=bench,
            budget=budget,
            spent=state.spent,
            templates=plan.templates,
            recorder=recorder,
            # The clock starts when the sandbox is up: its start-up is not the model's time.
            deadline=None if budget.wall_seconds is None else time.monotonic() + budget.wall_seconds,
            stop=plan.stop,
            on_step=plan.on_step,
            published_prompts=plan.settings.published_prompts,
        )
        try:
            return AGENTS[plan.settings.agent](work)
        finally:
            _take_patch(bench, state)


def _take_patch(bench: Workbench, state: _State) -> None:
    """The tree as it is at the end; when the sandbox is gone, as it was after the last step."""
    state.last = bench.last
    with suppress(MachineError):
        state.last = bench.snapshot(final=True)
    state.busy_seconds = bench.busy_seconds


def _exit_message(ending: Ending) -> dict[str, Any]:
    facts = {"exit_status": ending.status, "submission": ending.submission, "exit_reason": ending.reason}
    return {"role": "exit", "content": ending.submission or ending.reason, "extra": facts}


def _record(plan: Plan, state: _State, ending: Ending, seconds: float, secrets: Secrets) -> AttemptRecord:
    spent, snapshot = state.spent, state.last
    patch = snapshot.patch if snapshot else b""
    return AttemptRecord(
        instance_id=plan.entry.instance_id,
        attempt=plan.number,
        settings=plan.settings,
        exit_status=ending.status,
        exit_reason=secrets.hide(ending.reason)[:2000],
        finished=ending.status in FINISHED,
        patch_origin="submitted" if ending.status == "Submitted" else "salvaged",
        patch_sha256=hashlib.sha256(patch).hexdigest(),
        patch_bytes=len(patch),
        left_out=snapshot.left_out if snapshot else (),
        steps=spent.calls,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cached_tokens=spent.cached_tokens,
        tokens=spent.tokens,
        cost_usd=spent.cost_usd,
        seconds={
            "total": round(seconds, 3),
            "start": round(state.start_seconds, 3),
            "sandbox": round(state.busy_seconds, 3),
        },
        sandbox=state.isolation or {},
        rtb_version=__version__,
    )


def _info(plan: Plan, state: _State, ending: Ending, record: AttemptRecord) -> dict[str, Any]:
    """`info` of the trajectory: mini-SWE-agent's keys, and all of ours under `rtb`."""
    budget = plan.settings.budget
    return {
        "model_stats": {"instance_cost": record.cost_usd, "api_calls": record.steps},
        "config": {
            "agent": {
                "step_limit": budget.steps or 0,
                "cost_limit": budget.cost_usd or 0.0,
                "wall_time_limit_seconds": budget.wall_seconds or 0,
                "max_consecutive_format_errors": budget.format_errors,
            },
            "agent_type": f"scaffold.{plan.settings.agent}",
            "model": {"model_name": plan.model.name},
            "model_type": "scaffold.model.Model",
            "environment": {"timeout": budget.command_seconds},
            "environment_type": f"rtb.sandbox.{(state.isolation or {}).get('kind', 'none')}",
        },
        "mini_version": plan.settings.agent_version,
        "exit_status": ending.status,
        "submission": ending.submission,
        "rtb": {
            **record.model_dump(mode="json"),
            "first_tree": state.first_tree,
            "tree_path": state.tree_path,
            "suite": plan.entry.suite.name,
        },
    }
