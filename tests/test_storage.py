"""One writer at a time in a folder, also between processes and right after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtb.errors import ExpectedError
from rtb.storage import sole_folder

HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "wb") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held(folder: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a folder for some seconds."""
    argv = [sys.executable, "-c", HOLDER, str(folder / ".lock"), str(seconds)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_a_killed_writer_left_running_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".half.draft").touch()
    with held(tmp_path, 0.7) as process, sole_folder(tmp_path, "somebody writes there"):
        assert process.wait(timeout=20) == 0
        assert not (tmp_path / ".half.draft").exists()


def test_a_folder_that_somebody_writes_into_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".half.draft").touch()
    told = pytest.raises(ExpectedError, match="somebody writes there")
    with held(tmp_path, 600), told, sole_folder(tmp_path, "somebody writes there"):
        pytest.fail("two writers in one folder")
    assert (tmp_path / ".half.draft").exists()
