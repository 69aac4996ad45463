"""`rtb mine --describe`: a real command line, a real history, a real HTTP server that plays a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rtb.cli import app
from rtb.errors import ExpectedError
from rtb.review import Review, record
from rtb.suite import load_suite
from scaffold.model import ModelRefused
from tests import gitrepo
from tests.scripted_model import ScriptedModel

REPO = "acme/serve"
STORE = "    tl.store(x, tl.load(x) * {factor})\n"
KERNEL = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef scale(x, n):\n" + STORE
TEST = "from pkg.ops import scale\n\n\ndef test_scale():\n    assert scale\n"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RTB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RTB_TEST_KEY", raising=False)
    path = gitrepo.init(tmp_path / "serve")
    gitrepo.commit(path, "Start", {"README.md": b"hello\n"})
    for number, factor in ((1, "n"), (2, "(n + 1)")):
        files = {
            "pkg/ops.py": KERNEL.format(factor=factor).encode(),
            "tests/test_ops.py": f"{TEST}x={number}\n".encode(),
        }
        gitrepo.commit(path, f"[Kernel] Scale rows, step {number} (#{number})", files)
    return path


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with ScriptedModel({}).serve() as running:
        yield running


def mine(repo: Path, out: Path, server: ScriptedModel, character: str, *more: str) -> Result:
    model = ["--describe", character, "--base-url", server.url]
    return CliRunner().invoke(app, ["mine", "--repo", REPO, "--clone", str(repo), "--out", str(out), *model, *more])


def statement(out: Path, number: int) -> str:
    return (out / f"acme__serve-{number}" / "problem_statement.md").read_text()


def test_a_model_describes_and_the_state_stays_draft(repo: Path, tmp_path: Path, server: ScriptedModel) -> None:
    out = tmp_path / "mined"
    done = mine(repo, out, server, "describer", "--json")
    assert done.exit_code == 0, done.output
    assert statement(out, 1) == "# Scale rows\n\nMultiply each row by its factor.\n", "thoughts are left out"
    task = load_suite(str(out)).entries[0].task
    assert task.provenance.state == "draft"
    assert any("written by describer" in note for note in task.provenance.notes)
    assert [item["leaked_lines"] for item in json.loads(done.stdout)["drafts"]] == [[], []]
    asked = server.requests[0]["messages"]
    assert "scale(x, n)" in asked[1]["content"] and "no code" in asked[0]["content"]


def test_lines_of_the_patch_go_back_once(repo: Path, tmp_path: Path, server: ScriptedModel) -> None:
    assert mine(repo, tmp_path / "mined", server, "leaker", "--limit", "1").exit_code == 0
    assert len(server.requests) == 2
    assert "tl.store(x, tl.load(x) * n)" in server.requests[1]["messages"][-1]["content"]
    assert statement(tmp_path / "mined", 1) == "# Scale\n\nIn other words.\n"


def test_what_still_leaks_is_flagged(repo: Path, tmp_path: Path, server: ScriptedModel) -> None:
    done = mine(repo, tmp_path / "mined", server, "leaker-always", "--limit", "1", "--json")
    leaked = json.loads(done.stdout)["drafts"][0]["leaked_lines"]
    assert "tl.store(x, tl.load(x) * n)" in leaked
    evidence = load_suite(str(tmp_path / "mined")).entries[0].task.provenance.evidence
    assert any(line.startswith("the description repeats: tl.store") for line in evidence)


def test_a_refusal_in_the_middle_loses_nothing(repo: Path, tmp_path: Path, server: ScriptedModel) -> None:
    out = tmp_path / "mined"
    server.before_turn = lambda _: server.rename("describer", "quota") if len(server.requests) > 1 else None
    done = mine(repo, out, server, "describer")
    assert isinstance(done.exception, ModelRefused)
    assert "1 of 2 drafts are described" in str(done.exception) and "quota" in str(done.exception)
    assert statement(out, 1).startswith("# Scale rows\n") and statement(out, 2).startswith(
        "# [Kernel] Scale rows, step 2"
    )
    server.before_turn = lambda _: None
    server.rename("describer", "describer")
    before = len(server.requests)
    assert mine(repo, out, server, "describer").exit_code == 0
    assert len(server.requests) == before + 1, "the first answer was kept"
    assert statement(out, 2) == statement(out, 1)


def test_no_key_and_no_such_model_are_said_before_anything_is_mined(
    repo: Path, tmp_path: Path, server: ScriptedModel
) -> None:
    out = tmp_path / "mined"
    missing = mine(repo, out, server, "describer", "--api-key-env", "RTB_TEST_KEY")
    assert isinstance(missing.exception, ExpectedError) and "RTB_TEST_KEY is not set" in str(missing.exception)
    assert not out.exists()
    bad = CliRunner().invoke(app, ["mine", "--repo", REPO, "--clone", str(repo), "--describe", "nobody/x"])
    assert isinstance(bad.exception, ExpectedError) and "nobody/x" in str(bad.exception)


def test_a_reviewed_task_is_left_as_it_is(repo: Path, tmp_path: Path, server: ScriptedModel) -> None:
    out = tmp_path / "mined"
    assert mine(repo, out, server, "describer").exit_code == 0
    entry = load_suite(str(out)).entries[0]
    for who in ("ada", "bob"):
        record(entry, Review(reviewer=who, intent=2, completeness=2, absence_of_leaks=2, at="2026-01-01T00:00:00Z"))
    kept = (entry.folder.path / "task.json").read_bytes()
    assert mine(repo, out, server, "leaker-always").exit_code == 0
    assert (entry.folder.path / "task.json").read_bytes() == kept
    assert load_suite(str(out)).entries[0].task.provenance.state == "accepted"
