"""Self-contained HTML pages: skeleton, style, tables that sort and filter. Shared by report, comparison, leaderboard.

A page is `page(title, body, ...)`: style and scripts inline, a content security policy that lets nothing else run and
nothing be fetched, dark and light, phone, keyboard. A body is made of `table_html(Table(...))` and of templates of
`rtb/pages/` through `render(name, **values)`; every value is escaped, and characters that a reader cannot see
(control characters, direction marks) become escapes. `Markup` values are taken as they are, so make them here only.

`table.js` sorts a table by its header buttons, filters it by each `Filter` (the rows' `data-KEY`) and by free text,
and keeps that in the address: `#TABLE.KEY=value&TABLE.q=text&TABLE.sort=2d` (column from 0, `d` downwards), so that a
view can be linked. Other scripts of the page may keep further keys there through `window.rtbPage` (see the script).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rtb.console import visible as visible

FOLDER = Path(__file__).with_name("pages")


def _seen(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, finalize=_seen,
        keep_trailing_newline=False,
    )  # fmt: skip


def render(name: str, **values: object) -> Markup:
    """A template of `rtb/pages/`, filled. Strings are made visible and escaped."""
    return Markup(_environment().get_template(name).render(**values))


def asset(name: str) -> Markup:
    """A style or script of `rtb/pages/`, to be put into a page."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def json_block(name: str, value: Any) -> Markup:
    """Data for a script of the page (`<script type="application/json" id=NAME>`); no content can end the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return Markup('<script type="application/json" id="{}">{}</script>').format(name, Markup(text))


@dataclass(frozen=True)
class Column:
    """A column. `kind`: how it sorts, and numbers stand right. `minor`: hidden on a phone. `wide`: sentences."""

    title: str
    kind: Literal["text", "number"] = "text"
    minor: bool = False
    wide: bool = False
    explain: str = ""

    @property
    def classes(self) -> str:
        marks = (("num", self.kind == "number"), ("minor", self.minor), ("wide", self.wide))
        return " ".join(name for name, on in marks if on)


@dataclass(frozen=True)
class Cell:
    """A cell. `sort` is what it sorts by where that is not its text; `note` is small print below."""

    content: str | Markup = ""
    sort: str | float | None = None
    href: str = ""
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row. `data` is what filters look at, by filter key (letters, digits and '-' only)."""

    cells: Sequence[Cell | str]
    id: str = ""
    data: Mapping[str, str] = field(default_factory=dict)

    def pairs(self, columns: Sequence[Column]) -> Iterator[tuple[Column, Cell]]:
        """Each column with its cell."""
        for column, cell in zip(columns, self.cells, strict=True):
            yield column, cell if isinstance(cell, Cell) else Cell(cell)


@dataclass(frozen=True)
class Filter:
    """A choice above a table: rows whose `data[key]` is the chosen value stay. `options`: value, number of rows."""

    key: str
    label: str
    options: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Table:
    """A table; `id` is unique in its page and of letters, digits and '-'. The first cell of a row is its header."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    filters: Sequence[Filter] = ()
    search: bool = False
    sortable: bool = True
    row_headers: bool = True


def choice(key: str, label: str, rows: Sequence[Row]) -> Filter:
    """A filter over the values that the rows have, in order of first appearance."""
    counts: dict[str, int] = {}
    for row in rows:
        value = row.data[key]
        counts[value] = counts.get(value, 0) + 1
    return Filter(key, label, list(counts.items()))


def table_html(table: Table) -> Markup:
    """A table with its controls."""
    return render("table.html.jinja", table=table)


def badge(word: str, tone: str = "") -> Markup:
    """A word in a coloured frame. Tones: good, bad, warn, odd, dim; the word alone says what is meant."""
    return Markup('<span class="badge {}">{}</span>').format(tone, visible(word))


def page(
    title: str,
    body: Markup,
    *,
    heading: str = "",
    subtitle: str | Markup = "",
    nav: Sequence[tuple[str, str]] = (),
    footer: str | Markup = "",
    scripts: Sequence[Markup] = (),
    head: Markup = Markup(""),
) -> str:
    """A whole document. `nav`: address and text of links; `scripts` run after `table.js`; `head`: further tags."""
    every = [asset("table.js"), *scripts]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in every)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return str(
        render(
            "page.html.jinja", title=title, heading=heading or title, subtitle=subtitle, nav=nav, body=body,
            footer=footer or "Made by rtb from stored files; nothing on this page is fetched from anywhere.",
            scripts=every, head=head, style=asset("style.css"), policy=policy,
        )
    )  # fmt: skip


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
