"""Pull requests opened over real HTTP against a server that plays GitHub, with all it may answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rtb.errors import ExpectedError, MachineError
from rtb.proposal import Text, propose
from rtb.pull_request import PermissionDenied
from tests.examples import EXAMPLES, example_suites
from tests.github_server import Fault, GitHub, serving

ROOT = Path(__file__).resolve().parent.parent
TEXT = Text("20260101-model-agent-abcd1234", "Submission: a model", "Numbers.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "submission"
    (home / "run" / "a").mkdir(parents=True)
    (home / "metadata.json").write_text('{"x": "\u00e4"}\n')
    (home / "run" / "a" / "patch.diff").write_bytes(b"caf\xe9\r\nno newline at the end")
    (home / "run" / "a" / "console.log").write_bytes(b"line\r\nwith \x0c and \xe2\x80\xa8\n")
    return home


def opened(state: GitHub, folder: Path, waits: list[float], secret: str = "good") -> str:
    with serving(state) as api:
        return propose("org/board", folder, TEXT, secret=secret, api=api, wait=waits.append)


def in_repository(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {f"{TEXT.folder}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}
    return {"README.md": b"x", **found}


def test_the_folder_arrives_byte_for_byte_in_a_branch_of_its_own(folder: Path) -> None:
    state = GitHub()
    address = opened(state, folder, [])
    assert address == "https://github.example/org/board/pull/1"
    assert state.files("org/board", TEXT.branch) == in_repository(folder)
    assert state.pulls[0]["title"] == TEXT.title and state.pulls[0]["body"] == TEXT.body
    posts = [path.rpartition("/")[2] for method, path in state.asked if method == "POST"]
    assert posts == ["blobs", "trees", "commits", "refs", "pulls"], "few requests; the branch after its files"


def test_the_same_command_again_makes_nothing_again(folder: Path) -> None:
    state = GitHub()
    first = opened(state, folder, [])
    state.asked.clear()
    assert opened(state, folder, []) == first
    assert len(state.pulls) == 1
    assert all(method == "GET" for method, _ in state.asked)


@pytest.mark.parametrize("step", ["git/trees", "git/commits", "git/refs", "pulls"])
def test_a_connection_lost_after_the_work_was_done_makes_nothing_twice(step: str, folder: Path) -> None:
    state, waits = GitHub(faults=[Fault("POST", f"{step}$", lose=True)]), list[float]()
    assert opened(state, folder, waits).endswith("/pull/1")
    assert len(state.pulls) == 1 and waits
    assert [name for name in state.refs["org/board"] if "submission" in name] == [f"heads/{TEXT.branch}"]
    assert state.files("org/board", TEXT.branch) == in_repository(folder)


def test_a_process_that_died_between_branch_and_pull_request_goes_on_there(folder: Path) -> None:
    state = GitHub(faults=[Fault("POST", "pulls$", status=502, times=99)])
    with pytest.raises(MachineError, match="same command goes on"):
        opened(state, folder, [])
    state.faults.clear()
    state.asked.clear()
    assert opened(state, folder, []).endswith("/pull/1")
    assert [path for method, path in state.asked if method == "POST"] == ["/repos/org/board/pulls"]


@pytest.mark.parametrize("step", ["board$", "branches/main$", "git/trees$", "git/refs$", "pulls$"])
def test_a_bad_gateway_is_asked_again(step: str, folder: Path) -> None:
    method = "POST" if step in ("git/trees$", "git/refs$") else "GET"
    state, waits = GitHub(faults=[Fault(method, step, status=502, message="Bad gateway", times=2)]), list[float]()
    assert opened(state, folder, waits).endswith("/pull/1")
    assert waits == [1.0, 2.0]


def test_rate_limits_are_waited_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secondary = "You have exceeded a secondary rate limit"
    spent = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}
    state = GitHub(
        faults=[
            Fault("POST", "git/trees$", status=403, message=secondary, headers={"Retry-After": "7"}),
            Fault("POST", "git/commits$", status=403, message="API rate limit exceeded", headers=spent),
            Fault("POST", "pulls$", status=429, message=secondary),
        ]
    )
    waits: list[float] = []
    assert opened(state, folder, waits).endswith("/pull/1")
    assert waits == [7.0, 2.0, 60.0]
    assert "going on in 60 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("GET", "board$", status=401, message="Bad credentials"), "does not accept the token in GITHUB_TOKEN"),
        (
            Fault("POST", "git/trees$", status=403, message="Resource not accessible"),
            "'contents' and 'pull requests'",
        ),
        (
            Fault("POST", "pulls$", status=422, message="Validation Failed", errors=[{"message": "base is invalid"}]),
            r"status 422\): Validation Failed \(base is invalid\)",
        ),
        (Fault("GET", "board$", status=404, message="Not Found"), "knows no org/board"),
    ],
)
def test_a_refusal_is_explained_at_once_and_the_folder_stays(fault: Fault, words: str, folder: Path) -> None:
    state, waits = GitHub(faults=[fault]), list[float]()
    with pytest.raises(ExpectedError, match=words) as refused:
        opened(state, folder, waits)
    assert not waits and str(folder) in str(refused.value) and folder.is_dir()
    assert "good" not in str(refused.value), "the token is never shown"
    assert isinstance(refused.value, PermissionDenied) == (fault.status in (401, 403))


def test_a_wrong_token_is_said(folder: Path) -> None:
    with pytest.raises(PermissionDenied, match="does not accept the token"):
        opened(GitHub(), folder, [], secret="wrong")


def test_without_the_right_to_push_a_fork_is_used_once_it_is_ready(folder: Path) -> None:
    state, waits = GitHub(may_push=False, fork_delay=2), list[float]()
    assert opened(state, folder, waits).endswith("/pull/1")
    assert waits == [1.0, 2.0]
    assert state.pulls[0]["head"]["label"] == f"me:{TEXT.branch}"
    assert list(state.refs["org/board"]) == ["heads/main"]
    assert state.files("me/board", TEXT.branch) == in_repository(folder)


def command(api: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line on a stored run, with a GitHub of ours."""
    run = tmp_path / "runs" / "r"
    if not run.exists():
        run.parent.mkdir()
        shutil.copytree(EXAMPLES / "example" / "run", run)
        (run / "report.json").write_bytes((EXAMPLES / "example" / "report.json").read_bytes())
        (run / "predictions.jsonl").write_bytes((EXAMPLES / "example" / "all_preds.jsonl").read_bytes())
    arguments = ["submit", "r", "--repo", "org/board", "--metadata", str(EXAMPLES / "example" / "metadata.json")]
    environ = {
        key: value for key, value in os.environ.items() if key not in ("GITHUB_TOKEN", "GH_TOKEN", "RTB_TASKS")
    }
    environ |= {"PYTHONPATH": str(ROOT), "RTB_TASKS": str(example_suites()), "GITHUB_API_URL": api, **env}
    return subprocess.run(
        [sys.executable, "-m", "rtb.cli", *arguments], capture_output=True, text=True, timeout=120, check=False,
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_command_line_opens_one_and_without_a_token_says_what_to_set(tmp_path: Path) -> None:
    state = GitHub()
    with serving(state) as api:
        silent = command(api, tmp_path)
        assert silent.returncode == 1 and "GITHUB_TOKEN" in silent.stderr
        made = list((tmp_path / "submissions").iterdir())
        assert len(made) == 1 and (made[0] / "MANIFEST.json").is_file() and str(made[0].name) in silent.stderr
        assert not state.asked
        done = command(api, tmp_path, GITHUB_TOKEN="good")
    assert done.returncode == 0, done.stderr
    assert "https://github.example/org/board/pull/1" in done.stderr
    branch = state.pulls[0]["head"]["ref"]
    files = state.files("org/board", branch)
    sent = {name.split("/", 2)[2]: data for name, data in files.items() if name != "README.md"}
    stored = (path for path in made[0].rglob("*") if path.is_file())
    assert sent == {path.relative_to(made[0]).as_posix(): path.read_bytes() for path in stored}
