"""Servers in real sandboxes without a network: ready, explained, stopped, and reached from outside."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.client import perform
from harness.request import Plan, Question, completion_body
from harness.server import NotReady, Ready, health, serving
from harness.timing import fault_of
from rtb.errors import EngineUnreachable, SandboxGone
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Change, Entry, Limits, Sandbox
from rtb.task import Serve

MOCK = Path(__file__).with_name("mock_server.py")
COMMAND = "exec python mock_server.py --listen 127.0.0.1:{port} --ttft-ms 5 --gap-ms 1"


def serve(command: str = COMMAND, **more: object) -> Serve:
    return Serve.model_validate({"command": command, "model": "m", "port": 8123, "ready_timeout_seconds": 60, **more})


@contextmanager
def local(tmp_path: Path) -> Iterator[Sandbox]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "mock_server.py").write_bytes(MOCK.read_bytes())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open_local_sandbox(base, env={}, path=path, limits=Limits()) as sandbox:
        yield sandbox


def ask(ready: Ready, count: int = 4) -> list[str | None]:
    questions = tuple(
        Question(index=n, body=completion_body(f"p{n}", 6, model="m"), requested=6) for n in range(count)
    )
    records = perform(Plan(address=ready.address, questions=questions, concurrency=2, timeout_seconds=30))
    return [fault_of(record) for record in records]


def test_a_server_without_a_network_is_reached_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with local(tmp_path) as sandbox:
        with serving(sandbox, serve(), log) as ready:
            assert isinstance(ready, Ready), str(ready)
            assert ask(ready) == [None] * 4
            address = Path(ready.address.removeprefix("unix:"))
            assert health(address) == "health 200"
        assert not address.exists()
        assert log.read_text().strip() == "ready"
        # The same port again: the first server is really gone.
        with serving(sandbox, serve(), tmp_path / "again.log") as ready:
            assert isinstance(ready, Ready), str(ready)
            assert ask(ready) == [None] * 4


def test_two_sandboxes_use_the_same_port_at_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with local(tmp_path / "a") as first, local(tmp_path / "b") as second:
        if not first.isolation.network:
            pytest.skip("this machine gives no network name space")
        with (
            serving(first, serve(), tmp_path / "a.log") as one,
            serving(second, serve(), tmp_path / "b.log") as two,
        ):
            assert isinstance(one, Ready) and isinstance(two, Ready)
            assert ask(one) + ask(two) == [None] * 8


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    with (
        local(tmp_path) as sandbox,
        serving(sandbox, serve(f"{COMMAND} --exit-code 3"), tmp_path / "server.log") as found,
    ):
        assert isinstance(found, NotReady)
        assert found.exit_code == 3
        assert "the model file is not there" in found.log_tail
        assert "exit code 3" in str(found) and "the model file is not there" in str(found)


def test_a_server_that_never_listens_is_given_up(tmp_path: Path) -> None:
    command = "echo loading; exec sleep 600"
    with (
        local(tmp_path) as sandbox,
        serving(sandbox, serve(command, ready_timeout_seconds=1.5), tmp_path / "server.log") as found,
    ):
        assert isinstance(found, NotReady)
        assert found.exit_code is None
        assert found.tries > 1
        assert "no answer to /health" in found.last_answer
        assert found.log_tail.strip() == "loading"


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("drip_health", "no answer to /health (TimeoutError)"),  # a byte now and then holds nobody
        ("status_500", "health 200, but a completion fails: status 500"),  # health alone is not ready
    ],
)
def test_a_server_that_does_not_answer_well_is_not_ready(tmp_path: Path, fault: str, last: str) -> None:
    with (
        local(tmp_path) as sandbox,
        serving(
            sandbox, serve(f"{COMMAND} --fault {fault}", ready_timeout_seconds=1.5), tmp_path / "server.log"
        ) as found,
    ):
        assert isinstance(found, NotReady)
        assert last in found.last_answer


def test_a_server_that_ignores_sigterm_and_its_children_are_gone(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    command = f"trap '' TERM; sleep 600 & echo $! > {pid_file}; {COMMAND.removeprefix('exec ')}"
    with local(tmp_path) as sandbox:
        begun = time.monotonic()
        with serving(sandbox, serve(command), tmp_path / "server.log") as ready:
            assert isinstance(ready, Ready), str(ready)
            begun = time.monotonic()
        assert time.monotonic() - begun < 60  # given up on, not waited for
        assert "did not end within" in (tmp_path / "server.log").read_text()
        listed = sandbox.execute(
            ["sh", "-c", "ps -e -o args | grep -c '[s]leep 600'"], output=tmp_path / "ps", timeout_seconds=20
        )
        assert listed.exit_code == 1 or not sandbox.isolation.processes


def test_what_a_server_leaves_to_burn_while_gold_is_measured_is_gone(tmp_path: Path) -> None:
    """A process of its own session, orphaned on purpose: the container or name space knows it all the same."""
    beats = tmp_path / "beats"
    burn = f"import time\nwhile True:\n    open({str(beats)!r}, 'a').write('x')\n    time.sleep(0.01)\n"
    command = f"(setsid python burn.py >/dev/null 2>&1 &) ; {COMMAND}"
    with local(tmp_path) as sandbox:
        if not sandbox.isolation.processes:
            pytest.skip("this kernel gives no name spaces for processes: the sandbox says so")
        sandbox.write(sandbox.tree, Change(write={"burn.py": Entry(burn.encode())}))
        with serving(sandbox, serve(command), tmp_path / "server.log") as ready:
            assert isinstance(ready, Ready), str(ready)
            while not beats.exists():
                time.sleep(0.01)
        size = beats.stat().st_size
        time.sleep(0.3)
        assert beats.stat().st_size == size


def test_a_sandbox_that_dies_is_a_machine_fault(tmp_path: Path) -> None:
    with (
        pytest.raises(SandboxGone),
        local(tmp_path) as sandbox,
        serving(sandbox, serve(), tmp_path / "server.log") as ready,
    ):
        assert isinstance(ready, Ready)
        sandbox.kill()


def test_a_link_in_place_of_the_socket_is_not_followed(tmp_path: Path) -> None:
    command = "for s in $RTB_SOCKETS/s*; do rm -f $s; ln -s /etc/passwd $s; done; exec sleep 600"
    with local(tmp_path) as sandbox:
        env = {"RTB_SOCKETS": sandbox.sockets.inside}
        with serving(sandbox, serve(command, ready_timeout_seconds=1.0, env=env), tmp_path / "server.log") as found:
            assert isinstance(found, NotReady)
            # Laid before or after the first look: a link is never connected to.
            assert re.search("never appeared|took the place of its socket", found.last_answer), found


@pytest.mark.docker
def test_a_server_in_a_container_without_a_network_is_reached(tmp_path: Path) -> None:
    from rtb.docker_sandbox import open_docker_sandbox

    image = os.environ.get("RTB_TEST_IMAGE")
    if image is None:
        pytest.skip("set RTB_TEST_IMAGE to an image that rtb built")
    try:
        opened = open_docker_sandbox(image, env={}, limits=Limits(), run="test")
        with opened as sandbox:
            sandbox.write(sandbox.tree, Change(write={"mock_server.py": Entry(MOCK.read_bytes())}))
            with serving(sandbox, serve(), tmp_path / "server.log") as ready:
                assert isinstance(ready, Ready), str(ready)
                assert ask(ready) == [None] * 4
    except EngineUnreachable as error:
        pytest.skip(str(error))
