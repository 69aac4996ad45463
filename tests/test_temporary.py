"""Temporary folders and what a hard kill leaves of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rtb.temporary import temporary_folder

HOLD = """
import time
from rtb.temporary import temporary_folder
with temporary_folder("test") as folder:
    (folder / "a").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_leftovers_of_the_dead_are_removed_and_nothing_of_the_living(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stranger = tmp_path / "rtb-tmp-of-somebody-else-1-2-3-test-x"
    stranger.mkdir()
    holders = [subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        folders = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout is not None]
        assert all((folder / "a").exists() and folder.parent == tmp_path for folder in folders)
        os.kill(holders[0].pid, signal.SIGKILL)
        holders[0].wait(30)
        assert folders[0].exists()  # nobody could tidy up
        with temporary_folder("other") as mine:
            assert not folders[0].exists() and folders[1].exists() and stranger.exists() and mine.exists()
        assert not mine.exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate(timeout=30)
