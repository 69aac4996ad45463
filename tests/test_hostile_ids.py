"""Test ids that want to do harm (HTML, escapes, line ends, right-to-left marks, great length) in every form in
which results are shown: console, Markdown, report page, comparison, leaderboard.

pytest escapes much of this, but not where a project switches that off, and a submission's files are a stranger's. So
the ids are put into stored raw files, with the records signed anew as their writer would have done.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.plots import history_plot
from harness.report import build_report
from harness.stages.unit import UnitFolder
from harness.verdict import grade_task
from rtb import submit_command
from rtb.leaderboard_site import build_site
from rtb.manifest import seal
from rtb.run import Run
from rtb.storage import write_model
from tests.browser import Browser
from tests.examples import copy_of, suites_at
from tests.storedrun import many
from tests.test_report_page import details

ROOT = Path(__file__).resolve().parent.parent
ACCESSIBILITY = Path(__file__).with_name("accessibility.js").read_text()
PARTS = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "\x1b[2J\x1b]0;owned\x07\x1b[31mred [/red] [bold]{{7*7}} \\x | &amp; \x00",
    "one\nline | resolved |\r\nmore\u2028\u2029\x85",
    "\u202egnp.evil\u2066 \u05e9\u05dc\u05d5\u05dd\u200f\u061c \ufeff",
    "long" * 2500,
    "=cmd|' /C calc'!A0,\"; <b>%s</b> ${x} `rm`",
)
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff]")


class Tags(HTMLParser):
    """Every tag of a text with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def harmless(text: str, scripts: int) -> None:
    """No element, handler or unseen character came into a page by an id."""
    tags = Tags()
    tags.feed(text)
    names = [name for name, _ in tags.found]
    assert not [attributes for name, attributes in tags.found if name == "img" and attributes.get("src") == "x"]
    assert names.count("script") == scripts
    assert not [key for _, attributes in tags.found for key in attributes if key.startswith("on")]
    assert not STEERS.search(text)


def rename(task: Path, change: Callable[[str], str]) -> None:
    """Other test ids in the raw files of a task; its records are signed anew with the key beside them."""

    def ids(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [ids(item) for item in value]
        return {key: ids(item) for key, item in value.items()} if isinstance(value, dict) else value

    record = json.loads((task / "record.json").read_text())
    record["tests"] = ids(record["tests"])
    (task / "record.json").write_text(json.dumps(record))
    folder = UnitFolder(task / "unit")
    facts = json.loads(folder.exec.read_text())
    chain, lines = b"", []
    for line in folder.records.read_bytes().splitlines():
        payload = json.dumps(ids(json.loads(line.rpartition(b"\t")[0]))).encode()
        chain = hmac.new(bytes.fromhex(facts["nonce"]), chain + payload, hashlib.sha256).hexdigest().encode()
        lines.append(payload + b"\t" + chain + b"\n")
    folder.records.write_bytes(b"".join(lines))
    facts["records_sha256"] = hashlib.sha256(b"".join(lines)).hexdigest()
    folder.exec.write_text(json.dumps(facts))


def evil(part: str) -> Callable[[str], str]:
    return lambda text: text.replace("test_doubles[3]", f"test_doubles[{part}]")


@pytest.fixture(scope="module")
def runs(stored: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run in which a test of each of those names fails, and one in which all tasks are resolved."""
    root = tmp_path_factory.mktemp("hostile")
    bad = many(stored, root / "bad", len(PARTS), ["rtb__pocket-3"], ["unit"])
    for place, part in enumerate(PARTS):
        rename(bad.task(f"rtb__pocket-{1000 + place}").path, evil(part))
    good = many(stored, root / "good", len(PARTS), ["rtb__pocket-1"], ["unit"])
    for run in (bad, good):  # the same tasks, as far as a comparison looks
        record = json.loads(run.record.read_text())
        record["categories"] = dict.fromkeys(record["categories"], "new_kernel")
        run.record.write_text(json.dumps(record))
    return good, bad


def rtb(*arguments: str, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rtb.cli", *arguments], capture_output=True, text=True, timeout=120, check=False,
        cwd=ROOT, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def test_the_console_and_markdown_are_not_steered(runs: tuple[Run, Run]) -> None:
    good, bad = (str(run.path) for run in runs)
    for arguments in (("report", bad), ("report", bad, "--format", "md"), ("report", bad, "--format", "latex"),
                      ("compare", good, bad), ("compare", good, bad, "--format", "md")):  # fmt: skip
        done = rtb(*arguments)
        shown = done.stdout + done.stderr
        assert not STEERS.search(shown.replace("\r", "")), arguments
        assert "<img" not in done.stdout and "<script" not in done.stdout
    markdown = rtb("report", bad, "--format", "md").stdout
    rows = [line for line in markdown.splitlines() if line.startswith("| rtb__pocket-")]
    assert len(rows) == len(PARTS), "a line end in an id makes no row"
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}, "nor does a bar make a cell"
    assert "\\x1b[2J" in markdown and "\\u202egnp" in markdown  # seen, not obeyed
    document = json.loads(rtb("report", bad, "--json").stdout)
    assert document["outcomes"]["unresolved"] == len(PARTS)


def test_the_report_and_the_comparison_page_hold_them_as_text(runs: tuple[Run, Run], tmp_path: Path) -> None:
    good, bad = runs
    rtb("report", str(bad.path), "--format", "html")
    text = bad.report_html.read_text()
    parts = details(text)
    assert len(parts) == len(PARTS)
    for part in parts.values():
        harmless(part, scripts=0)
    harmless(re.sub(r'<script type="(?:text/plain|application/json)".*?</script>', "", text), scripts=2)
    assert "&lt;img src=x" in parts["rtb__pocket-1000"] and "\\u202egnp" in parts["rtb__pocket-1003"]
    page = tmp_path / "c.html"
    rtb("compare", str(good.path), str(bad.path), "--format", "html", "--out", str(page))
    harmless(page.read_text(), scripts=1)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1300, 390], ids=["desk", "phone"])
def test_nothing_of_them_runs_or_breaks_a_page(
    browser: Browser, runs: tuple[Run, Run], tmp_path: Path, width: int
) -> None:
    good, bad = runs
    rtb("report", str(bad.path), "--format", "html")
    page = tmp_path / "c.html"
    rtb("compare", str(good.path), str(bad.path), "--format", "html", "--out", str(page))
    browser.look(width, 900)
    for place in (bad.report_html, page):
        browser.open(place)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.driver.title != "owned"
        assert browser.run(ACCESSIBILITY) == []
    for number in range(len(PARTS)):
        browser.open(bad.report_html, f"task=rtb__pocket-{1000 + number}")
        browser.wait("document.getElementById('task-body').dataset.task")
        browser.run("document.querySelectorAll('details').forEach(item => { item.open = true; })")
        assert not browser.find("#task-body img, #task-body script, #task-body b")
        assert browser.run("const b = document.getElementById('task'); return b.scrollWidth <= b.clientWidth")
        assert browser.run(ACCESSIBILITY) == []
        assert browser.driver.title != "owned"
    assert browser.complaints() == [] and browser.fetched() == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site of a submission whose failing tests have those names, and whose suite has them too."""
    home = tmp_path_factory.mktemp("hostile-board")
    suites = suites_at(home / "tasks")
    folder = copy_of("example", home / "board" / "evil")
    record = folder.run.read_record()
    failing = [name for name in record.instance_ids if '"failed"' in _verdict(folder.run, name)]
    assert failing
    for name in failing:
        task = folder.run.task(name).path
        (first, *_) = json.loads((task / "record.json").read_text())["tests"]["fail_to_pass"]
        stem = first.partition("[")[0]
        hostile = f"{stem}[{''.join(PARTS[:4])}{PARTS[5]}]"

        def change(text: str, first: str = first, hostile: str = hostile) -> str:
            return hostile if text == first else text

        rename(task, change)
        known = suites / "demo" / name / "tests.json"
        known.write_text(json.dumps(json.loads((task / "record.json").read_text())["tests"]))
    verdicts = [grade_task(folder.run, record, name) for name in record.instance_ids]
    assert any("gnp.evil" in verdict.reason for verdict in verdicts)
    for verdict in verdicts:
        if folder.run.task(verdict.instance_id).path.is_dir():
            write_model(folder.run.task(verdict.instance_id).verdict, verdict)
    write_model(folder.report, build_report(record, verdicts))
    seal(folder)
    checked = submit_command.checker(suites=suites).check(folder.path)
    assert checked.accepted, checked.faults
    build_site([checked], home / "site", title="Board", url="http://x/", plot=history_plot)
    yield home / "site"


def _verdict(run: Run, name: str) -> str:
    path = run.task(name).verdict
    return path.read_text() if path.is_file() else ""


def test_the_leaderboard_holds_them_as_text_in_pages_data_and_feed(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert any("gnp.evil" in page.read_text() for page in pages)
    for page in pages:
        harmless(page.read_text(), scripts=1)
    for path in (*site.rglob("*.csv"), *site.rglob("*.json"), *site.rglob("*.xml"), *site.rglob("*.svg")):
        assert not STEERS.search(path.read_text().replace("\r\n", "\n")), path.name
    for path in (*site.rglob("*.xml"), *site.rglob("*.svg")):
        ElementTree.parse(path)


@pytest.mark.browser
def test_the_leaderboard_pages_stay_whole_with_them(browser: Browser, site: Path) -> None:
    for width in (1300, 390):
        browser.look(width, 900)
        for page in [path for path in site.rglob("*.html") if "gnp.evil" in path.read_text()]:
            browser.open(page)
            assert browser.run("return document.documentElement.scrollWidth") <= width, page.name
            assert browser.run(ACCESSIBILITY) == []
            assert browser.driver.title != "owned"
            assert browser.complaints() == [] and browser.fetched() == []
