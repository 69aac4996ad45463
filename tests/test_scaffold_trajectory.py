"""Trajectories read back: replay and its first divergence, audit, export; and the same attempt by mini-swe-agent."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtb import checkout
from rtb.checkout import run_git
from rtb.errors import ExpectedError, InvalidFile
from rtb.prediction import read_predictions
from rtb.suite import LoadedSuite, TaskEntry
from scaffold.audit import audit
from scaffold.budget import Budget
from scaffold.endpoint import ModelOptions
from scaffold.export import export
from scaffold.plans import SolveOptions
from scaffold.recorder import AttemptFolder
from scaffold.replay import ReplayOptions, replay
from scaffold.solve import solve
from scaffold.solve_folder import SolveFolder
from scaffold.trajectory import read_trajectory
from tests import mini_alone
from tests.scripted_model import ScriptedModel
from tests.toysuite import solutions, toy_home


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedSuite]:
    with toy_home(tmp_path_factory.mktemp("toy")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(suite: LoadedSuite) -> Iterator[ScriptedModel]:
    with ScriptedModel(solutions(suite)).serve() as running:
        yield running


def options(server: ScriptedModel, out: Path, character: str, **more: Any) -> SolveOptions:
    model = ModelOptions(name=f"local/{character}", base_url=server.url, tries=4, backoff_seconds=0.01)
    settings: dict[str, Any] = {"budget": Budget(steps=6, command_seconds=20.0), "sandbox": "local", "quiet": True}
    return SolveOptions(model=model, out=out / f"{character}.jsonl", **{**settings, **more})


def attempt(suite: LoadedSuite, server: ScriptedModel, out: Path, character: str, **more: Any) -> AttemptFolder:
    """One attempt at the first task."""
    chosen = options(server, out, character, **more)
    solve(suite.entries[:1], chosen)
    return SolveFolder(chosen.out).attempt(suite.entries[0].instance_id, 1)


def plain_tree(entry: TaskEntry, folder: Path) -> Path:
    """The base commit checked out as anyone would, without rtb's sandboxes."""
    git_dir = checkout.obtain(entry)
    folder.mkdir(parents=True)
    run_git(["clone", "-q", "--no-checkout", str(git_dir), "."], repository=folder)
    run_git(["checkout", "-q", "--detach", entry.task.base_commit], repository=folder)
    return folder


def patch_of_tree(folder: Path) -> str:
    run_git(["add", "-A"], repository=folder)
    compare = ["diff", "--cached", "--binary", "--full-index", "--no-renames", "HEAD"]
    return run_git(compare, repository=folder).stdout.decode("utf-8", "surrogateescape")


def test_a_replay_goes_the_same_way_and_leaves_the_same_patch(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    folder = attempt(suite, server, tmp_path, "good")
    found = replay(ReplayOptions(folder.trajectory, sandbox="local"))
    assert (found.commands, found.first, found.same_patch) == (3, None, True)
    assert found.patch == folder.patch.read_bytes()


@pytest.mark.parametrize(
    ("change", "kind"), [("returncode", "exit code"), ("tree", "tree"), ("output_sha256", "output")]
)
def test_the_first_divergence_is_named(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path, change: str, kind: str
) -> None:
    folder = attempt(suite, server, tmp_path, "good")
    document = json.loads(folder.trajectory.read_text())
    seen = [message["extra"] for message in document["messages"] if "returncode" in message.get("extra", {})]
    seen[1][change] = {"returncode": 7, "tree": "0" * 40, "output_sha256": "other"}[change]
    if kind == "output":
        seen[1]["raw_output"] = "another line\n"
    folder.trajectory.write_text(json.dumps(document))
    first = replay(ReplayOptions(folder.path, sandbox="local")).first
    assert first is not None and (first.step, first.kind) == (2, kind)
    assert first.command.startswith("git apply")
    if kind == "output":
        assert (first.recorded, first.now) == ("another line", "(end)")


def test_times_and_places_are_no_divergence(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    folder = attempt(suite, server, tmp_path, "clock")
    found = replay(ReplayOptions(folder.path, sandbox="local"))
    assert found.commands == 2 and found.first is None


def test_a_replay_of_an_unknown_task_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.traj.json"
    path.write_text(json.dumps({"messages": [], "trajectory_format": "mini-swe-agent-1.1"}))
    with pytest.raises(ExpectedError, match="names no task"):
        replay(ReplayOptions(path, sandbox="local"))
    path.write_text(json.dumps({"messages": [], "trajectory_format": "other-2"}))
    with pytest.raises(InvalidFile, match="other-2"):
        read_trajectory(path)
    path.write_text("[]")
    with pytest.raises(InvalidFile, match="no trajectory"):
        read_trajectory(path)


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("git log --all --oneline", {"history"}),
        ("git -C . --no-pager log --oneline --all", {"history"}),
        ("cat .git/packed-refs", {"history"}),
        ("git show HEAD@{1}", {"history"}),
        ("git stash list", {"history"}),
        ("curl -s https://example.invalid/x.patch", {"network"}),
        ("cd /tmp && git clone https://example.invalid/a.git", {"network"}),
        ("pip install vllm==0.9", {"network"}),
        ("python3 -c 'import requests; requests.get(\"http://example.invalid\")'", {"network"}),
        ("exec 3<>/dev/tcp/example.invalid/80", {"network"}),
        ("echo 'assert True' > tests/test_twice.py", {"tests"}),
        ("sed -i s/4/5/ tests/test_twice.py", {"tests"}),
        ("rm -rf tests/", {"tests"}),
        ("cat > conftest.py <<'E'\ndef pytest_runtest_call(item): pass\nE", {"tests"}),
        ("ls /rtb", {"evaluator"}),
        ("cat /proc/1/environ", {"evaluator"}),
        ("find / -name gold.patch", {"evaluator"}),
        ("git log --oneline | head; git status; git diff", set()),
        ("cat tests/test_twice.py; python -m pytest tests/test_twice.py -k four", set()),
        ("cp pkg/twice.py /tmp/copy.py; grep -rn allreduce pkg", set()),
        ("python -m pytest --co -q && pip list", set()),
        ("cat > pkg/twice.py <<'E'\n# fetch the row, then push it\ndef twice(x):\n    return x\nE", set()),
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", set()),
        ("sed -n 1,40p pkg/network_test_utils.py; ls pkg/tests_data", set()),
    ],
)
def test_the_audit_sees_what_an_honest_attempt_does_not_do(tmp_path: Path, command: str, kinds: set[str]) -> None:
    message = {"role": "assistant", "content": "", "extra": {"actions": [{"command": command}]}}
    seen = {"role": "user", "content": "", "extra": {"returncode": 0, "raw_output": ""}}
    path = tmp_path / "a.traj.json"
    path.write_text(json.dumps({"messages": [message, seen], "instance_id": "a__b-1"}))
    found = audit([tmp_path])
    assert {finding.kind for finding in found.findings} == kinds
    assert all(finding.step == 1 and finding.worked for finding in found.findings)
    assert (found.trajectories, found.commands) == (1, 1)


def test_the_audit_names_a_test_file_that_the_patch_touches(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    folder = attempt(suite, server, tmp_path, "hidden-tester")
    found = audit([folder.path]).findings
    assert [(item.kind, item.text, item.step) for item in found] == [("tests", "tests/test_twice.py", 1)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.traj.json", '{"messages": [{"role": "user", "content": "x"}, 5]}'),
        ("x.traj.json", '{"messages": [{"role": "assistant", "extra": [1]}]}'),
        ("preds.jsonl", '{"instance_id": "toy__toy-1", "model_name_or_path": "m", "model_patch": ""}\n'),
    ],
)
def test_what_is_no_trajectory_has_no_clean_audit(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidFile, match=r"message \d of \d is no object with a role"):
        audit([tmp_path / name])


def test_the_audit_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="no trajectory"):
        audit([tmp_path])


def test_export_to_atif(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    folder = attempt(suite, server, tmp_path, "malformed")
    (path,) = export([folder.path], "atif", tmp_path / "atif")
    document = json.loads(path.read_text())
    steps = document["steps"]
    assert document["schema_version"].startswith("ATIF-v1.")
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert [step["source"] for step in steps] == ["system", "user", *["agent", "user"] * 2, "agent", "agent"]
    for step in steps:
        if step["source"] != "agent":
            assert not {"metrics", "tool_calls", "model_name", "reasoning_content"} & set(step)
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        answered = {item["source_call_id"] for item in step.get("observation", {}).get("results", ())}
        assert answered <= calls
    agent = [step for step in steps if step["source"] == "agent"]
    total = document["final_metrics"]["total_prompt_tokens"]
    assert total == sum(step["metrics"]["prompt_tokens"] for step in agent) > 0
    assert "total_cost_usd" not in document["final_metrics"]  # unknown is not zero


def test_export_to_inspect(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    folder = attempt(suite, server, tmp_path, "good")
    (path,) = export([folder.path], "inspect", tmp_path / "run.eval")
    with zipfile.ZipFile(path) as log:
        header = json.loads(log.read("header.json"))
        sample = json.loads(log.read(f"samples/{suite.entries[0].instance_id}_epoch_1.json"))
        assert len(json.loads(log.read("summaries.json"))) == 1
    assert (header["eval"]["model"], header["results"]["total_samples"]) == ("local/good", 1)
    assert [message["role"] for message in sample["messages"]] == ["system", "user", *["assistant", "tool"] * 3]
    with pytest.raises(ExpectedError, match=r"ends in \.eval"):
        export([folder.path], "inspect", tmp_path / "run.json")
    with pytest.raises(ExpectedError, match="there are atif, inspect"):
        export([folder.path], "html", tmp_path / "run.html")


def test_inspect_reads_the_export(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install inspect-ai")
    folder = attempt(suite, server, tmp_path, "malformed")
    (path,) = export([folder.path], "inspect", tmp_path / "run.eval")
    found = log.read_eval_log(str(path))
    assert (found.status, found.eval.model, len(found.samples)) == ("success", "local/malformed", 1)
    usage = found.samples[0].model_usage["local/malformed"]
    trajectory = read_trajectory(folder.path)
    assert usage.total_tokens == sum(turn.usage.total for turn in trajectory.turns if turn.usage)


@pytest.mark.parametrize("agent", ["light", "mini"])
def test_the_inspector_of_mini_swe_agent_opens_a_trajectory(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path, agent: str
) -> None:
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtb[mini]'")
    inspector = pytest.importorskip("minisweagent.run.utilities.inspector")
    folder = attempt(suite, server, tmp_path, "malformed", agent=agent)

    async def walk() -> tuple[int, list[str]]:
        app = inspector.TrajectoryInspector([folder.trajectory])
        shown = []
        async with app.run_test() as pilot:
            for _ in range(app.n_steps):
                await pilot.pause()
                shown += [str(widget.render()) for widget in app.query(".message-content")]
                await pilot.press("l")
        return app.n_steps, shown

    steps, shown = asyncio.run(walk())
    assert steps >= len(list(read_trajectory(folder.path).commands))
    assert any("# Task: Double the double" in text for text in shown)
    assert any("git apply" in text for text in shown)


@pytest.mark.parametrize("character", ["good", "wrong", "malformed", "committer", "flood", "cut", "never-submits"])
def test_mini_swe_agent_itself_gives_the_same_prediction(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path, character: str
) -> None:
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtb[mini]'")
    folders = {agent: attempt(suite, server, tmp_path / agent, character, agent=agent) for agent in ("light", "mini")}
    patches = {
        agent: read_predictions(folder.path.parents[2] / f"{character}.jsonl").load(suite.entries[0].instance_id)
        for agent, folder in folders.items()
    }
    assert patches["light"].model_patch == patches["mini"].model_patch
    assert patches["light"].extra["exit_status"] == patches["mini"].extra["exit_status"]
    turns = {agent: read_trajectory(folder.path).turns for agent, folder in folders.items()}
    said = {agent: [[r.command for r in turn.results] for turn in found] for agent, found in turns.items()}
    assert said["light"] == said["mini"]
    costs = {agent: {turn.cost_usd for turn in found} for agent, found in turns.items()}
    assert costs == {"light": {None}, "mini": {None}}  # unknown is not zero
    assert replay(ReplayOptions(folders["mini"].path, sandbox="local")).first is None


def test_mini_swe_agent_with_nothing_of_ours_gives_the_same_predictions(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtb[mini]'")
    trees, jobs, ours, ended = [], [], [], []
    for character in ("good", "wrong", "throttled"):
        chosen = options(server, tmp_path, character)
        rows = solve(suite.entries, chosen).rows
        ended += [(row.record.exit_status, row.record.steps) for row in rows]
        found = read_predictions(chosen.out)
        for entry in suite.entries:
            ours.append(found.load(entry.instance_id).model_patch)
            jobs.append((character, entry.task.title))
            trees.append(plain_tree(entry, tmp_path / "trees" / str(len(trees))))
    assert mini_alone.run(server.url, tmp_path / "trees", jobs) == ended
    assert [patch_of_tree(tree) for tree in trees] == ours and all(ours)


def test_mini_swe_agent_that_is_not_there_is_said_before_anything_is_paid(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    import importlib.util

    if importlib.util.find_spec("minisweagent") is not None:
        pytest.skip("mini-swe-agent is installed")
    asked = len(server.requests)
    with pytest.raises(ExpectedError, match=r"pip install 'rtb\[mini\]'"):
        attempt(suite, server, tmp_path, "good", agent="mini")
    assert len(server.requests) == asked
