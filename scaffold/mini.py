"""The same attempt run by mini-swe-agent's own DefaultAgent: our model line, our sandbox, its loop and its settings.

Needs the extra `rtb[mini]`; nothing of it is imported before an attempt asks for it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rtb.errors import ExpectedError
from scaffold.agent import Ending, Work, observe, time_left, turn_facts
from scaffold.budget import ExitStatus
from scaffold.dialect import Action, Malformed
from scaffold.endpoint import Dialect
from scaffold.model import ContextOverflow, DeadlinePassed
from scaffold.observation import Observation
from scaffold.prompt import Prompt

SETTINGS = "benchmarks/swebench.yaml"


def run_mini(work: Work) -> Ending:
    """mini-swe-agent's loop. Raises as `run_light` does, and ExpectedError when the extra is not installed."""
    check_installed()
    from minisweagent.agents.default import DefaultAgent

    class Journalled(DefaultAgent):  # type: ignore[misc]
        """Its messages go to our recorder as they come."""

        def add_messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
            for message in messages:
                if message.get("role") != "exit":
                    work.recorder.message(_true_cost(message))
            added: list[dict[str, Any]] = super().add_messages(*messages)
            return added

    budget = work.budget
    agent = Journalled(
        _Line(work),
        _Bench(work),
        **_templates(published=work.published_prompts),
        step_limit=budget.steps or 0,
        cost_limit=budget.cost_usd or 0.0,
        wall_time_limit_seconds=int(budget.wall_seconds or 0),
        max_consecutive_format_errors=budget.format_errors,
    )
    try:
        left = agent.run(task=work.prompt.task, rendered=_plain(work.prompt))
    except DeadlinePassed as error:
        return Ending("TimeExceeded", str(error))
    except ContextOverflow as error:
        return Ending("ContextWindowExceeded", f"the conversation does not fit the model any more: {error}")
    return _ending(left, work)


def check_options(dialect: Dialect, *, agent: str, published_prompts: bool) -> None:
    """Raises ExpectedError on options that do not go together, or when mini-swe-agent is asked for and not there."""
    if agent != "mini":
        if published_prompts:
            raise ExpectedError("--published-prompts are those of mini-swe-agent: give --agent mini too")
        return
    if dialect != "tools":
        raise ExpectedError("--agent mini speaks in tool calls only: leave --dialect text to the light agent")
    check_installed()


def check_installed() -> None:
    """Raises ExpectedError, with the command that mends it, when mini-swe-agent is not there."""
    # Its import prints a banner, makes a folder and loads a .env file, unless told otherwise.
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(Path(tempfile.gettempdir()) / "rtb-mini-config"))
    if importlib.util.find_spec("minisweagent") is None:
        raise ExpectedError("--agent mini needs mini-swe-agent: pip install 'rtb[mini]'")


def version() -> str:
    """The version of mini-swe-agent that is installed."""
    check_installed()
    import minisweagent

    return str(minisweagent.__version__)


def _templates(*, published: bool) -> dict[str, str]:
    """Our prompts, rendered already (what stands in a task's text is never a template), or its published ones."""
    if not published:
        return {"system_template": "{{ rendered.system }}", "instance_template": "{{ rendered.instance }}"}
    from minisweagent.config import get_config_from_spec

    settings = get_config_from_spec(SETTINGS)["agent"]
    return {name: settings[name] for name in ("system_template", "instance_template")}


def _plain(prompt: Prompt) -> dict[str, str]:
    return {"system": prompt.system, "instance": prompt.instance}


def _ending(left: dict[str, Any], work: Work) -> Ending:
    status: ExitStatus = left.get("exit_status", "AgentCrashed")
    reasons = {
        "Submitted": "the agent submitted",
        "LimitsExceeded": work.spent.over(work.budget) or "a limit of mini-swe-agent was reached",
        "TimeExceeded": "the attempt's time was used up",
        "RepeatedFormatError": f"{work.budget.format_errors} turns in a row without a usable command",
    }
    return Ending(status, reasons.get(status, str(left.get("exit_reason", status))), str(left.get("submission", "")))


def _model_settings() -> dict[str, Any]:
    """The templates of the published settings."""
    from minisweagent.config import get_config_from_spec

    settings: dict[str, Any] = get_config_from_spec(SETTINGS)["model"]
    return settings


def _summable(cost: float | None) -> dict[str, Any]:
    """A call's cost for its loop, which adds costs up and has no word for an unknown one."""
    return {"cost": 0.0, "cost_unknown": True} if cost is None else {"cost": cost}


def _true_cost(message: dict[str, Any]) -> dict[str, Any]:
    """The message as our records keep it: an unknown cost is null, not 0."""
    extra = dict(message.get("extra") or {})
    if not extra.pop("cost_unknown", False):
        return message
    return message | {"extra": extra | {"cost": None}}


class _Line:
    """mini-swe-agent's Model protocol over scaffold.model."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._settings = _model_settings()
        self.config = SimpleNamespace(model_name=work.model.options.name)

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        from minisweagent.exceptions import FormatError, LimitsExceeded
        from minisweagent.models.utils.actions_toolcall import BASH_TOOL, parse_toolcall_actions

        work = self._work
        # Tokens, and costs that are unknown, are limits that mini-swe-agent does not have.
        if (over := work.spent.over(work.budget)) is not None:
            left = {"exit_status": "LimitsExceeded", "submission": "", "exit_reason": over}
            raise LimitsExceeded({"role": "exit", "content": over, "extra": left})
        sent = [{key: value for key, value in item.items() if key != "extra"} for item in messages]
        call = work.model.ask(sent, tools=(BASH_TOOL,), deadline=work.deadline)
        cost = work.spent.add(call.reply.usage)
        work.on_step(work.spent)
        calls = [
            SimpleNamespace(id=item.id, function=SimpleNamespace(name=item.name, arguments=item.arguments))
            for item in call.reply.tool_calls
        ]
        try:
            actions = parse_toolcall_actions(
                calls,
                format_error_template=self._settings["format_error_template"],
                template_kwargs={"finish_reason": call.reply.finish_reason},
            )
        except FormatError as error:
            error.messages[0]["extra"] |= turn_facts(call, Malformed(""), cost) | _summable(cost)
            raise
        message = dict(call.reply.raw["choices"][0]["message"])
        first = Action(actions[0]["command"], actions[0]["tool_call_id"])
        facts = turn_facts(call, first, cost)
        return message | {"extra": facts | {"actions": actions} | _summable(cost)}

    def format_message(self, **values: Any) -> dict[str, Any]:
        return values

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        from minisweagent.models.utils.actions_toolcall import format_toolcall_observation_messages

        formatted: list[dict[str, Any]] = format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=self._settings["observation_template"],
            template_vars=template_vars,
        )
        return formatted

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"model_name": self.config.model_name}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"model": {"model_name": self.config.model_name}}}}


class _Bench:
    """mini-swe-agent's Environment protocol over a workbench. A dead sandbox raises through its loop."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.config = SimpleNamespace(cwd=work.bench.tree)

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:  # noqa: ARG002
        from minisweagent.exceptions import TimeExceeded

        work = self._work
        left = time_left(work)
        if left <= 0:
            facts = {"exit_status": "TimeExceeded", "submission": ""}
            raise TimeExceeded({"role": "exit", "content": "TimeExceeded", "extra": facts})
        seen = work.bench.execute(str(action["command"]), min(work.budget.command_seconds, left))
        facts = observe(work, seen)
        self._submit(seen, action, facts)
        output = {"output": seen.output.text, "returncode": seen.returncode, "exception_info": seen.note}
        return output | {"extra": facts}

    def _submit(self, seen: Observation, action: dict[str, Any], facts: dict[str, Any]) -> None:
        from minisweagent.exceptions import Submitted

        if seen.submission is None:
            return
        # Our records keep the last observation too, which its loop drops.
        self._work.recorder.message(
            {"role": "tool", "tool_call_id": action.get("tool_call_id"), "content": seen.render(), "extra": facts}
        )
        left = {"exit_status": "Submitted", "submission": seen.submission, "timestamp": time.time()}
        raise Submitted({"role": "exit", "content": seen.submission, "extra": left})

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"cwd": self.config.cwd}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": {"cwd": self.config.cwd}}}}
