"""What only containers do: limits, rights, the engine's failures, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from rtb import environment
from rtb.container import Engine, NotThere, connect
from rtb.docker_sandbox import DockerSandbox, open_docker_sandbox
from rtb.errors import EngineUnreachable, SandboxGone
from rtb.owner import is_alive, owner_id, process_id
from rtb.sandbox import Limits
from tests.conftest import processes_with

pytestmark = pytest.mark.docker


@pytest.fixture
def box(sandbox_image: str) -> Iterator[DockerSandbox]:
    with open_docker_sandbox(sandbox_image, env={}, limits=Limits(), run="test") as sandbox:
        yield sandbox


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def raw() -> Iterator[docker.DockerClient]:
    """The engine as any other program sees it."""
    client = docker.from_env()
    yield client
    client.close()


def run(box: DockerSandbox, out: Path, script: str, seconds: float = 60.0) -> int | None:
    return box.execute(["sh", "-c", script], output=out, timeout_seconds=seconds).exit_code


def test_command_has_no_rights(box: DockerSandbox, out: Path) -> None:
    run(box, out, "id -u; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status; ulimit -c")
    caps = ["CapBnd:\t0000000000000000", "CapEff:\t0000000000000000"]
    lines = out.read_text().splitlines()
    assert lines[:2] == ["10001", "10001"]
    assert sorted(lines[2:4]) == caps
    assert lines[4:] == ["NoNewPrivs:\t1", "0"]
    assert run(box, out, "echo x > /etc/passwd || touch /opt/x || touch /usr/lib/x") != 0


def test_root_has_no_rights_either_but_another_user(box: DockerSandbox, out: Path) -> None:
    result = box.execute(
        ["sh", "-c", "id -u; grep CapEff /proc/self/status"], output=out, timeout_seconds=60, as_root=True
    )
    assert (result.exit_code, out.read_text()) == (0, "0\nCapEff:\t0000000000000000\n")


def test_out_of_memory_is_told_and_the_sandbox_lives_on(sandbox_image: str, out: Path) -> None:
    limits = Limits(memory_bytes=64 * 1024**2)
    greedy = ["python3", "-c", "x = bytearray(10**9); print(len(x))"]
    with open_docker_sandbox(sandbox_image, env={}, limits=limits, run="test") as box:
        first = box.execute(greedy, output=out, timeout_seconds=60)
        assert (first.exit_code, first.oom_killed) == (-signal.SIGKILL, True)
        plain = box.execute(["sh", "-c", "exit 9"], output=out, timeout_seconds=60)
        assert (plain.exit_code, plain.oom_killed) == (9, False)
        # A child that is killed while the command itself goes on and fails for it.
        child = box.execute(["sh", "-c", 'python3 -c "bytearray(10**9)"; exit 1'], output=out, timeout_seconds=60)
        assert (child.exit_code, child.oom_killed) == (1, True)


def test_a_command_that_fills_the_disk_is_ended(sandbox_image: str, out: Path) -> None:
    """Many small files, which no limit on one file's size stops; the sandbox goes on."""
    limits = Limits(disk_bytes=64 * 1024**2)
    many = "i=0; while :; do head -c 4000000 /dev/zero >/tmp/f$i || exit 7; i=$((i+1)); sleep 0.05; done"
    with open_docker_sandbox(sandbox_image, env={}, limits=limits, run="test") as box:
        done = box.execute(["sh", "-c", many], output=out, timeout_seconds=120)
        assert (done.exit_code, done.timed_out, done.disk_killed) == (-signal.SIGKILL, False, True)
        # By the limit of one file's size, or by the look at the disk: whichever comes first.
        one = box.execute(
            ["sh", "-c", "rm /tmp/f*; head -c 100000000 /dev/zero >/tmp/one"], output=out, timeout_seconds=60
        )
        assert one.exit_code != 0
        assert run(box, out, "rm -f /tmp/*") == 0


def test_fork_bomb_is_bounded_and_ended(sandbox_image: str, out: Path) -> None:
    many = (
        "import subprocess, time\n"
        "while True:\n"
        "    try: subprocess.Popen(['sleep', '98765431'])\n"
        "    except OSError: time.sleep(0.001)\n"
    )
    with open_docker_sandbox(sandbox_image, env={}, limits=Limits(pids=64), run="test") as box:
        bomb = threading.Thread(
            target=lambda: box.execute(["python3", "-c", many], output=out.with_suffix(".bomb"), timeout_seconds=5)
        )
        bomb.start()
        assert _when(lambda: len(processes_with("98765431")) > 50)
        assert len(processes_with("98765431")) <= 64
        bomb.join(60)
        assert processes_with("98765431") == []
        assert run(box, out, "echo alive") == 0
        assert out.read_text() == "alive\n"


def test_container_killed_from_outside(box: DockerSandbox, out: Path, raw: docker.DockerClient) -> None:
    killer = threading.Thread(
        target=_when, args=(lambda: processes_with("98765432"), raw.containers.get(box.name).kill)
    )
    killer.start()
    with pytest.raises(SandboxGone):
        run(box, out, "sleep 98765432")
    killer.join()
    with pytest.raises(SandboxGone):
        box.read("/testbed/m.py", limit_bytes=10)


def test_nothing_is_left_at_the_end(sandbox_image: str, raw: docker.DockerClient) -> None:
    with pytest.raises(RuntimeError), open_docker_sandbox(sandbox_image, env={}, limits=Limits(), run="test") as box:
        assert raw.containers.get(box.name).status == "running"
        raise RuntimeError
    with pytest.raises(docker.errors.NotFound):
        raw.containers.get(box.name)


def test_container_ends_with_the_process_that_opened_it(sandbox_image: str, raw: docker.DockerClient) -> None:
    script = (
        "import sys, time; from rtb.docker_sandbox import open_docker_sandbox; from rtb.sandbox import Limits\n"
        "with open_docker_sandbox(sys.argv[1], env={}, limits=Limits(), run='test') as box:\n"
        "    print(box.name, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, sandbox_image],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": "."},
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert raw.containers.get(name).status == "running"
        process.kill()
    assert _when(lambda: name not in [item.name for item in raw.containers.list(all=True)])


def test_only_leftovers_of_ours_are_removed(sandbox_image: str, engine: Engine, raw: docker.DockerClient) -> None:
    dead = "1-1-nosuchboot"
    kinds = {
        "ours, dead": {"rtb.owner": owner_id(), "rtb.process": dead},
        "ours, alive": {"rtb.owner": owner_id(), "rtb.process": process_id()},
        "another's, dead": {"rtb.owner": "somebody", "rtb.process": dead},
        "no label": {},
    }
    made = {kind: raw.containers.create(sandbox_image, "true", labels=labels) for kind, labels in kinds.items()}
    try:
        assert engine.remove_leftovers() >= 1
        there = {item.id for item in raw.containers.list(all=True)}
        assert [kind for kind, item in made.items() if item.id not in there] == ["ours, dead"]
    finally:
        for item in made.values():
            engine.remove(item.id)


def test_processes_are_told_apart() -> None:
    pid, started, boot = process_id().split("-")
    assert is_alive(process_id())
    assert not is_alive(f"{pid}-{int(started) + 1}-{boot}")  # the number was given to another process
    assert not is_alive(f"{pid}-{started}-otherboot")
    assert is_alive("") and is_alive("other format")  # not ours to judge
    with subprocess.Popen(["sleep", "0"]) as child:
        child.wait(30)
    assert not is_alive(f"{child.pid}-{started}-{boot}")


def test_missing_image_says_so() -> None:
    with (
        pytest.raises(NotThere, match="rtb/nothing:here"),
        open_docker_sandbox("rtb/nothing:here", env={}, limits=Limits(), run="test"),
    ):
        pass


@pytest.mark.parametrize("address", ["unix:///no/such/socket", "tcp://127.0.0.1:9"])
def test_engine_that_does_not_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(EngineUnreachable, match="setup-docker"), connect():
        pass
    assert environment.choose_kind(None) == "local"
    with pytest.raises(EngineUnreachable):
        environment.choose_kind("docker")
    assert not next(fact for fact in environment.diagnose() if fact.what == "Docker").ok


def _when(holds: Callable[[], object], act: Callable[[], object] = lambda: None) -> bool:
    """Wait, with a bound, until something holds; then act."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if holds():
            act()
            return True
        time.sleep(0.05)
    return False
