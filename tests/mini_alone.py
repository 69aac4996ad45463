"""mini-swe-agent with nothing of ours in it: its DefaultAgent, its litellm model, its local environment.

`python -m tests.mini_alone URL FOLDER JOBS`: JOBS is a JSON list of [MODEL, TITLE], FOLDER/NUMBER the work tree of
each, from 0. It is its own process: the import takes seconds, and settings are read from the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(url: str, folder: Path, jobs: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """How each job, a model and a task's title, ended, and after how many calls of the model."""
    quiet = {
        "MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "config"), "OPENAI_API_KEY": "sk-none",
        "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.mini_alone", url, str(folder), json.dumps(jobs)]
    done = subprocess.run(
        command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr[-3000:])
    return [(status, calls) for status, calls in json.loads(done.stdout.splitlines()[-1])]


def main(url: str, folder: str, jobs: str) -> None:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    settings: dict[str, Any] = get_config_from_spec("benchmarks/swebench.yaml")["model"]
    templates = {name: settings[name] for name in ("format_error_template", "observation_template")}
    ended = []
    for number, (model, title) in enumerate(json.loads(jobs)):
        line = {"api_base": url, "temperature": 0.0}
        agent = DefaultAgent(
            LitellmModel(model_name=f"openai/{model}", model_kwargs=line, **templates),
            LocalEnvironment(cwd=f"{folder}/{number}"),
            system_template="You work in a repository.",
            instance_template="# Task: {{ task }}\n\nMake this change.",
            step_limit=20,
        )
        left = agent.run(title)
        ended.append((left["exit_status"], agent.n_calls))
    print(json.dumps(ended))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
