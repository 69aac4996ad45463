"""What stands behind a table and beside a site: JSON, CSV, badges, a feed. Pure: text in, bytes out."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, time
from email.utils import format_datetime
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from rtb.leaderboard import Entry
from rtb.page import Cell, Table, render, visible

_BADGE_CHAR_PX = 6.6  # width of a character of the badge's 11 px type, a little generous


def rows_of(table: Table) -> list[dict[str, Any]]:
    """A table's rows by column title: numbers as numbers with their small print (counts, interval), text as text.

    What rows are filtered by is there too, under the filter's key.
    """
    pairs = [pair for row in table.rows for pair in row.pairs(table.columns)]
    noted = {column.title for column, cell in pairs if cell.note}
    found = []
    for row in table.rows:
        line: dict[str, Any] = {}
        for column, cell in row.pairs(table.columns):
            line[column.title] = _value(cell)
            if column.kind == "number" and column.title in noted:
                line[f"{column.title} (of what)"] = cell.note
        found.append({**line, **{key: value for key, value in row.data.items() if key.title() not in line}})
    return found


def _value(cell: Cell) -> Any:
    if cell.sort is not None:
        return cell.sort if cell.sort != "" else None
    text = cell.content.striptags() if isinstance(cell.content, Markup) else cell.content
    return None if text == "–" else text


def as_json(table: Table) -> bytes:
    """The rows as a JSON list."""
    return (json.dumps(rows_of(table), indent=1, ensure_ascii=True) + "\n").encode()


def as_csv(table: Table) -> bytes:
    """The rows as CSV. Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    rows = rows_of(table)
    writer.writerow(rows[0] if rows else [column.title for column in table.columns])
    writer.writerows([_plain(value) for value in row.values()] for row in rows)
    return out.getvalue().encode()


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible(value)
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text


def badge_svg(label: str, value: str) -> bytes:
    """A small picture: label and value. Text only, nothing is fetched."""
    left, right = (round(_BADGE_CHAR_PX * len(text) + 12) for text in (label, value))
    return render("badge.svg.jinja", label=label, value=value, left=left, right=right).encode()


def feed(entries: Sequence[Entry], title: str, url: str) -> bytes:
    """RSS 2.0 of the newest submissions."""
    base = url.rstrip("/") + "/"
    rss = ElementTree.Element("rss", version="2.0")
    channel = ElementTree.SubElement(rss, "channel")
    _tags(
        channel, title=title, link=base, description="Submissions that were checked: computed again from raw files."
    )
    for entry in entries[:50]:
        item = ElementTree.SubElement(channel, "item")
        facts, counts = entry.metadata, entry.report.outcomes
        day = datetime.combine(facts.date, time(), UTC)
        _tags(
            item,
            title=f"{facts.model.name} with {facts.scaffold.name}: {counts['resolved']} of {entry.report.tasks}"
            f"{' (example)' if facts.example else ''}",
            link=f"{base}models/{entry.model_id}.html#{entry.id}",
            description=f"Suite {entry.group}",
            guid=entry.checked.digest,
            pubDate=format_datetime(day),
        )
        item[-2].set("isPermaLink", "false")
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(rss)


def _tags(parent: ElementTree.Element, **texts: str) -> None:
    for name, text in texts.items():
        ElementTree.SubElement(parent, name).text = re.sub(r"[\ud800-\udfff\ufffe\uffff]", "?", visible(text))
