"""The leaderboard's pages in a real browser: sort, filter, deep links, model and task pages, nothing fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.plots import history_plot
from harness.submission_check import check_all
from rtb.leaderboard_site import build_site
from tests.browser import Browser
from tests.examples import as_model, checker, copy_of

pytestmark = pytest.mark.browser
ACCESSIBILITY = (Path(__file__).parent / "accessibility.js").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home, out = tmp_path_factory.mktemp("board"), tmp_path_factory.mktemp("site") / "site"
    copy_of("gold", home / "control")
    as_model(copy_of("gold", home / "one"), "One", date="2026-01-05", scaffold={"name": "mini"})
    as_model(copy_of("example", home / "two"), "<b>Two</b>", date="2026-02-05", model={"open_weights": False})
    build_site(check_all(checker(), home), out, title="Board", url="http://x/", plot=history_plot)
    return out


def names(browser: Browser, table: str = "ranking") -> list[str]:
    """The models of the rows that can be seen, in their order."""
    found = browser.run(
        f"return Array.from(document.querySelectorAll('#{table} tbody tr'))"
        ".filter(row => row.checkVisibility()).map(row => row.cells[0].querySelector('a').textContent)"
    )
    return list(found)


def choose(browser: Browser, key: str, value: str) -> None:
    browser.run(
        f"const box = document.querySelector('#ranking [data-filter={key}]'); box.value = args[0];"
        "box.dispatchEvent(new Event('change', {bubbles: true}));",
        value,
    )


def test_the_ranking_sorts_filters_and_can_be_linked(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    assert names(browser) == ["One", "Example: gold", "<b>Two</b>"]
    browser.click("#ranking thead th:nth-child(4) button")
    browser.click("#ranking thead th:nth-child(4) button")
    browser.wait("document.querySelector('#ranking th[aria-sort=ascending]')")
    assert names(browser)[0] == "<b>Two</b>"
    choose(browser, "weights", "open")
    assert names(browser) == ["One", "Example: gold"] or names(browser) == ["Example: gold", "One"]
    choose(browser, "scaffold", "mini")
    assert names(browser) == ["One"]
    fragment = browser.run("return location.hash.slice(1)")
    browser.open(site / "index.html", fragment)
    assert names(browser) == ["One"], "the address alone gives the same view"
    browser.click("#ranking [data-reset]")
    assert len(names(browser)) == 3
    choose(browser, "month", "2026-02")
    assert names(browser) == ["<b>Two</b>"]
    browser.open(site / "index.html", "by-category.category=new_kernel")
    assert len(names(browser, "by-category")) == 3
    assert not browser.complaints() and not browser.fetched()


def test_model_and_task_pages_are_a_click_away(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    browser.click("#ranking tbody tr a")
    browser.wait("document.readyState === 'complete' && document.querySelector('h1').textContent === 'One'")
    assert browser.run("return document.querySelector(location.hash) !== null")
    browser.click("section table tbody a")
    browser.wait("document.readyState === 'complete' && document.querySelector('#solvers')")
    assert browser.run("return document.querySelectorAll('#solvers tbody tr').length") == 3
    assert not browser.complaints() and not browser.fetched()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index.html", "tasks.html", "history.html", "models/*.html", "tasks/*.html"])
def test_pages_can_be_read_by_everybody_and_fetch_nothing(
    name: str, dark: bool, browser: Browser, site: Path
) -> None:
    page = sorted(site.glob(name))[0]
    browser.look(dark=dark)
    browser.open(page)
    assert browser.run(ACCESSIBILITY) == []
    browser.look(400, 800, dark=dark)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth") <= 400, "wider than a phone"
    assert not browser.complaints() and not browser.fetched()
