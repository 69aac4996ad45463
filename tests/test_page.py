"""Pages: what is written into one stays text, and nothing can be fetched from one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from rtb.page import Cell, Column, Row, Table, badge, choice, json_block, page, table_html, visible

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)>" \u202eevil\x1b[31m\x00 & \ud800'


class Tags(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Tags:
    found = Tags()
    found.feed(text)
    return found


def table(text: str) -> Table:
    rows = [Row([Cell(text, note=text, href="#" + text), text], id="r1", data={"kind": text})]
    return Table(
        "t", text, [Column(text), Column("n", kind="number", explain=text)], rows, [choice("kind", text, rows)]
    )


def test_hostile_text_stays_text_everywhere() -> None:
    body = table_html(table(HOSTILE)) + badge(HOSTILE)
    whole = page(HOSTILE, body, subtitle=HOSTILE, footer=HOSTILE, nav=[("x.html", HOSTILE)])
    found = parsed(whole)
    names = [name for name, _ in found.tags]
    assert "img" not in names and names.count("script") == 1
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", whole)
    assert "\\u202eevil\\x1b[31m\\x00" in found.text
    whole.encode()


@given(st.text())
def test_visible_text_is_printable_and_printable_text_is_unchanged(text: str) -> None:
    seen = visible(text)
    assert seen.replace("\n", "").replace("\t", "").isprintable()
    seen.encode()
    assert visible(seen) == seen
    if text.isprintable():
        assert seen == text


@pytest.mark.parametrize("value", [HOSTILE.replace("\ud800", ""), "<!--", "\u2028", {"a": ["</SCRIPT "]}])
def test_data_of_a_page_comes_back_and_cannot_end_its_element(value: object) -> None:
    block = str(json_block("d", value))
    inside = block.removeprefix('<script type="application/json" id="d">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == value


def test_the_policy_names_the_scripts_and_lets_nothing_be_fetched() -> None:
    whole = page("t", Markup("<p>x</p>"), scripts=[Markup("window.x = 1;")])
    policy = next(a["content"] for n, a in parsed(whole).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and policy.count("'sha256-") == 2
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", whole)


def test_a_filter_counts_the_rows_of_each_value() -> None:
    rows = [Row(["x"], data={"k": value}) for value in ("b", "a", "b")]
    assert list(choice("k", "K", rows).options) == [("b", 2), ("a", 1)]
