"""Whole solve runs against the scripted model over real HTTP, in real sandboxes: every character, resume, limits."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtb.errors import ExpectedError
from rtb.prediction import read_predictions
from rtb.steps import read_step_file
from rtb.suite import LoadedSuite
from scaffold.attempt import read_record
from scaffold.budget import Budget
from scaffold.endpoint import ModelOptions
from scaffold.plans import SolveOptions
from scaffold.recorder import AttemptFolder
from scaffold.solve import solve
from scaffold.solve_folder import SolveFolder
from scaffold.trajectory import read_trajectory
from tests.cases import case_folder
from tests.scripted_model import ScriptedModel
from tests.toysolve import KEY, lines_of, one, options, patch_of
from tests.toysuite import solutions, toy_home

KINDS = [pytest.param("local"), pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedSuite]:
    with toy_home(tmp_path_factory.mktemp("toy"), SCRIPTED_API_KEY=KEY) as loaded:
        yield loaded


@pytest.fixture
def server(suite: LoadedSuite) -> Iterator[ScriptedModel]:
    with ScriptedModel(solutions(suite)).serve() as running:
        yield running


CHARACTERS = [
    # character, how it ends, which patch it leaves (gold, wrong or none), whether that is a finished answer
    ("good", "Submitted", "gold", True),
    ("wrong", "Submitted", "wrong", True),
    ("malformed", "Submitted", "gold", True),
    ("malformed-always", "RepeatedFormatError", "wrong", True),
    ("unknown-tool", "Submitted", "none", True),
    ("two-calls", "Submitted", "none", True),
    ("overflow", "Submitted", "gold", True),
    ("overflow-always", "ContextWindowExceeded", "wrong", True),
    ("throttled", "Submitted", "gold", True),
    ("broken", "ModelUnavailable", "none", False),
    ("broken-later", "ModelUnavailable", "wrong", False),
    ("broken-once", "Submitted", "gold", True),
    ("cut", "Submitted", "gold", True),
    ("unauthorized", "ModelRefused", "none", False),
    ("loop", "LimitsExceeded", "none", True),
    ("flood", "Submitted", "gold", True),
    ("history", "Submitted", "gold", True),
    ("network", "Submitted", "gold", True),
    ("never-submits", "LimitsExceeded", "wrong", True),
    ("committer", "Submitted", "gold", True),
    ("sleeper", "Submitted", "wrong", True),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("character", "status", "patch", "finished"), CHARACTERS, ids=str)
def test_every_character_ends_as_it_should(
    suite: LoadedSuite,
    server: ScriptedModel,
    tmp_path: Path,
    kind: str,
    character: str,
    status: str,
    patch: str,
    finished: bool,
) -> None:
    budget = Budget(steps=8, command_seconds=2.0 if character == "sleeper" else 20.0)
    chosen = options(server, tmp_path, character, sandbox=kind, budget=budget)
    summary = solve(one(suite), chosen)
    record = summary.rows[0].record
    assert (record.exit_status, record.finished) == (status, finished), record.exit_reason
    assert record.patch_origin == ("submitted" if status == "Submitted" else "salvaged")
    assert summary.incomplete is not finished
    folder = SolveFolder(chosen.out).attempt(record.instance_id, 1)
    trajectory = read_trajectory(folder.trajectory)
    assert (trajectory.exit_status, len(trajectory.turns)) == (status, record.steps)
    assert folder.trajectory.stat().st_size < 400_000  # also when 50 MB went over the screen
    if not finished and patch == "none":
        assert chosen.out.read_bytes() == b""  # no answer is not an empty answer
        return
    answer = patch_of(summary, chosen.out)
    gold = one(suite)[0].folder.gold_patch.read_text()
    assert {"gold": answer == gold, "wrong": "# tried" in answer, "none": answer == ""}[patch]
    assert folder.patch.read_text() == answer


def test_a_machine_that_answers_again_gets_the_rest_done(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    chosen = options(server, tmp_path, "broken", workers=1)
    first = solve(suite.entries, chosen)
    assert first.incomplete and [row.record.finished for row in first.rows] == [False, False]
    server.rename("broken", "good")
    second = solve(suite.entries, chosen)
    assert not second.incomplete and not any(row.kept for row in second.rows)
    asked = len(server.requests)
    third = solve(suite.entries, chosen)
    assert len(server.requests) == asked  # what is finished is never asked for again
    assert [row.kept for row in third.rows] == [True, True]
    assert [row.record for row in third.rows] == [row.record for row in second.rows]
    assert set(read_predictions(chosen.out).ids) == {entry.instance_id for entry in suite.entries}


def test_a_file_of_other_settings_is_not_mixed_up(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    chosen = options(server, tmp_path, "good")
    solve(one(suite), chosen)
    other = SolveOptions(**{**chosen.__dict__, "with_context": False})
    with pytest.raises(ExpectedError, match="with_context: True, now False"):
        solve(one(suite), other)


def test_tasks_may_be_solved_one_call_after_the_other_into_one_file(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    first, second = suite.entries
    chosen = options(server, tmp_path, "good")
    solve([second], chosen)
    before = lines_of(chosen.out)
    summary = solve([first], chosen)
    assert [row.record.instance_id for row in summary.rows] == [first.instance_id] and not summary.incomplete
    assert set(read_predictions(chosen.out).ids) == {first.instance_id, second.instance_id}
    assert lines_of(chosen.out)[second.instance_id] == before[second.instance_id]
    kept = chosen.out.read_bytes()
    other = SolveOptions(**{**chosen.__dict__, "model": ModelOptions(name="local/wrong", base_url=server.url)})
    shutil.rmtree(SolveFolder(chosen.out).attempt(first.instance_id, 1).path)
    with pytest.raises(ExpectedError, match="model: 'local/good', now 'local/wrong'"):
        solve([first], other)  # answers of two models would stand in one file
    assert chosen.out.read_bytes() == kept


def test_what_cannot_be_a_predictions_file_is_refused(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    chosen = options(server, tmp_path, "good")
    for out in (Path(), tmp_path, tmp_path / "a.attempts"):
        with pytest.raises(ExpectedError, match="is to be a file for the predictions"):
            solve(one(suite), SolveOptions(**{**chosen.__dict__, "out": out}))
    assert server.requests == [] and not list(tmp_path.iterdir())


def test_a_key_that_fits_no_header_is_said_before_anything_begins(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_API_KEY", "sk-schlüssel")
    with pytest.raises(ExpectedError, match=r"SCRIPTED_API_KEY.*check for stray characters"):
        solve(one(suite), options(server, tmp_path, "good", line={"key_variable": "SCRIPTED_API_KEY"}))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_ours_is_left_alone(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    chosen = options(server, tmp_path, "good")
    chosen.out.write_text("mine\n")
    with pytest.raises(ExpectedError, match="no solve run made it"):
        solve(one(suite), chosen)
    assert chosen.out.read_text() == "mine\n"


def test_two_runs_into_one_file_are_refused(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    chosen = options(server, tmp_path, "good")
    folder = SolveFolder(chosen.out)
    folder.attempts.mkdir()
    with (folder.attempts / ".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ExpectedError, match="another process"):
            solve(one(suite), chosen)


def test_attempts_have_a_file_each(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    chosen = options(server, tmp_path, "good", attempts=3)
    summary = solve(suite.entries, chosen)
    assert [path.name for path in summary.files] == ["good.jsonl", "good.attempt-2.jsonl", "good.attempt-3.jsonl"]
    for number, path in enumerate(summary.files, start=1):
        found = read_predictions(path)
        assert found.ids == tuple(entry.instance_id for entry in suite.entries) and not found.problems
        assert {found.load(name).extra["attempt"] for name in found.ids} == {number}
    assert len(summary.rows) == 6 and not summary.incomplete


def test_a_line_says_what_the_answer_took_and_where_its_trajectory_is(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"models": {"local/good": {"input": 10, "output": 20}}}')
    chosen = options(server, tmp_path, "good", prices=prices)
    record = solve(one(suite), chosen).rows[0].record
    line = json.loads(chosen.out.read_text())
    assert list(line)[:3] == ["instance_id", "model_name_or_path", "model_patch"]
    assert line["tokens"] == record.prompt_tokens + record.completion_tokens > 0
    assert line["cost_usd"] == pytest.approx((record.prompt_tokens * 10 + record.completion_tokens * 20) / 1e6)
    assert (line["steps"], line["exit_status"], line["model_name_or_path"]) == (3, "Submitted", "local/good")
    seconds = record.seconds
    assert 0 < seconds["start"] + seconds["sandbox"] <= seconds["total"] + 0.002  # each is rounded
    trajectory = read_trajectory(tmp_path / line["trajectory"])
    usages = [turn.usage for turn in trajectory.turns]
    assert sum(usage.total for usage in usages if usage) == line["tokens"] and None not in usages


def test_limits(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"models": {"local/loop-1": {"input": 1000, "output": 1000}}}')
    budgets = {
        "loop-1": (Budget(steps=None, cost_usd=1.0), "LimitsExceeded", "cost limit: $"),
        "loop-2": (Budget(steps=None, tokens_when_cost_unknown=1500), "LimitsExceeded", "token limit: "),
        "loop-3": (Budget(steps=2), "LimitsExceeded", "step limit: 2 of 2"),
        "loop-4": (Budget(steps=None, wall_seconds=2.0), "TimeExceeded", "time was used up"),
        "slow-5": (Budget(steps=None, wall_seconds=1.0), "TimeExceeded", "while the model was asked"),
    }
    for character, (budget, status, said) in budgets.items():
        summary = solve(one(suite), options(server, tmp_path, character, budget=budget, prices=prices))
        record = summary.rows[0].record
        assert (record.exit_status, record.finished) == (status, True)
        assert said in record.exit_reason, character
        assert (record.cost_usd is not None) is (character == "loop-1")


def test_a_model_without_tools_speaks_in_fenced_blocks(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    for character in ("good", "malformed", "two-calls"):
        chosen = options(server, tmp_path, character, line={"dialect": "text", "stream": False})
        record = solve(one(suite), chosen).rows[0].record
        assert record.exit_status == "Submitted"
    assert all("tools" not in body and "tool_calls" not in str(body["messages"]) for body in server.requests)
    assert patch_of(solve(one(suite), options(server, tmp_path, "good", line={"dialect": "text", "stream": False})),
                    tmp_path / "good.jsonl") == one(suite)[0].folder.gold_patch.read_text()  # fmt: skip


def test_no_key_and_no_secret_gets_into_any_file(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    server.key = KEY
    for character in ("good", "spy", "unauthorized"):
        chosen = options(server, tmp_path, character, line={"key_variable": "SCRIPTED_API_KEY"})
        solve(one(suite), chosen)
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in json.dumps(server.requests)  # not in a prompt, not in an observation


def test_what_the_agent_did_is_kept_step_by_step(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    chosen = options(server, tmp_path, "committer")
    solve(one(suite), chosen)
    folder = SolveFolder(chosen.out).attempt(one(suite)[0].instance_id, 1)
    steps = read_step_file(folder.steps)
    assert [step.number for step in steps] == [1]  # the commit and the submission changed no file
    assert steps[-1].prediction.model_patch == folder.patch.read_text()
    trees = [result.tree for _, result in read_trajectory(folder.trajectory).commands]
    assert len(trees) == 3 and len(set(trees)) == 1


def test_a_killed_attempt_can_be_read_from_its_journal(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    chosen = options(server, tmp_path, "good")
    solve(one(suite), chosen)
    folder = SolveFolder(chosen.out).attempt(one(suite)[0].instance_id, 1)
    whole = read_trajectory(folder.trajectory)
    folder.trajectory.unlink()
    journal = folder.journal.read_bytes()
    folder.journal.write_bytes(journal[: len(journal) * 3 // 4])
    part = read_trajectory(folder.path)
    assert 0 < len(part.turns) < len(whole.turns)
    assert part.turns[0] == whole.turns[0]


def test_case_49_the_patch_of_a_crashed_agent_is_salvaged(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    expected = json.loads((case_folder("49-agent-crash-before-submit") / "case.json").read_text())["expected"]
    chosen = options(server, tmp_path, "overflow-always")
    solve(one(suite), chosen)
    line = json.loads(chosen.out.read_text())
    assert {name: line[name] for name in ("exit_status", "patch_origin")} == {
        name: expected[name] for name in ("exit_status", "patch_origin")
    }
    assert "+# tried" in line["model_patch"]


def test_case_105_equal_faults_stop_the_batch_and_make_no_empty_patches(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    refused = options(server, tmp_path, "unauthorized", attempts=3, workers=1)
    summary = solve(suite.entries, refused)
    assert len(summary.rows) == 1 and summary.wanted == 6  # the first refusal is enough
    assert summary.incomplete and "HTTP 401" in str(summary.stopped)
    broken = options(server, tmp_path, "broken", attempts=3, workers=1)
    summary = solve(suite.entries, broken)
    assert len(summary.rows) == 3 and "3 attempts in a row ended with ModelUnavailable" in str(summary.stopped)
    assert refused.out.read_bytes() == broken.out.read_bytes() == b""


def test_a_sandbox_that_dies_is_no_answer_and_the_attempt_is_made_again(
    suite: LoadedSuite, server: ScriptedModel, tmp_path: Path
) -> None:
    died: list[str] = []

    def kill(body: dict[str, Any]) -> None:
        if not died and any(message["role"] == "assistant" for message in body["messages"]):
            died.append(body["messages"][1]["content"].split("The work tree at `")[1].split("`")[0])
            shutil.rmtree(Path(died[0]).parent)

    server.before_turn = kill
    chosen = options(server, tmp_path, "wrong", workers=1)
    summary = solve(one(suite), chosen)
    record = summary.rows[0].record
    assert len(died) == 1 and (record.exit_status, record.finished) == ("Submitted", True)
    folder = SolveFolder(chosen.out).attempt(record.instance_id, 1)
    kept = AttemptFolder(folder.path.with_name("attempt-1.fault-1"))
    first = read_record(kept)
    assert first is not None and (first.exit_status, first.finished) == ("SandboxFault", False)
    assert "SandboxGone" in first.exit_reason
    assert b"# tried" in kept.patch.read_bytes()  # as it was after the last step
    seen = read_trajectory(kept.trajectory)
    assert [result.returncode for _, result in seen.commands] == [0, None]  # the death is no observation


def test_a_sandbox_that_always_dies_gives_no_line(suite: LoadedSuite, server: ScriptedModel, tmp_path: Path) -> None:
    def kill(body: dict[str, Any]) -> None:
        shutil.rmtree(Path(body["messages"][1]["content"].split("The work tree at `")[1].split("`")[0]).parent)

    server.before_turn = kill
    chosen = options(server, tmp_path, "good", workers=1, retries=1)
    summary = solve(one(suite), chosen)
    assert summary.incomplete and summary.rows[0].record.exit_status == "SandboxFault"
    assert chosen.out.read_bytes() == b""
    assert len(list(SolveFolder(chosen.out).attempts.rglob("attempt.json"))) == 2
