"""What who sits before a solve run sees and may do: Ctrl-C, progress, prompts looked at and replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtb.errors import ExpectedError
from rtb.prediction import read_predictions
from rtb.suite import LoadedSuite
from scaffold.attempt import read_record
from scaffold.endpoint import ModelOptions
from scaffold.plans import SolveOptions
from scaffold.solve import dry_run, solve
from scaffold.solve_folder import SolveFolder
from tests.scripted_model import ScriptedModel
from tests.toysolve import KEY, lines_of, one, options
from tests.toysuite import solutions, toy_home


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedSuite]:
    with toy_home(tmp_path_factory.mktemp("toy"), SCRIPTED_API_KEY=KEY) as loaded:
        yield loaded


@pytest.fixture
def server(suite: LoadedSuite) -> Iterator[ScriptedModel]:
    with ScriptedModel(solutions(suite)).serve() as running:
        yield running


CONTROL_C = """
import sys
from pathlib import Path
from rtb.suite import load_suite
from scaffold.budget import Budget
from scaffold.endpoint import ModelOptions
from scaffold.plans import SolveOptions
from scaffold.solve import solve
url, out = sys.argv[1:]
model = ModelOptions(name="local/never-submits", base_url=url)
try:
    solve(load_suite("toy").entries, SolveOptions(model=model, out=Path(out), workers=2, sandbox="local", plain=True,
          budget=Budget(steps=10**9, tokens=10**15, wall_seconds=None, command_seconds=600)))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_control_c_keeps_everything_and_the_same_command_goes_on(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    out = tmp_path / "preds.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROL_C, server.url, str(out)], stderr=subprocess.PIPE, text=True, cwd=Path.cwd(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's children ignore it
    )  # fmt: skip
    assert process.stderr is not None
    seen: set[str] = set()
    for line in process.stderr:
        if "step 3" in line:
            seen.add(line.split(":")[0])
        if len(seen) == 2:
            break
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130, rest
    assert "the same command goes on" in rest
    found, lines = read_predictions(out), lines_of(out)
    for entry in suite.entries:
        record = read_record(SolveFolder(out).attempt(entry.instance_id, 1))
        assert record is not None and (record.exit_status, record.finished) == ("Interrupted", False)
        assert "# tried" in lines[entry.instance_id]["model_patch"]
        assert lines[entry.instance_id]["finished"] is False
        assert "Interrupted" in found.unfinished[entry.instance_id] and entry.instance_id not in found.ids


def test_progress_tells_tokens_and_cost_so_far_and_what_to_do_next(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    (tmp_path / "prices.json").write_text('{"models": {"local/throttled": {"input": 10, "output": 20}}}')

    def command(model: str, *more: str) -> subprocess.CompletedProcess[str]:
        arguments = [
            "solve",
            "--model",
            f"local/{model}",
            "--base-url",
            server.url,
            "--suite",
            "toy",
            "--plain",
            *more,
        ]
        return subprocess.run(
            [sys.executable, "-m", "rtb.cli", *arguments, "--plain", "--sandbox", "local", "--out", f"{model}.jsonl"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )  # fmt: skip

    done = command("throttled", "--prices", "prices.json")
    assert done.returncode == 0, done.stderr
    assert "toy__toy-1: try 2 of 8 in 0.0 s: HTTP 429: slow down" in done.stderr
    amount = r"[\d,]+ tokens, \$0\.\d{4}"
    assert re.search(rf"toy__toy-1: step 2, {amount}", done.stderr)
    assert re.search(rf"toy__toy-2: step 3, {amount}; all {amount}", done.stderr)
    assert "next: rtb evaluate --predictions throttled.jsonl" in done.stderr
    refused = command("unauthorized")
    assert refused.returncode == 1 and "HTTP 401" in refused.stderr
    assert "next:" not in refused.stderr, "there is nothing to evaluate"


def test_a_prompt_can_be_seen_without_a_model(suite: LoadedSuite, tmp_path: Path) -> None:
    nowhere = SolveOptions(model=ModelOptions(name="openai/none"), out=tmp_path / "x.jsonl")
    changed, added = (dry_run(entry, nowhere).instance for entry in suite.entries)
    assert "change `twice` in `pkg/twice.py`" in changed and "signature: `twice(x)`" in changed
    assert "python -m pytest tests/test_twice.py" in changed
    assert "add `half` in `pkg/half.py`" in added
    assert "There are no tests for this yet" in added  # its test file comes with the landed change
    assert "unit tests of the change that you do not see" in changed
    assert "{{ not a template }}" in changed  # a task's text is never run
    assert "neighbour_function" in changed
    without = dry_run(suite.entries[0], SolveOptions(**{**nowhere.__dict__, "with_context": False})).instance
    assert "neighbour_function" not in without and "pkg/twice.py" in without
    assert not (tmp_path / "x.jsonl").exists()


def test_own_prompts_and_what_is_wrong_with_them(suite: LoadedSuite, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    mine = SolveOptions(model=ModelOptions(name="x"), out=tmp_path / "x.jsonl", prompts=prompts)
    with pytest.raises(ExpectedError, match="there is no task"):
        dry_run(suite.entries[0], mine)
    for name in ("task", "system_tools", "instance"):
        (prompts / f"{name}.md.jinja").write_text(f"{name}: {{{{ title if title is defined else 'none' }}}}")
    assert dry_run(suite.entries[0], mine).instance == "instance: none\n"
    assert dry_run(suite.entries[0], mine).task == "task: Double the double\n"


def test_a_prompt_with_a_fault_costs_nothing(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "task.md.jinja").write_text("\n{{ no_such_fact }}")
    with pytest.raises(ExpectedError, match="no_such_fact"):
        solve(one(suite), options(server, tmp_path, "good", prompts=prompts))
    # One that is only needed when a turn cannot be read is missed before the first turn is paid, too.
    for name in ("task", "system_tools", "instance"):
        (prompts / f"{name}.md.jinja").write_text("x")
    with pytest.raises(ExpectedError, match=r"there is no format_error\.md\.jinja"):
        solve(one(suite), options(server, tmp_path, "good", prompts=prompts))
    assert server.requests == [] and not list(tmp_path.rglob("attempt-*"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"published_prompts": True}, "give --agent mini too"),
        ({"agent": "mini", "line": {"dialect": "text"}}, "speaks in tool calls only"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_begins(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExpectedError, match=said):
        solve(one(suite), options(server, tmp_path, "good", **more))
    assert server.requests == [] and not list(tmp_path.iterdir())
