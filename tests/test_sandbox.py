"""One contract for every sandbox: the same test, with processes of this machine and in a container."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rtb.docker_sandbox import open_docker_sandbox
from rtb.errors import MachineError, OutOfSpace, SandboxGone
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import EXECUTABLE, SYMBOLIC_LINK, Change, Entry, ExecResult, Limits, Sandbox
from tests.cases import case_folder
from tests.conftest import processes_with

Open = Callable[..., AbstractContextManager[Sandbox]]
KINDS = [pytest.param("local"), pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture(params=KINDS)
def open_box(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a sandbox whose tree holds one file, m.py."""
    if request.param == "docker":
        image = request.getfixturevalue("sandbox_image")
        return lambda limits=None, env=None: open_docker_sandbox(
            image, env=env or {}, limits=limits or Limits(), run="test"
        )
    base = tmp_path / "base"
    base.mkdir()
    (base / "m.py").write_text("x = 1\n")
    return lambda limits=None, env=None: open_local_sandbox(
        base, env=env or {}, path=os.defpath, limits=limits or Limits(), parent=tmp_path
    )


@pytest.fixture
def box(open_box: Open) -> Iterator[Sandbox]:
    with open_box() as sandbox:
        yield sandbox


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "output"


def sh(box: Sandbox, out: Path, script: str, **options: object) -> ExecResult:
    return box.execute(["sh", "-c", script], output=out, **{"timeout_seconds": 60.0, **options})  # type: ignore[arg-type]


def unique_sleep() -> str:
    """A sleep that can be found among all processes."""
    return f"sleep 98{random.randrange(10**6, 10**7)}"


# How a command ends


@pytest.mark.parametrize(
    ("script", "code"), [("true", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -SEGV $$", -11), ("exit 255", 255)]
)
def test_exit_code_and_signal(box: Sandbox, out: Path, script: str, code: int) -> None:
    result = sh(box, out, script)
    assert (result.exit_code, result.timed_out, result.output_bytes) == (code, False, 0)


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [(["no-such-program"], None, 127), (["/etc"], None, 126), (["true"], "/no/such/folder", 126)],
)
def test_what_cannot_be_run_is_the_commands_fault(
    box: Sandbox, out: Path, argv: list[str], cwd: str | None, code: int
) -> None:
    result = box.execute(argv, output=out, timeout_seconds=60, cwd=cwd)
    assert result.exit_code == code
    assert out.read_bytes()  # says why


def test_both_streams_are_kept_in_the_order_of_the_command(box: Sandbox, out: Path) -> None:
    sh(box, out, "for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    assert out.read_text() == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"


def test_time_limit_kills_everything_inside(box: Sandbox, out: Path) -> None:
    sleep = unique_sleep()
    hidden = f"setsid sh -c 'trap \"\" TERM HUP; {sleep} & wait' &"
    result = sh(box, out, f"echo begun; env -i PATH=$PATH {hidden} {sleep}", timeout_seconds=2.0)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert out.read_text() == "begun\n"
    assert processes_with(sleep) == []


def test_nothing_outlives_a_command_that_ends(box: Sandbox, out: Path) -> None:
    sleep = unique_sleep()
    result = sh(box, out, f"(setsid env -i PATH=$PATH {sleep} >/dev/null 2>&1 &) ; (setsid {sleep} &); echo done")
    assert (result.exit_code, out.read_text()) == (0, "done\n")
    assert processes_with(sleep) == []


def test_output_closed_early_is_not_the_end(box: Sandbox, out: Path) -> None:
    assert sh(box, out, "exec >/dev/null 2>&1; sleep 1; exit 7").exit_code == 7


def test_one_commands_end_leaves_another_alone(box: Sandbox, tmp_path: Path) -> None:
    results: list[ExecResult] = []
    script = "while [ ! -e go ]; do sleep 0.1; done; echo went on"
    long = threading.Thread(target=lambda: results.append(sh(box, tmp_path / "long", script)))
    long.start()
    for _ in range(2):
        assert sh(box, tmp_path / "short", f"{unique_sleep()}", timeout_seconds=1.0).timed_out
        assert sh(box, tmp_path / "short", "exit 3").exit_code == 3
    box.write(box.tree, Change(write={"go": Entry(b"")}))
    long.join(60)
    assert [result.exit_code for result in results] == [0]
    assert (tmp_path / "long").read_text() == "went on\n"


# What a command sees


def test_environment_is_fixed_and_clean(open_box: Open, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTB_TEST_SECRET", "of the host")
    with open_box(env={"GIVEN": "$RTB_TREE/x", "BOTH": "task"}) as box:
        sh(box, out, "env", env={"MORE": "a b", "BOTH": "command"})
        seen = dict(line.split("=", 1) for line in out.read_text().splitlines())
        assert seen["TZ"] == "UTC"
        assert seen["PYTHONHASHSEED"] == "0"
        assert (seen["GIVEN"], seen["MORE"], seen["BOTH"]) == (f"{box.tree}/x", "a b", "command")
        assert "RTB_TEST_SECRET" not in seen
        assert sh(box, out, 'test -w "$HOME" && cd "$HOME" && touch x && touch "$(mktemp)"').exit_code == 0


def test_folder_is_the_tree_unless_given(box: Sandbox, out: Path) -> None:
    sh(box, out, "pwd; cat m.py")
    assert out.read_text() == f"{box.tree}\nx = 1\n"
    sh(box, out, "pwd", cwd=box.scratch)
    assert out.read_text() == f"{box.scratch}\n"


def test_input_is_given_whole_and_otherwise_empty(box: Sandbox, out: Path) -> None:
    data = bytes(range(256)) * 20_000
    assert sh(box, out, "cat", stdin=data).output_bytes == len(data)
    assert out.read_bytes() == data
    assert (sh(box, out, "cat").exit_code, out.read_bytes()) == (0, b"")
    assert sh(box, out, "exec <&-; echo no", stdin=data).exit_code == 0
    assert out.read_bytes() == b"no\n"


def test_input_may_be_open_when_the_command_ends(box: Sandbox, out: Path) -> None:
    """Ends, and input that can be written, seen in one moment: more than a pipe holds is left, read by nobody."""
    for _ in range(40):
        done = box.execute(
            ["sh", "-c", "head -c 70000 >/dev/null"], output=out, timeout_seconds=60, stdin=b"x" * 300_000
        )
        assert done.exit_code == 0


def test_no_network_but_a_loopback(box: Sandbox, out: Path) -> None:
    if not box.isolation.network:
        pytest.skip("this kernel lets nobody make a network name space")
    sh(box, out, "cat /proc/net/dev")
    assert [line.split(":")[0].strip() for line in out.read_text().splitlines()[2:]] == ["lo"]
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(s.getsockname()); print('met')"
    )
    assert box.execute(["python3", "-c", script], output=out, timeout_seconds=60).exit_code == 0
    assert out.read_text() == "met\n"


# Output


def test_output_is_bytes_of_any_kind(box: Sandbox, out: Path) -> None:
    case = case_folder("77-utf8-split-over-frames")
    parts = [base64.b64decode(part) for part in json.loads((case / "frames.json").read_text())["frames_base64"]]
    script = (
        "import sys, time\nfor part in %r:\n  sys.stdout.buffer.write(part); sys.stdout.flush(); time.sleep(0.02)"
    )
    box.execute(["python3", "-c", script % parts], output=out, timeout_seconds=60)
    expected = json.loads((case / "case.json").read_text())["expected"]["text"]
    assert out.read_bytes() == b"".join(parts)
    assert out.read_bytes().decode(errors="replace") == expected


def test_output_over_the_limit_keeps_head_and_tail(open_box: Open, out: Path) -> None:
    with open_box(limits=Limits(output_bytes=1000)) as box:
        result = sh(box, out, "seq 100000")
    whole = "".join(f"{number}\n" for number in range(1, 100001))
    assert (result.output_bytes, result.truncated, result.exit_code) == (len(whole), True, 0)
    dropped = f"\n[rtb: {len(whole) - 1000} bytes of output dropped here]\n"
    assert out.read_text() == whole[:500] + dropped + whole[-500:]


def test_full_disk_on_the_host_is_the_machines_fault(box: Sandbox) -> None:
    with pytest.raises(OutOfSpace):
        sh(box, Path("/dev/full"), "echo something")


# Files


def test_written_files_are_exact_and_the_commands_own(box: Sandbox, out: Path) -> None:
    odd = "d e/ünï\ncode -x"
    latin = os.fsdecode(b"caf\xe9.txt")
    files = {
        "deep/er/data": Entry(bytes(range(256))),
        odd: Entry(b"odd"),
        latin: Entry(b"latin"),
        "run.sh": Entry(b"#!/bin/sh\necho ran\n", EXECUTABLE),
        "link": Entry(b"deep/er/data", SYMBOLIC_LINK),
        "m.py": Entry(b""),
        "long/" + "x" * 150 + "/" + "y" * 150: Entry(b"long"),
    }
    box.write(box.tree, Change(write=files))
    for path, entry in files.items():
        if entry.mode != SYMBOLIC_LINK:
            assert box.read(f"{box.tree}/{path}", limit_bytes=1000) == entry.data
    script = "./run.sh && readlink link && stat -c %a run.sh m.py"
    script += " && echo more >> deep/er/data && touch deep/new && rm m.py"
    assert sh(box, out, script).exit_code == 0
    assert out.read_text() == "ran\ndeep/er/data\n755\n644\n"


def test_folders_are_made_also_the_root(box: Sandbox) -> None:
    box.write(f"{box.scratch}/new/root", Change(write={"a": Entry(b"1")}))
    assert box.read(f"{box.scratch}/new/root/a", limit_bytes=10) == b"1"


def test_deleting(box: Sandbox, out: Path) -> None:
    box.write(box.tree, Change(write={"a/b/c": Entry(b"1"), "a b\n": Entry(b"1"), "-rf": Entry(b"1")}))
    sh(box, out, "chmod 0 a/b; chmod 500 a")
    box.write(box.tree, Change(delete=["a", "a b\n", "-rf", "never/there"], write={"a": Entry(b"file now")}))
    sh(box, out, "find . -mindepth 1 -not -path './.git*' | sort")
    assert out.read_text() == "./a\n./m.py\n"


def test_nothing_is_written_through_a_link(box: Sandbox, out: Path) -> None:
    sh(
        box,
        out,
        'mkdir "$HOME/away"; ln -s "$HOME/away" dir; echo precious > "$HOME/away/f"; ln -s "$HOME/away/f" file',
    )
    box.write(box.tree, Change(write={"dir/f": Entry(b"new"), "file": Entry(b"new")}))
    sh(box, out, 'cat "$HOME/away/f" dir/f file; stat -c %F dir file')
    assert out.read_text() == "precious\nnewnewdirectory\nregular file\n"


def test_only_regular_files_are_read(box: Sandbox, out: Path) -> None:
    sh(box, out, "mkfifo pipe; ln -s m.py link; ln -s /etc/passwd out; mkdir dir; ln -s / up")
    for name in ("pipe", "link", "out", "dir", "absent", "absent/x", "m.py/x"):
        assert box.read(f"{box.tree}/{name}", limit_bytes=1000) is None, name
    with pytest.raises(OutOfSpace, match="limit of 3"):
        box.read(f"{box.tree}/m.py", limit_bytes=3)
    assert box.read(f"{box.tree}/m.py", limit_bytes=6) == b"x = 1\n"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../b", "", "a//b", "./a", "a\0b"])
def test_paths_outside_are_refused(path: str) -> None:
    with pytest.raises(ValueError):
        Change(write={path: Entry(b"")})
    with pytest.raises(ValueError):
        Change(delete=[path])


# The end of a sandbox


def test_runs_do_not_see_each_other(open_box: Open, out: Path) -> None:
    with open_box() as box:
        sh(box, out, "echo changed > m.py; echo x > new; chmod 0 new; mkdir -m 0 closed; ln -s / root")
    with open_box() as box:
        sh(box, out, "ls -A; cat m.py")
        assert out.read_text() == "m.py\nx = 1\n"


def test_killed_from_another_thread(box: Sandbox, out: Path) -> None:
    sleep = unique_sleep()
    killer = threading.Thread(target=_when_running, args=(sleep, box.kill))
    killer.start()
    with pytest.raises(SandboxGone):
        sh(box, out, sleep)
    killer.join()
    assert processes_with(sleep) == []
    with pytest.raises(SandboxGone):
        sh(box, out, "true")
    with pytest.raises(SandboxGone):
        box.write(box.tree, Change(write={"a": Entry(b"")}))
    with pytest.raises(SandboxGone):
        box.read(f"{box.tree}/m.py", limit_bytes=10)


def _listing(columns: str) -> str:
    return subprocess.run(["ps", "-wweo", columns], capture_output=True, text=True, check=True, timeout=30).stdout


def _when_running(text: str, act: Callable[[], None]) -> None:
    deadline = time.monotonic() + 30
    while not processes_with(text) and time.monotonic() < deadline:
        time.sleep(0.05)
    act()


@pytest.mark.parametrize("which", ["outermost", "innermost"])
def test_a_first_process_that_is_killed_from_outside_is_the_machines_fault(
    tmp_path: Path, out: Path, which: str
) -> None:
    """As the kernel does when memory runs out, or an administrator. The command cannot do it from within."""
    (tmp_path / "base").mkdir()
    with open_local_sandbox(tmp_path / "base", env={}, path=os.defpath, limits=Limits(), parent=tmp_path) as box:
        if not box.isolation.processes:
            pytest.skip("without a process name space the command could have done it")

        def kill() -> None:
            deadline = time.monotonic() + 30
            while f"{sleep}\n" not in _listing("args") and time.monotonic() < deadline:
                time.sleep(0.05)
            listing = _listing("pid,args")
            found = [
                int(line.split()[0]) for line in listing.splitlines() if box.name in line and "local_init" in line
            ]
            os.kill(found[0] if which == "outermost" else found[-1], signal.SIGKILL)

        sleep = unique_sleep()
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(MachineError):
            box.execute(sleep.split(), output=out, timeout_seconds=60)
        killer.join()
        assert processes_with(sleep) == []
        from_within = box.execute(["sh", "-c", "kill -9 1; kill -9 $PPID; echo on"], output=out, timeout_seconds=20)
        assert (from_within.exit_code, out.read_text()) == (0, "on\n")
