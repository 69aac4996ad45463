"""Run folders and storage: atomic, one writer, found by id or path, errors that say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rtb.errors import ExpectedError, InvalidFile
from rtb.run import Run, check_run_id, find_run
from rtb.storage import locked, write_atomic, write_model
from tests.test_verdict import run_record


def test_a_run_is_found_by_path_and_by_id(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs" / "one")
    write_model(run.record, run_record({"org__repo-1": "modification"}))
    assert find_run(str(run.path)).path == run.path
    assert find_run("one", tmp_path / "runs").path == run.path
    with pytest.raises(ExpectedError, match="there: one"):
        find_run("two", tmp_path / "runs")


def test_a_record_comes_back_as_it_was_and_a_cut_one_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    record = run_record({"org__repo-1": "modification"})
    write_model(run.record, record)
    assert run.read_record() == record
    run.record.write_bytes(run.record.read_bytes()[:100])
    with pytest.raises(InvalidFile, match=r"run\.json"):
        run.read_record()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_run_id_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ExpectedError, match="--run-id"):
        check_run_id(name)


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rtb.run import Run\n"
        "with Run(Path(sys.argv[1])).sole_writer(): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(ExpectedError, match="another process"), Run(tmp_path).sole_writer():
            pass
        other.stdin.close()
        other.wait(timeout=20)
    with Run(tmp_path).sole_writer():
        assert (tmp_path / ".lock").exists()


WRITES = """
import sys; from pathlib import Path; from rtb.run import Run; from rtb.storage import write_atomic
run = Run(Path(sys.argv[1]))
with run.sole_writer():
    while True:
        write_atomic(run.task("org__repo-1").stage("unit") / "out.log", b"x" * 30_000_000)
"""


def drafts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.draft") if path.name != "mine.draft"]


def test_half_a_file_of_a_killed_writer_is_removed_by_the_next_one_and_no_living_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.draft").write_text("not hidden: not ours")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    deadline = time.monotonic() + 60
    while not drafts(tmp_path):  # a kill between two writes leaves nothing
        assert time.monotonic() < deadline
        with subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], env=env) as writer:
            while not drafts(tmp_path) and writer.poll() is None:
                pass
            with pytest.raises(ExpectedError, match="another process"), Run(tmp_path).sole_writer():
                pass
            assert writer.poll() is None
            writer.kill()
    with Run(tmp_path).sole_writer():
        assert not drafts(tmp_path)
        assert (tmp_path / "mine.draft").exists()


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sizes = (10, 1_000_000)
    write_atomic(path, b"x" * sizes[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for size in sizes:
                write_atomic(path, b"x" * size)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {len(path.read_bytes()) for _ in range(300)}
    finally:
        stop.set()
        writer.join(timeout=20)
    assert seen <= set(sizes)
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExpectedError, match="cannot write"):
        write_atomic(tmp_path / "file" / "below", b"x")


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rtb.storage import locked\n"
        "path = Path(sys.argv[1])\n"
        "for _ in range(50):\n"
        "    with locked(path):\n"
        "        n = int(path.read_text()); path.write_text(str(n + 1))\n"
    )
    path = tmp_path / "count"
    path.write_text("0")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    both = [subprocess.Popen([sys.executable, "-c", script, str(path)], env=env) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    with locked(path):
        assert path.read_text() == "100"
