"""Packing a run into a submission: what is asked for, what is refused, and the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rtb import metadata_draft, packing
from rtb.errors import ExpectedError, InvalidFile
from rtb.run import Run
from rtb.submission import Metadata, SubmissionFolder
from tests.examples import EXAMPLES, TASK, checker, count, edit, rtb


@pytest.fixture
def stored_run(tmp_path: Path) -> Run:
    """A finished run, as `rtb evaluate` leaves it."""
    example = SubmissionFolder(EXAMPLES / "example")
    run = Run(tmp_path / "runs" / "r")
    shutil.copytree(example.run.path, run.path)
    shutil.copyfile(example.report, run.report_json)
    shutil.copyfile(example.predictions, run.predictions)
    return run


def _metadata(run: Run) -> Metadata:
    answers = {"scaffold": {"name": "none"}, "contact": "a@b.example", "example": True}
    document = metadata_draft.draft(run)
    document["model"]["open_weights"] = False
    return metadata_draft.parse({**document, **answers}, "test")


def test_a_packed_run_passes_the_check_and_packing_again_gives_the_same(stored_run: Run, tmp_path: Path) -> None:
    first = packing.pack(stored_run, tmp_path / "one", _metadata(stored_run))
    assert checker().check(first.path).accepted
    before = first.manifest.read_bytes()
    again = packing.pack(stored_run, tmp_path / "one", _metadata(stored_run))
    assert again.manifest.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "runs"], "nothing temporary is left"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ExpectedError, match="no earlier submission"):
        packing.pack(stored_run, tmp_path / "mine", _metadata(stored_run))
    assert (tmp_path / "mine" / "thesis.txt").exists()


SECRETS = {
    "an OpenAI-style API key": "sk-" + "proj-" + "Ab1" * 12,
    "a GitHub token": "ghp" + "_" + "Ab1" * 12,
    "a Hugging Face token": "hf" + "_" + "AbC" * 12,
    "an AWS access key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "a private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
    "a Google API key": "AIza" + "a" * 35,
    "a Slack token": "xoxb" + "-123456789012-abc",
    "a password in an address": "https://" + "me:hunter22" + "@example.org/x.git",
    "an Authorization header": "Authori" + "zation: Bearer " + "abc123def456ghi789",
    "a value named like a key": "MY_API_" + "KEY=" + "aB3" * 10,
}


@pytest.mark.parametrize("label", SECRETS)
def test_secrets_are_refused_with_file_and_line_and_never_shown(label: str, stored_run: Run, tmp_path: Path) -> None:
    home = tmp_path / "t" / TASK / "attempt-1"
    home.mkdir(parents=True)
    text = json.dumps({"messages": [{"content": f"export X\n{SECRETS[label]}"}]}, indent=1)
    (home / "trajectory.traj.json").write_text(text)
    line = text[: text.index(SECRETS[label][:12])].count("\n") + 1
    with pytest.raises(packing.SecretsFound) as refused:
        packing.pack(stored_run, tmp_path / "out", _metadata(stored_run), trajectories=tmp_path / "t")
    assert f"trajectories/{TASK}/attempt-1/trajectory.traj.json:{line}: looks like {label}" in str(refused.value)
    assert SECRETS[label] not in str(refused.value)
    assert not (tmp_path / "out").exists()
    told = _metadata(stored_run).model_copy(
        update={"harmless": (f"trajectories/{TASK}/attempt-1/trajectory.traj.json:{line}",)}
    )
    packing.pack(stored_run, tmp_path / "out", told, trajectories=tmp_path / "t")


def test_the_values_of_this_environments_keys_are_secrets_too(stored_run: Run, tmp_path: Path) -> None:
    with pytest.raises(packing.SecretsFound, match=r"console.log:1: looks like the value of a key in this env"):
        (stored_run.task(TASK).path / "unit" / "console.log").write_text("correct horse battery\n")
        packing.pack(stored_run, tmp_path / "o", _metadata(stored_run), own_secrets=("correct horse battery",))


def test_answers_that_do_not_fit_are_asked_for_again(stored_run: Run) -> None:
    document = metadata_draft.draft(stored_run)
    answers = iter(
        ("My model", "", "perhaps", "no", "soon", "2026-01-31", "", "mini", "2", "3", "best", "first", "-1", "12.5",
         "", "ftp://x https://x.example/y", "https://x.example/y", "", "me@x.example")
    )  # fmt: skip
    complaints: list[str] = []
    found = metadata_draft.ask_for(document, lambda *_: next(answers), complaints.append)
    assert (found.model.name, found.model.open_weights, str(found.model.released)) == (
        "My model",
        False,
        "2026-01-31",
    )
    assert (found.scaffold.name, found.cost.total_usd, found.contact) == ("mini", 12.5, "me@x.example")
    assert found.links == ("https://x.example/y",)
    assert len(complaints) >= 5


def test_a_metadata_file_with_faults_names_each_field(stored_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"model": {"name": "x\\u0007"}, "contact": "", "colour": "red"}')
    with pytest.raises(InvalidFile) as refused:
        metadata_draft.read_metadata(path, metadata_draft.draft(stored_run))
    for field in ("model.name", "model.open_weights", "contact", "colour", "scaffold.name"):
        assert f"field {field}" in str(refused.value)


def test_the_command_line_submits_and_says_what_is_missing(stored_run: Run, tmp_path: Path) -> None:
    run = str(stored_run.path)
    silent = rtb("submit", run, "--out", str(tmp_path / "s"))
    assert silent.returncode == 1 and "--metadata" in silent.stderr and "contact" in silent.stderr
    draft = json.loads(rtb("submit", run, "--draft").stdout)
    assert draft["hardware"]["sandbox"] == "docker" and draft["contact"] is None
    given = tmp_path / "m.json"
    answers = {"model": {"open_weights": True}, "scaffold": {"name": "x"}, "contact": "c", "example": True}
    given.write_text(json.dumps(answers))
    done = rtb("submit", run, "--out", str(tmp_path / "s"), "--metadata", str(given), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accepted"] is True
    edit(stored_run.report_json, count)
    wrong = rtb("submit", run, "--out", str(tmp_path / "s"), "--metadata", str(given))
    assert wrong.returncode == 1 and "report.json: report: says 2 resolved" in wrong.stderr
    no_token = rtb(
        "submit", run, "--repo", "a/b", "--metadata", str(given), cwd=tmp_path, GITHUB_TOKEN="", GH_TOKEN=""
    )
    assert no_token.returncode == 1
