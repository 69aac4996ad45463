"""The leaderboard: ranks with their certainty, pages whose content cannot harm, and data behind every table."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.plots import history_plot
from harness.submission_check import check_all
from rtb.errors import ExpectedError
from rtb.leaderboard import differ, entries_of, history, ranking, slug, typical
from rtb.leaderboard_data import badge_svg
from rtb.leaderboard_server import server
from rtb.leaderboard_site import build_site
from rtb.manifest import seal
from tests.examples import as_model, checker, copy_of, edit, example_suites

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "<img src=x onerror=alert(1)>\"'={{7*7}}"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal models, a weaker one, an example, and one that was tampered with."""
    home = tmp_path_factory.mktemp("board")
    copy_of("gold", home / "a-control")
    facts = {"model": {"organisation": "Org", "open_weights": True}, "scaffold": {"name": "mini"}}
    as_model(copy_of("gold", home / "one"), "One", date="2026-01-05", **facts)
    as_model(copy_of("gold", home / "two"), "Two", date="2026-02-05", model={"open_weights": False})
    hostile = as_model(copy_of("example", home / "three"), "Three", date="2026-03-05")
    edit(
        hostile.metadata,
        lambda document: (
            document["model"].update(name="=1+" + HOSTILE[:60]),
            document["scaffold"].update(name=HOSTILE[:60]),
            document.update(contact=HOSTILE[:60], links=["https://example.org/?a=b&c"]),
        ),
    )
    seal(hostile)
    broken = copy_of("example", home / "broken")
    edit(broken.report, lambda document: document["outcomes"].update(resolved=11))
    return home


@pytest.fixture(scope="module")
def site(board: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("site") / "site"
    checked = check_all(checker(), board)
    assert [Path(item.folder).name for item in checked if not item.accepted] == ["broken"]
    build_site(checked, out, title="Board", url="https://board.example/x", plot=history_plot)
    yield out


def test_equal_scores_share_a_rank_and_examples_have_none(board: Path) -> None:
    standings = ranking(entries_of(check_all(checker(), board)))
    shown = {item.entry.id: item.shown for item in standings}
    assert shown == {"one": "=1 (1–2)", "two": "=1 (1–2)", "three": "3", "a-control": "example"}
    by_category = ranking(entries_of(check_all(checker(), board)), "optimization")
    assert {item.entry.id: item.shown for item in by_category}["three"] == "3 (1–3)", "of 3 tasks nothing can be told"
    assert [item.tasks for item in by_category] == [3] * 4


def test_a_difference_counts_only_when_it_is_more_than_chance() -> None:
    # Two-sided exact sign test: 0 of 5 has p = 0.0625, 0 of 6 has p = 0.03125, 1 of 9 has p = 0.0391.
    assert not differ(0, 5)
    assert differ(0, 6) and differ(6, 0)
    assert differ(1, 8) and not differ(1, 7)
    assert not differ(0, 0)


def test_only_the_same_tasks_stages_and_rules_are_compared(board: Path) -> None:
    entries = entries_of(check_all(checker(), board))
    mixed = [
        replace(item, run=item.run.model_copy(update={"profile": "paper"})) if item.id == "three" else item
        for item in entries
    ]
    places = {item.entry.id: item.place for item in ranking(mixed)}
    assert places == {"one": 1, "two": 1, "three": 1, "a-control": None}, "the third is alone in its group"


def test_records_are_set_by_models_not_by_examples(board: Path) -> None:
    (lines,) = history(entries_of(check_all(checker(), board))).values()
    assert [(line.entry.id, line.is_record) for line in lines] == [
        ("one", True), ("two", False), ("three", False), ("a-control", False),
    ]  # fmt: skip


def test_every_link_in_the_site_leads_to_a_file(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        for address in re.findall(r'href="([^"]+)"', page.read_text()):
            if not address.startswith(("https://example.org", "data:", "#")):
                path, _, fragment = address.partition("#")
                target = (page.parent / path).resolve()
                assert target.is_file() and target.is_relative_to(site), f"{page.name}: {address}"
                assert not fragment or f'id="{fragment}"' in target.read_text(), f"{page.name}: {address}"


def test_hostile_names_are_shown_and_do_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "<img src=x" not in text and "49" not in text.partition("onerror")[2][:60]
        assert 'http-equiv="Content-Security-Policy"' in text
    assert "&lt;img src=x" in (site / "index.html").read_text()
    assert b"<img" not in badge_svg("x", HOSTILE)
    assert slug("../../etc/passwd") == "etc-passwd" and slug("\u202e") == "x"


def test_behind_every_table_there_is_json_and_csv(site: Path) -> None:
    rows = json.loads((site / "data" / "ranking.json").read_text())
    assert [row["Success %"] for row in rows] == [100.0, 100.0, 100.0, pytest.approx(100 / 11, abs=1e-3)]
    assert rows[0]["Success % (of what)"] == "11 of 11; 74 to 100"
    with (site / "data" / "ranking.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 4 and table[0]["Success %"] == "100.0"
    assert table[-1]["Model"].startswith("'=1+"), "a spreadsheet must not take it for a formula"
    for page in site.rglob("*.html"):
        for kind in ("json", "csv"):
            assert page.read_text().count("<table>") == page.read_text().count(f'.{kind}">{kind.upper()}</a>')


def test_the_published_numbers_stand_apart(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "As published, not recomputed" in text
    rows = json.loads((site / "data" / "published.json").read_text())
    gemini = next(row for row in rows if row["Model"].startswith("Gemini") and row["Category"] == "all")
    assert gemini["Success %"] == 19.35 and gemini["S_TTFT"] == 0.9424
    assert not any("Gemini" in row["Model"] for row in json.loads((site / "data" / "ranking.json").read_text()))


def test_task_pages_say_who_solves_it_and_what_goes_wrong(site: Path) -> None:
    pages = {path.stem: path.read_text() for path in (site / "tasks").glob("*.html")}
    page = next(text for name, text in pages.items() if name.endswith("tinyserve-15"))
    assert "3 of 4" in page and "Typical failures" in page and "unresolved" in page
    assert typical("unit: 3 of 9 tests failed: tests/t.py::test_x[a]") == "unit: N of N tests failed"


def test_feed_and_badges(site: Path) -> None:
    channel = ElementTree.parse(site / "feed.xml").getroot().find("channel")
    assert channel is not None
    links = [item.findtext("link") for item in channel.findall("item")]
    assert links[-1] == "https://board.example/x/models/one.html#one" and len(links) == 4
    for badge in (site / "badges").glob("*.svg"):
        assert ElementTree.parse(badge).getroot().tag.endswith("svg")
    assert "11/11 example" in (site / "badges" / "a-control.svg").read_text()


def test_building_again_replaces_a_site_and_nothing_else(board: Path, tmp_path: Path) -> None:
    checked = [checker().check(board / "one")]
    out = tmp_path / "site"
    for _ in range(2):
        build_site(checked, out, title="t", url="http://x/", plot=history_plot)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("x")
    with pytest.raises(ExpectedError, match="no leaderboard's site"):
        build_site(checked, tmp_path / "home", title="t", url="http://x/", plot=history_plot)


def test_an_empty_board_is_a_page_too(tmp_path: Path) -> None:
    build_site([], tmp_path / "site", title="t", url="http://x/", plot=history_plot)
    assert "As published" in (tmp_path / "site" / "index.html").read_text()


def test_serve_shows_the_site_on_this_machine_only(site: Path, tmp_path: Path) -> None:
    with server(site, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        assert listening.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{listening.server_port}/feed.xml", timeout=30) as answer:
            assert answer.headers["Content-Type"] == "application/rss+xml"
        with pytest.raises(ExpectedError, match=f"port {listening.server_port} is taken"):
            server(site, listening.server_port)
        listening.shutdown()
        thread.join(10)
    with pytest.raises(ExpectedError, match="rtb leaderboard build"):
        server(tmp_path, 0)


def test_the_command_line_leaves_out_what_does_not_hold(board: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rtb.cli", "leaderboard", "build", str(board), "--out", str(tmp_path / "s"), "--json"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RTB_TASKS": str(example_suites())},
    )  # fmt: skip
    assert done.returncode == 1
    assert "broken/report.json: digest: changed after it was sealed" in done.stderr
    states = {Path(item["folder"]).name: item["accepted"] for item in json.loads(done.stdout)["submissions"]}
    assert states == {"a-control": True, "broken": False, "one": True, "two": True, "three": True}
    shown = {row["Model"] for row in json.loads((tmp_path / "s" / "data" / "ranking.json").read_text())}
    assert len(shown) == 4 and "Example: example" not in shown
