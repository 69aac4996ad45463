"""The report of a run that holds every kind of answer and hostile text, as a page in a real browser and as text.

The run is that of `tests.storedrun.every_kind`.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import report_page as pages
from harness.evaluate import regrade, stored_verdicts
from harness.latex import escape, to_latex
from harness.plots import cumulative
from harness.profiles import outcome_under
from harness.report import numbers_of
from rtb.run import Run
from tests.browser import Browser

ROOT = Path(__file__).resolve().parent.parent
ACCESSIBILITY = Path(__file__).with_name("accessibility.js").read_text()


@pytest.fixture(scope="module")
def written(stored: Run) -> Path:
    """report.html as the command line writes it."""
    done = subprocess.run(
        [sys.executable, "-m", "rtb.cli", "report", str(stored.path), "--format", "html"],
        capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == f"{stored.report_html}\n"
    return stored.report_html


def details(text: str) -> dict[str, str]:
    """Every drill-down of a page."""
    found: dict[str, str] = {}
    for block in re.findall(r'<script type="text/plain" id="block-\d+">([A-Za-z0-9+/=]*)</script>', text):
        found |= json.loads(gzip.decompress(base64.b64decode(block)))
    return found


def test_the_page_is_one_file_and_hostile_text_is_text_in_it_and_in_its_details(written: Path) -> None:
    text = written.read_text()
    assert text.count("<script>") == 2  # table.js and report.js
    parts = details(text)
    assert sorted(parts) == [f"rtb__pocket-{number}" for number in range(1, 7)]
    for piece in (text, *parts.values()):
        assert "<img" not in piece and "<script>document" not in piece
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", piece)
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", piece)
    assert "&lt;img src=x onerror=alert(1)&gt;\\u202e\\x07" in parts["rtb__pocket-3"]
    assert "\\u202eevil" in text


def test_details_hold_the_evidence_of_each_stage(written: Path) -> None:
    parts = details(written.read_text())
    first, second, third = (parts[f"rtb__pocket-{number}"] for number in (1, 2, 3))
    assert "Question 3: strict lost, flexible lost" in first and "Question 20: strict won, flexible won" in first
    assert first.count("<svg") == 4 and "threshold 0.98" in first and "240 requests of gold" in first
    assert "test_doubles[3]" in third and "AssertionError" in third and "<svg" not in third
    assert "rtb__pocket-3/unit/console.log" in third
    assert "Environment digest" in second and "server-model.log" in second
    assert "== assistant\nI double it" in third and "Submitted" in third and "please &lt;/script&gt;" in third
    assert "../outside.json" in second and "a secret" not in second  # not below the predictions file: not read
    assert "tampered" in parts["rtb__pocket-5"] and "process_exit" in parts["rtb__pocket-5"]
    assert "not_submitted" in parts["rtb__pocket-6"]


def test_both_profiles_stand_side_by_side_in_every_form(stored: Run, written: Path) -> None:
    record = stored.read_record()
    verdicts = {item.instance_id: item for item in stored_verdicts(stored, record)}
    # One answer lost on balance: not below gold by the robust rule, below it by the paper's.
    first = verdicts["rtb__pocket-1"]
    assert first.outcome == "resolved", first.reason
    assert (outcome_under(first, "robust"), outcome_under(first, "paper")) == ("resolved", "unresolved")
    found = numbers_of(record, verdicts.values())
    assert found.whole["robust"].metrics.success.value == pytest.approx(100 / 6)
    assert found.whole["paper"].metrics.success.value == 0.0
    assert found.whole["robust"].metrics.s_tpot.n == 2
    assert (found.tokens, found.tokens_known) == (15_000, 5)
    markdown, latex = stored.report_markdown.read_text(), to_latex(record, found)
    for words in ("16.67", "Table 3 for this run", "Table 4 for this run", "New kernel", "0.01M", "3.01 to 56.35"):
        assert words in markdown and words in latex and words in written.read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e<]", markdown)
    assert all(line.count("&") in (0, 6, 9) for line in latex.replace(r"\&", "").splitlines())


def test_a_stage_that_the_other_profile_needs_and_that_was_not_run_is_told(stored: Run) -> None:
    name = "rtb__pocket-1"
    verdict = stored.read_verdict(name)
    assert verdict is not None
    accuracy, latency = verdict.stage("accuracy"), verdict.stage("latency")
    assert accuracy is not None and latency is not None and accuracy.accuracy is not None
    facts = accuracy.accuracy.model_copy(update={"robust": "inconclusive", "paper": True})
    stages = (
        verdict.stages[0],
        accuracy.model_copy(update={"accuracy": facts, "status": "inconclusive"}),
        latency.model_copy(update={"latency": None, "status": "skipped"}),
    )
    changed = verdict.model_copy(update={"stages": stages, "outcome": "inconclusive"})
    assert outcome_under(changed, "robust") == "inconclusive"
    assert outcome_under(changed, "paper") is None
    assert numbers_of(stored.read_record(), [changed]).whole["paper"].untold == 1


def test_text_that_does_not_compress_is_cut_until_the_page_is_small_enough(stored: Run, tmp_path: Path) -> None:
    copy = Run(Path(shutil.copytree(stored.path, tmp_path / "r")))
    noise = base64.b85encode(os.urandom(300_000)).decode()
    lines = [noise[start : start + 100] for start in range(0, len(noise), 100)]
    name = "rtb__pocket-3"
    (copy.task(name).stage("unit") / "console.log").write_text("\n".join(lines))
    copy.task(name).patch_diff.write_text("".join(f"+{line}\n" for line in lines))
    graded = regrade(stored)
    whole, small = pages.report_page(copy, graded), pages.report_page(copy, graded, 90_000)
    assert len(whole) > 140_000 and len(small) <= 90_000
    part = details(small)[name]
    for file in ("patch.diff", "unit/console.log"):
        assert f"all of it: {name}/{file}" in part
    assert part.count("+" + lines[0].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")) == 1


def test_latex_prints_what_is_there() -> None:
    assert escape("a_b 5 % {x} \\ [1] <y>") == (r"a\_b 5 \% \{x\} \textbackslash{} {[}1] \textless{}y\textgreater{}")


def test_a_cumulative_curve_keeps_its_ends() -> None:
    curve = cumulative([0.003, 0.001, 0.002])
    assert curve == [(1.0, pytest.approx(1 / 3)), (2.0, pytest.approx(2 / 3)), (3.0, 1.0)]
    long = cumulative([value / 1000 for value in range(1, 1001)])
    assert len(long) == 60 and long[0] == (1.0, 0.001) and long[-1] == (1000.0, 1.0)


def names(browser: Browser) -> list[str]:
    """Tasks of the rows that are shown, in order."""
    return list(browser.run("return Array.from(document.querySelectorAll('#tasks tbody tr'))"
                            ".filter(row => !row.hidden).map(row => row.id.slice(2))"))  # fmt: skip


def clean(browser: Browser) -> None:
    """Nothing was said on the console and nothing was asked of the network."""
    assert browser.complaints() == []
    assert browser.fetched() == []


@pytest.mark.browser
def test_sort_filter_and_their_addresses(browser: Browser, written: Path) -> None:
    browser.look()
    browser.open(written)
    every = names(browser)
    assert len(every) == 6
    browser.click("#tasks th:nth-child(9) button")
    assert names(browser)[-1] == "rtb__pocket-6"  # without a time: last, either way
    assert browser.find("#tasks th[aria-sort=descending]")
    browser.click("#tasks th:nth-child(9) button")
    assert names(browser)[-1] == "rtb__pocket-6"
    assert browser.find("#tasks th[aria-sort=ascending]")
    seconds = browser.run("return Array.from(document.querySelectorAll('#tasks tbody tr td:nth-child(9)'), "
                          "cell => parseFloat(cell.textContent))")  # fmt: skip
    assert seconds[:5] == sorted(seconds[:5])
    browser.click("#tasks [data-filter=outcome] option[value=tampered]")
    assert names(browser) == ["rtb__pocket-5"]
    assert browser.find("[data-count]")[0].text == "1 of 6 rows"
    address = browser.driver.current_url
    assert "tasks.outcome=tampered" in address and "tasks.sort=8a" in address
    browser.open("about:blank")
    browser.driver.get(address)
    assert names(browser) == ["rtb__pocket-5"]
    browser.driver.back()
    browser.driver.forward()
    browser.click("[data-reset]")
    assert names(browser) == every
    browser.find("[data-search]")[0].send_keys("doubles nonsense")
    assert names(browser) == []
    browser.open(written, "tasks.q=doubles&tasks.category=optimization")
    assert names(browser) == ["rtb__pocket-3"]
    clean(browser)


@pytest.mark.browser
def test_a_task_opens_by_address_and_by_keyboard_and_nothing_of_it_runs(browser: Browser, written: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.look()
    browser.open(written, "tasks.category=optimization&task=rtb__pocket-3")
    browser.wait("document.getElementById('task-body').dataset.task")
    shown = browser.find("#task-body")[0].text
    assert "1 of 3 expected tests did not pass" in shown
    assert "<img src=x onerror=alert(1)>\\u202e\\x07" in shown
    assert browser.driver.title.startswith("pocket: tester </script>")
    assert not browser.find("#task-body img")
    assert browser.run("return document.activeElement.id") == "task-title"
    browser.press("j")
    browser.wait("document.getElementById('task-body').dataset.task === 'rtb__pocket-6'")
    assert "task=rtb__pocket-6" in browser.driver.current_url
    browser.press("k")
    browser.wait("document.getElementById('task-body').dataset.task === 'rtb__pocket-3'")
    browser.press(Keys.ESCAPE)
    browser.wait("!document.getElementById('task').open")
    assert "task=" not in browser.driver.current_url and "tasks.category=optimization" in browser.driver.current_url
    assert browser.run("return document.activeElement.textContent") == "rtb__pocket-3"
    browser.press(Keys.ENTER)
    browser.wait("document.getElementById('task').open")
    browser.driver.back()
    browser.wait("!document.getElementById('task').open")
    browser.open(written, "task=rtb__pocket-99")
    assert "no task of that name" in browser.find("#task-body")[0].text
    clean(browser)


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390], ids=["desk", "phone"])
def test_readers_of_every_kind_and_screen(browser: Browser, written: Path, width: int, dark: bool) -> None:
    browser.look(width, 900, dark=dark)
    browser.open(written)
    assert browser.run(ACCESSIBILITY) == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    for number in (1, 3, 5):
        browser.open(written, f"task=rtb__pocket-{number}")
        browser.wait("document.getElementById('task-body').dataset.task")
        browser.run("document.querySelectorAll('details').forEach(item => { item.open = true; })")
        assert browser.run(ACCESSIBILITY) == []
        assert browser.run("const b = document.getElementById('task'); return b.scrollWidth <= b.clientWidth")
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    clean(browser)


@pytest.mark.browser
def test_the_checks_of_accessibility_can_fail(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<title>t</title><main><h1>a</h1><h3 id=x>b</h3><p id=x style='color:#999;background:#fff'>pale</p>"
        "<button></button><table><thead><tr><th>h</th></tr></thead></table><pre>x</pre></main>"
    )
    browser.look()
    browser.open(page)
    said = "; ".join(browser.run(ACCESSIBILITY))
    for words in ("language", "id x", "no name", "caption", "no scope", "keyboard", "skips a level", "contrast"):
        assert words in said, words


@pytest.mark.browser
def test_the_theme_can_be_chosen(browser: Browser, written: Path) -> None:
    browser.look()
    browser.open(written)
    button = browser.find("#theme")[0]
    for _ in range(3):
        if button.text == "Theme: dark":
            break
        button.click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    while button.text != "Theme: system":
        button.click()
    clean(browser)
