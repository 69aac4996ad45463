"""Mining: real git histories made here. Public ones are in test_public_histories.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rtb.checkout import run_git
from rtb.errors import ExpectedError, GitFailed
from rtb.history import Blobs, resolve, walk
from rtb.history_scan import scan
from rtb.mine_command import mine_command
from rtb.mining import Wish, mine, write
from rtb.repo_rules import load_rules
from rtb.suite import load_suite
from tests import gitrepo
from tests.small_history import KERNEL, LAUNCH, REPO, TEST, begun, mined, put, reasons


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return begun(tmp_path / "serve")


def test_a_pull_request_becomes_a_suite_that_loads_and_applies(repo: Path, tmp_path: Path) -> None:
    base = gitrepo.head(repo)
    landed = put(repo, "[Kernel] Add scaling (#7)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    found = mined(repo)
    assert reasons(found)[7] == "kept"
    out = tmp_path / "mined"
    folders = list(write(found, out))
    assert [item.name for item in folders] == ["acme__serve-7"]
    entry = load_suite(str(out)).entries[0]
    task = entry.task
    assert (task.base_commit, task.merge_commit, task.category) == (base, landed, "new_kernel")
    assert [(t.name, t.kind, t.change, t.signature) for t in task.targets] == [
        ("scale", "triton_kernel", "added", "(x, n)"),
        ("run", "launcher", "added", "(x)"),
    ]
    assert task.unit is not None and task.unit.command == "python -m pytest tests/test_ops.py"
    assert task.environment.python == "3.11"
    assert task.provenance.state == "draft"
    tree = tmp_path / "tree"
    run_git(["clone", "-q", str(repo), str(tree)], repository=tmp_path)
    run_git(["checkout", "-q", base], repository=tree)
    for name in ("gold.patch", "test.patch"):
        run_git(["apply", "--index", str(folders[0] / name)], repository=tree)
    run_git(["commit", "-q", "-m", "both"], repository=tree, env=gitrepo.WHO)
    assert gitrepo.tree_id(tree) == gitrepo.tree_id(repo, landed)


def test_what_is_dropped_and_why(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(repo, "Comment (#2)", pkg__ops__py=KERNEL.replace("    tl.st", "    # why\n    tl.st") + LAUNCH)
    put(repo, "Untested (#3)", pkg__odd__py=KERNEL.replace("scale", "unknown_thing"))
    put(
        repo,
        "Bump version (#4)",
        pkg__ops__py=KERNEL.replace("* n", "+ n") + LAUNCH,
        tests__test_ops__py=TEST + "#\n",
    )
    put(repo, "No number", pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH)
    put(repo, "Same tests (#5)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py="# new comment\n" + TEST)
    put(repo, "Docs (#6)", docs__guide__py=KERNEL)
    found = mined(repo)
    assert reasons(found) == {
        1: "kept",
        2: "no_triton_change",
        3: "no_tests",
        4: "no_objective",
        None: "no_number",
        5: "tests_unchanged",
        6: "no_triton_change",
    }
    assert all(item.detail for item in found.judgements)


def test_tests_that_were_there_count_when_they_name_the_target(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(repo, "Move (#3)", tests__test_ops__py=None, tests__test_scale__py=TEST.replace("run", "scale"))
    put(repo, "[Kernel] 2x faster scale (#4)", pkg__ops__py=KERNEL.replace("* n", "* (n + 0)") + LAUNCH)
    judgement = next(item for item in mined(repo).judgements if item.pull.number == 4)
    assert judgement.kept and not judgement.tests_changed and judgement.tests == ("tests/test_scale.py",)


def test_reverts_relands_and_several_commits_of_one_number(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(repo, 'Revert "Add it (#1)" (#2)', pkg__ops__py=None, tests__test_ops__py=None)
    put(repo, "Reland Add it (#3)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(repo, "Second, part one (#4)", pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH)
    put(
        repo,
        "Second, part two (#4)",
        pkg__ops__py=KERNEL.replace("* n", "/ n") + LAUNCH,
        tests__test_ops__py=TEST + "x=1\n",
    )
    put(repo, "Third (#5)", pkg__ops__py=KERNEL.replace("* n", "% n") + LAUNCH)
    put(repo, "Between", README__md="x")
    put(repo, "Third again (#5)", pkg__ops__py=KERNEL.replace("* n", "// n") + LAUNCH, tests__test_ops__py=TEST)
    found = mined(repo)
    told = reasons(found)
    assert (told[1], told[2], told[3], told[4], told[5]) == ("was_reverted", "is_revert", "kept", "kept", "ambiguous")
    four = [draft for draft in found.drafts if draft.task.pull_number == 4]
    assert len(four) == 1 and b"- n" not in four[0].gold, "the net of both commits"


def test_a_merge_is_compared_with_its_first_parent(repo: Path) -> None:
    run_git(["checkout", "-q", "-b", "side"], repository=repo)
    put(repo, "work", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    run_git(["checkout", "-q", "main"], repository=repo)
    put(repo, "meanwhile", README__md="other\n")
    message = "Merge pull request #9 from someone/side\n\nAdd scaling"
    run_git(["merge", "-q", "--no-ff", "-m", message, "side"], repository=repo, env=gitrepo.WHO)
    found = mined(repo)
    judgement = next(item for item in found.judgements if item.pull.number == 9)
    assert judgement.kept and judgement.pull.title == "Add scaling"
    assert found.drafts[0].task.patches.gold.paths == ("pkg/ops.py",)


def test_dates_limit_and_explain(repo: Path) -> None:
    put(repo, "Add it (#1)", 3, pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(
        repo,
        "Change it (#2)",
        9,
        pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH,
        tests__test_ops__py=TEST + "x = 1\n",
    )
    after = mined(repo, since=datetime(2025, 1, 5, tzinfo=UTC))
    assert set(reasons(after)) == {2}
    before = mined(repo, since=datetime(2025, 1, 2, tzinfo=UTC), until=datetime(2025, 1, 5, tzinfo=UTC))
    assert set(reasons(before)) == {1}
    assert len(mined(repo, limit=1).drafts) == 1
    only = mined(repo, only=2)
    assert [item.pull.number for item in only.judgements] == [2]
    assert any("kernel body" in line for line in only.judgements[0].evidence)


def test_a_second_run_reads_the_new_commits_only(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    first = mined(repo, cached=True)
    put(
        repo,
        "Change it (#2)",
        pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH,
        tests__test_ops__py=TEST + "x = 1\n",
    )
    second = mined(repo, cached=True)
    assert (first.read, second.read) == (2, 1)
    fresh = mined(repo)
    assert reasons(second) == reasons(fresh) and second.drafts == fresh.drafts
    run_git(["reset", "-q", "--hard", "HEAD~1"], repository=repo)
    put(repo, "Another (#3)", pkg__ops__py=KERNEL.replace("* n", "// n") + LAUNCH)
    assert set(reasons(mined(repo, cached=True))) == {None, 1, 3}, "a rewritten history is read again"


def test_processes_and_one_scanner_agree(repo: Path) -> None:
    for number in range(1, 230):
        body = KERNEL.replace("* n", f"* {number}")
        put(repo, f"Change (#{number})", pkg__ops__py=body + LAUNCH, tests__test_ops__py=TEST + f"x = {number}\n")
    rules = load_rules(REPO)
    two = scan(repo, resolve(repo, None), rules, workers=2, cached=False)
    assert two.read == 230
    assert [len(item.changes) for item in two.records] == [0, 2] + [1] * 228


def test_a_missing_blob_is_counted_and_survived(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(
        repo,
        "Change it (#2)",
        pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH,
        tests__test_ops__py=TEST + "x = 1\n",
    )
    blob = run_git(["rev-parse", "HEAD:pkg/ops.py"], repository=repo).stdout.decode().strip()
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    found = mined(repo)
    assert found.skipped == {"missing_blob": 1}
    assert reasons(found)[1] == "kept"


def test_a_history_that_cannot_be_read_to_its_end_is_an_error(repo: Path) -> None:
    first = put(repo, "Add it (#1)", pkg__ops__py=KERNEL)
    put(repo, "Change it (#2)", pkg__ops__py=KERNEL.replace("* n", "- n"))
    tree = run_git(["rev-parse", f"{first}^{{tree}}"], repository=repo).stdout.decode().strip()
    (repo / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(GitFailed, match="ended early"):
        list(walk(repo, resolve(repo, None)))


def test_a_shallow_clone_does_not_take_its_end_for_new_files(repo: Path, tmp_path: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    put(
        repo,
        "Change it (#2)",
        pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH,
        tests__test_ops__py=TEST + "x = 1\n",
    )
    shallow = tmp_path / "shallow"
    run_git(["clone", "-q", "--depth=2", f"file://{repo}", str(shallow)], repository=tmp_path)
    assert reasons(mined(shallow)) == {1: "shallow_boundary", 2: "kept"}


def test_odd_entries_are_counted(repo: Path) -> None:
    (repo / "link.py").symlink_to("pkg/ops.py")
    run_git(["update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/triton"], repository=repo)
    put(repo, "Odd (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    found = mined(repo)
    assert found.skipped.get("submodule_or_link", 0) >= 1 and reasons(found)[1] == "kept"


def test_no_clone_and_no_such_ref_are_said(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="no such folder"):
        mined(tmp_path / "nowhere")
    with pytest.raises(ExpectedError, match="--ref"):
        mined(repo, ref="nonesuch")
    (tmp_path / "plain").mkdir()
    with pytest.raises(ExpectedError, match="not a git repository"):
        mined(tmp_path / "plain")


def test_without_a_clone_a_blobless_mirror_is_fetched_and_updated(repo: Path) -> None:
    for name in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        run_git(["config", name, "true"], repository=repo)
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    local = mined(repo)
    far = mine(Wish(repo=REPO, url=f"file://{repo}"))
    assert far.drafts == local.drafts and reasons(far) == reasons(local)
    put(repo, "More (#2)", pkg__ops__py=KERNEL.replace("* n", "- n") + LAUNCH, tests__test_ops__py=TEST + "x = 1\n")
    again = mine(Wish(repo=REPO, url=f"file://{repo}"))
    assert again.read == 1 and reasons(again)[2] == "kept"


def test_neither_clone_nor_network_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="--clone PATH"):
        mine(Wish(repo=REPO, url=f"file://{tmp_path}/nowhere"))


def test_a_blob_reader_answers_in_order_and_says_none(repo: Path) -> None:
    put(repo, "Add (#1)", pkg__ops__py=KERNEL)
    with Blobs(repo) as blobs:
        told = list(
            blobs.read([f"HEAD:{path}" for path in ("pkg/ops.py", "no such file.py", "README.md", "pkg")] * 300)
        )
    assert [data is not None for _, data in told[:4]] == [True, False, True, False]
    assert len(told) == 1200 and told[-2][1] == b"hello\n"


def test_the_command_line_explains(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    app = typer.Typer()
    app.command("mine")(mine_command)
    done = CliRunner().invoke(app, ["--repo", REPO, "--clone", str(repo), "--explain", "1", "--fresh"])
    assert done.exit_code == 0, done.output
    assert "kept" in done.output and "kernel added: pkg/ops.py:scale" in done.output


def test_the_command_line_writes_and_prints_one_document(repo: Path, tmp_path: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    app = typer.Typer()
    app.command("mine")(mine_command)
    out = tmp_path / "drafts"
    done = CliRunner().invoke(app, ["--repo", REPO, "--clone", str(repo), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["pull_requests"] == {"kept": 1, "no_number": 1}
    assert [item["instance_id"] for item in told["drafts"]] == ["acme__serve-1"]
    assert (out / "acme__serve-1" / "task.json").is_file()
