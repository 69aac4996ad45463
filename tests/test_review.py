"""Reviews: two people, three criteria, one rule."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rtb.cli import app
from rtb.errors import InvalidFile
from rtb.review import Review, averages, load_reviews, record, standing
from rtb.review_command import review_command
from rtb.suite import load_suite


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    """Two demo tasks as drafts in a suite of their own."""
    home = tmp_path / "drafts"
    home.mkdir()
    demo = load_suite("demo")
    suite = json.loads((demo.path / "suite.json").read_text())
    suite.update(name="drafts", sources={})
    (home / "suite.json").write_text(json.dumps(suite))
    for entry in demo.entries[:2]:
        shutil.copytree(entry.folder.path, home / entry.instance_id)
        task = json.loads((home / entry.instance_id / "task.json").read_text())
        task["provenance"]["state"] = "draft"
        (home / entry.instance_id / "task.json").write_text(json.dumps(task))
    return home


def review(who: str, *scores: int) -> Review:
    intent, completeness, leaks = scores
    return Review.model_validate(
        {
            "reviewer": who,
            "intent": intent,
            "completeness": completeness,
            "absence_of_leaks": leaks,
            "at": "2026-01-01",
        }
    )


def test_the_rule() -> None:
    assert standing([]) == "draft" and standing([review("a", 2, 2, 2)]) == "draft"
    assert standing([review("a", 2, 2, 2), review("a", 2, 2, 2)]) == "draft", "one person is not two"
    assert standing([review("a", 2, 2, 2), review("b", 1, 2, 2)]) == "accepted"
    assert standing([review("a", 2, 2, 1), review("b", 2, 2, 1)]) == "revise"
    assert averages([review("a", 2, 2, 1), review("b", 2, 0, 1)])["completeness"] == 1


def test_states_are_recorded_with_their_reviewers(drafts: Path) -> None:
    def entry() -> object:
        return load_suite(str(drafts)).entries[0]

    assert record(entry(), review("ada", 2, 2, 2)) == "draft"
    assert record(entry(), review("bob", 2, 2, 1)) == "accepted"
    assert entry().task.provenance.state == "accepted"
    assert record(entry(), review("bob", 0, 2, 2)) == "revise"
    assert entry().task.provenance.state == "draft", "a second look can take acceptance back"
    assert [item.reviewer for item in load_reviews(entry()).reviews] == ["ada", "bob"]


def test_the_list_shows_what_is_in_a_state(drafts: Path) -> None:
    first, second = load_suite(str(drafts)).entries
    for who in ("ada", "bob"):
        record(first, review(who, 2, 2, 2))
    for state, shown, hidden in (("accepted", first, second), ("draft", second, first)):
        told = CliRunner().invoke(app, ["tasks", "list", "--suite", str(drafts), "--state", state])
        assert told.exit_code == 0, told.output
        assert shown.instance_id in told.output and hidden.instance_id not in told.output


def test_a_score_out_of_range_is_refused(drafts: Path) -> None:
    path = load_suite(str(drafts)).entries[0].folder.path / "reviews.json"
    path.write_text('{"instance_id": "x", "reviews": [{"reviewer": "a", "intent": 3}]}')
    with pytest.raises(InvalidFile, match="intent"):
        load_reviews(load_suite(str(drafts)).entries[0])


def run(drafts: Path, *arguments: str, answers: str = "") -> object:
    app = typer.Typer()
    app.command()(review_command)
    return CliRunner().invoke(app, ["--suite", f"{drafts}/", *arguments], input=answers)


def test_the_terminal_shows_and_asks(drafts: Path) -> None:
    done = run(drafts, "--reviewer", "ada", answers="2\n9\n2\n1\nfine\ns\n")
    assert done.exit_code == 0, done.output
    first, second = load_suite(str(drafts)).entries
    assert "targets:" in done.output and "+++ b/" in done.output
    kept = load_reviews(first).reviews
    assert [(item.reviewer, item.intent, item.absence_of_leaks, item.comment) for item in kept] == [
        ("ada", 2, 1, "fine")
    ]
    assert load_reviews(second).reviews == (), "skipped"


def test_scores_without_questions(drafts: Path) -> None:
    name = load_suite(str(drafts)).entries[0].instance_id
    for who in ("ada", "bob"):
        done = run(drafts, name, "--reviewer", who, "--scores", "2,2,2", "--json")
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["standing"] == "accepted"
    assert run(drafts, name, "--scores", "2,2,3").exit_code == 2
