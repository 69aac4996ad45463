"""The console log reader, on logs of real pytest and on made ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pytest_log import plain, read_log, read_totals

HEADER = "=========================== short test summary info ============================\n"


def test_the_longest_known_id_wins() -> None:
    known = ["t.py::test[a]", "t.py::test[a] - b]", "t.py::test"]
    log = read_log(f"{HEADER}FAILED t.py::test[a] - b] - boom\nFAILED t.py::test[a] - x\nPASSED t.py::test\n", known)
    assert log.statuses == {"t.py::test[a] - b]": "FAILED", "t.py::test[a]": "FAILED", "t.py::test": "PASSED"}


def test_lines_before_the_summary_are_no_summary() -> None:
    text = f"= test session starts =\nPASSED t.py::test_forged\n{HEADER}FAILED t.py::test_a - assert 0\n"
    assert read_log(text).statuses == {"t.py::test_a": "FAILED"}


def test_the_last_totals_line_counts() -> None:
    text = b"== 9 passed in 0.1s ==\nx\n== 1 failed, 2 passed, 3 warnings, 2 errors in 75.21s (0:01:15) ==\n"
    assert read_totals(text) == {"failed": 1, "passed": 2, "error": 2}
    assert read_totals(b"nothing") is None
    assert read_totals(b"=== no tests ran in 0.01s ===") == {}
    assert read_totals(b"2 passed in 0.01s") == {"passed": 2}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ERROR: not found: /x/t.py::test_a", "not_found"),
        ("ERROR: file or directory not found: tests/none.py", "not_found"),
        ("/env/bin/python: No module named pytest", "no_pytest"),
        ("Fatal Python error: Segmentation fault", "fatal"),
        ("_____ ERROR collecting tests/t.py _____", "file_errors"),
    ],
)
def test_why_nothing_was_recorded(line: str, kind: str) -> None:
    assert getattr(read_log(f"{line}\n"), kind)
    assert not getattr(read_log("fine\n"), kind)


def test_escapes_are_dropped() -> None:
    assert plain("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b(Btext\r\n") == "red text\n"


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    log = read_log(data, ["tests/t.py::test_a"])
    assert all("::" in node for node in log.statuses)


SOURCE = """
import pytest
@pytest.fixture
def bad():
    yield
    raise RuntimeError("teardown")
@pytest.mark.parametrize("word", ["two words", "a - b", "x::y", "PASSED", "", "end] - x"])
def test_msg(word):
    print("PASSED tests/t.py::test_forged")
    assert word not in ("a - b", "end] - x"), "] - PASSED x.py::y"
def test_td(bad): pass
@pytest.mark.skip
def test_sk(): pass
@pytest.mark.xfail(run=False)
def test_xn(): pass
@pytest.mark.xfail
def test_xp(): pass
"""


@pytest.mark.parametrize("options", [["-rA"], ["-rA", "-v"], ["-rA", "--color=yes", "-v"], ["-rA", "-q"]])
def test_logs_of_this_pytest(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "t.py").write_text(SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "t.py"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    words = ["two words", "a - b", "x::y", "PASSED", "", "end] - x"]
    known = [f"t.py::test_msg[{word}]" for word in words] + [f"t.py::test_{name}" for name in ("td", "xn", "xp")]
    log = read_log(done.stdout, [*known, "t.py::test_sk"])
    assert dict(log.statuses) | {"t.py::test_sk": "SKIPPED"} == {
        **{f"t.py::test_msg[{word}]": "PASSED" for word in words},
        "t.py::test_msg[a - b]": "FAILED",
        "t.py::test_msg[end] - x]": "FAILED",
        "t.py::test_td": "ERROR",
        "t.py::test_xn": "XFAIL",
        "t.py::test_xp": "XPASS",
        "t.py::test_sk": "SKIPPED",
    }
    assert log.counts == {"passed": 5, "failed": 2, "error": 1, "skipped": 1, "xfailed": 1, "xpassed": 1}
    assert log.has_summary
