"""Mining against public histories (with RTB_CLONES): hard cases with their right answers, and the paper's list.

RTB_CLONES names a folder with clones as `owner+name` or `owner__name` (a git directory, or with it in `repo/`), or
a file with lines `owner/name<TAB>path[<TAB>ref]`. RTB_CLONES_CACHE keeps what was read in the user's cache.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rtb.candidate import Judgement, judge_all
from rtb.commit_record import Record
from rtb.history import resolve
from rtb.history_scan import scan
from rtb.mining import Wish, mine
from rtb.repo_rules import load_rules

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("RTB_CLONES_CACHE"):
        monkeypatch.setenv("RTB_CACHE", str(tmp_path / "cache"))


CASES = json.loads((DATA / "hard_cases.json").read_text())
REFS = {
    "vllm-project/vllm": ("HabanaAI/vllm-fork", "dev/fix_PR21116"),
    "sgl-project/sglang": ("modal-projects/sglang", "main"),
}


def clone_of(name: str) -> tuple[Path, str | None] | None:
    """Where RTB_CLONES has a repository, and its ref."""
    place = os.environ.get("RTB_CLONES")
    if not place:
        return None
    home, ref = REFS.get(name, (name, "main"))
    if Path(place).is_file():
        for line in Path(place).read_text().splitlines():
            owner, path, *rest = [*line.split("\t"), ""][:3]
            if owner in (name, home) and Path(path).is_dir():
                return Path(path), (rest[0] or ref)
        return None
    for folder in (home.replace("/", "+"), home.replace("/", "__")):
        for path in (Path(place) / folder / "repo", Path(place) / folder):
            if path.is_dir():
                return path, ref
    return None


@cache
def judged(name: str) -> tuple[list[Record], list[Judgement]]:
    """A history's records and judgements, read once a session."""
    found = clone_of(name)
    assert found is not None
    path, ref = found
    rules = load_rules(name)
    cached = bool(os.environ.get("RTB_CLONES_CACHE"))
    records = list(scan(path, resolve(path, ref), rules, cached=cached).records)
    return records, list(judge_all(records, rules))


@pytest.mark.slow
@pytest.mark.clones
@pytest.mark.parametrize("case", CASES, ids=[f"{c['repo']}-{c.get('commit') or c.get('pull')}" for c in CASES])
def test_hard_case(case: dict[str, Any]) -> None:
    if clone_of(case["repo"]) is None:
        pytest.skip(f"RTB_CLONES names no clone of {case['repo']}")
    records, judgements = judged(case["repo"])
    if "commit" in case:
        record = next(item for item in records if item.sha.startswith(case["commit"]))
        found = [item for item in judgements if record in item.pull.records]
    else:
        found = [item for item in judgements if item.pull.number == case["pull"]]
        record = found[0].pull.records[-1]
    assert len(found) == 1, "one pull request, one judgement"
    judgement = found[0]
    edits = [f"{item.path}:{item.name}" for item in record.comparison.kernel_edits]
    assert judgement.pull.number == case["number"], case["why"]
    if wanted := case.get("any_reason") or ([case["reason"]] if "reason" in case else None):
        assert judgement.reason in wanted, (case["why"], judgement.detail)
    assert judgement.reason not in case.get("not_reason", ()), (case["why"], judgement.detail)
    if case.get("no_kernel_edit"):
        assert edits == [], case["why"]
    if case.get("kernel_edit"):
        assert edits, case["why"]
    if "kernel_edits" in case:
        assert sorted(item.rsplit(":", 1)[-1] for item in edits) == case["kernel_edits"], case["why"]
    if "no_kernel_in" in case:
        assert not any(case["no_kernel_in"] in item for item in edits), case["why"]
    if "no_test" in case:
        assert case["no_test"] not in judgement.tests
    if "kind" in case:
        assert judgement.kind == case["kind"], (case["why"], judgement.detail)
    if "labels" in case:
        assert {item.label for item in record.changes if item.is_kernel} <= set(case["labels"]), case["why"]
    if "says" in case:
        assert any(case["says"] in line for line in judgement.evidence)
    assert set(case.get("targets", ())) <= {item.name for item in judgement.targets}, case["why"]


PAPER = json.loads((DATA / "paper_pulls.json").read_text())


@pytest.mark.slow
@pytest.mark.clones
@pytest.mark.parametrize("case", PAPER, ids=[str(c["number"]) for c in PAPER])
def test_the_papers_pull_requests_are_found(case: dict[str, Any]) -> None:
    if clone_of("vllm-project/vllm") is None:
        pytest.skip("RTB_CLONES names no clone of vLLM")
    place = clone_of("vllm-project/vllm")
    assert place is not None
    found = mine(Wish(repo="vllm-project/vllm", clone=place[0], ref=place[1], only=case["number"]))
    assert [item.reason for item in found.judgements] == ["kept"], found.judgements[0].detail
    task = found.drafts[0].task
    assert task.category == case["category"], case.get("why")
    names = {(item.path, item.name.rsplit(".", 1)[-1]) for item in task.targets}
    assert {(path, name) for path, held in case["targets"].items() for name in held} <= names
