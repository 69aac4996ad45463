"""Runs beside each other: what changed, whether it is more than noise, and which runs cannot be compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.compare import Difference, compare, holm
from harness.compare_page import compare_page, to_markdown
from rtb.errors import ExpectedError
from rtb.run import Run, RunRecord
from rtb.storage import write_model
from tests.browser import Browser
from tests.storedrun import many

ROOT = Path(__file__).resolve().parent.parent
ACCESSIBILITY = Path(__file__).with_name("accessibility.js").read_text()


@pytest.fixture(scope="module")
def runs(stored: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, Run]:
    """Twelve tasks: all resolved; the same with seven not resolved; the same with one of them without a result."""
    root = tmp_path_factory.mktemp("compare")
    good = many(stored, root / "good", 12, ["rtb__pocket-1"], ["unit"])
    worse = many(stored, root / "worse", 12, ["rtb__pocket-1"], ["unit"])
    for number in range(7):
        shutil.rmtree(worse.task(f"rtb__pocket-{1000 + number}").path)
    broken = many(stored, root / "broken", 12, ["rtb__pocket-1"], ["unit"])
    broken.task("rtb__pocket-1011").times.unlink()
    return good, worse, broken


def changed(run: Run, path: Path, **values: object) -> Run:
    """A copy of a run with other words in run.json."""
    copy = Run(Path(shutil.copytree(run.path, path)))
    record = run.read_record().model_dump()
    write_model(copy.record, RunRecord.model_validate({**record, **values}))
    return copy


def test_what_changed_and_the_exact_paired_test(runs: tuple[Run, Run, Run]) -> None:
    found = compare(runs[:2])
    assert found.changed == tuple(f"rtb__pocket-{1000 + number}" for number in range(7))
    (difference,) = found.differences
    assert difference.pairs is not None
    assert (difference.pairs.n, difference.pairs.won, difference.pairs.lost) == (12, 0, 7)
    assert difference.p == pytest.approx(2 / 2**7)
    assert difference.points == pytest.approx(-100 * 7 / 12)
    assert difference.low is not None and difference.high is not None and difference.low < difference.high < 0
    assert difference.more_than_noise is True
    assert "7 lost" in difference.sentence and ": more than noise" in difference.sentence


def test_a_few_tasks_are_noise_and_a_machine_fault_is_no_loss(runs: tuple[Run, Run, Run]) -> None:
    found = compare([runs[0], runs[2]])
    (difference,) = found.differences
    assert difference.left_out == 1 and difference.pairs is not None and difference.pairs.n == 11
    assert difference.p == 1.0 and difference.more_than_noise is False
    assert found.changed == ("rtb__pocket-1011",)
    assert any("broken is incomplete" in note for note in found.notes)
    assert any("the same predictions" in note for note in found.notes)


def test_holm_orders_multiplies_and_never_falls() -> None:
    def item(p: float | None) -> Difference:
        return Difference("a", "b", None, None, None, None, p, p, 0)

    assert [found.adjusted for found in holm([item(0.04), item(0.01), item(None), item(0.02)])] == [
        pytest.approx(0.04), pytest.approx(0.03), None, pytest.approx(0.04),
    ]  # fmt: skip
    assert [found.adjusted for found in holm([item(0.5), item(0.9)])] == [1.0, 1.0]


def test_runs_of_other_tasks_are_refused_with_the_reason(runs: tuple[Run, Run, Run], tmp_path: Path) -> None:
    good = runs[0]
    record = good.read_record()
    fewer = dict(list(record.categories.items())[:-1])
    other_suite = changed(good, tmp_path / "suite", suite="demo")
    selection = changed(good, tmp_path / "selection", categories=fewer)
    digest = changed(good, tmp_path / "digest", suite_digest="0" * 64)
    name = "rtb__pocket-1003"
    text = digest.task(name).record.read_text()
    task_record = good.read_task_record(name)
    assert task_record is not None
    digest.task(name).record.write_text(text.replace(task_record.key.task_digest, "f" * 64))
    for other, words in (
        (other_suite, "of suite pocket, the second of demo"),
        (selection, "1 task(s) are in one of them only, e.g. rtb__pocket-1011"),
        (digest, "rtb__pocket-1003 changed between them"),
    ):
        with pytest.raises(ExpectedError, match="cannot be compared") as caught:
            compare([good, other])
        assert words in str(caught.value)
    with pytest.raises(ExpectedError, match="at least two"):
        compare([good])


def test_the_command_says_it_in_every_form(runs: tuple[Run, Run, Run], tmp_path: Path) -> None:
    def rtb(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rtb.cli", "compare", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)

    good, worse, broken = (str(run.path) for run in runs)
    shown = rtb(good, worse)
    assert shown.returncode == 0 and shown.stdout == ""
    assert "7 of 12 tasks ended differently" in shown.stderr and "more than noise" in shown.stderr
    document = json.loads(rtb(good, worse, "--json").stdout)
    assert document["differences"][0]["p"] == pytest.approx(2 / 2**7)
    assert len(document["changed"]) == 7
    assert rtb(good, broken).returncode == 4
    assert rtb(good).returncode == 2
    page = tmp_path / "c.html"
    assert rtb(good, worse, "--format", "html", "--out", str(page)).stdout == f"{page}\n"
    assert "<img" not in page.read_text()
    found = compare(runs[:2])
    assert "rtb__pocket-1006" in to_markdown(found) and "rtb__pocket-1007" not in to_markdown(found)


@pytest.mark.browser
def test_the_page_of_a_comparison(browser: Browser, runs: tuple[Run, Run, Run], tmp_path: Path) -> None:
    page = tmp_path / "c.html"
    page.write_text(compare_page(compare(runs)))
    browser.look()
    browser.open(page)
    rows = "return Array.from(document.querySelectorAll('#tasks tbody tr')).filter(row => !row.hidden).length"
    assert browser.run(rows) == 12
    browser.click("#tasks [data-filter=change] option[value=same]")
    assert browser.run(rows) == 4
    assert "tasks.change=same" in browser.driver.current_url
    for dark in (False, True):
        for width in (1300, 390):
            browser.look(width, dark=dark)
            assert browser.run(ACCESSIBILITY) == []
            assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.complaints() == [] and browser.fetched() == []
