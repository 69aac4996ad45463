"""A diff with its lines marked, as HTML, by pygments. Only the lines' kinds are told: that is quick at any size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from rtb.page import visible

# pygments' own formatter makes an element of each line; whole runs of lines are a quarter of the time and the size.
CLASSES = {"Token.Generic.Inserted": "gi", "Token.Generic.Deleted": "gd", "Token.Generic.Subheading": "gu",
           "Token.Generic.Heading": "gh"}  # fmt: skip


@cache
def _lexer() -> Any:
    from pygments.lexers.diff import DiffLexer

    return DiffLexer(stripnl=False, ensurenl=False)


def diff_html(text: str) -> Markup:
    """The diff, escaped and with every character visible. Classes: gi added, gd removed, gu hunk, gh file."""
    pieces = []
    for kind, tokens in groupby(_kinds(visible(text)), key=lambda item: item[0]):
        inside = escape("".join(value for _, value in tokens))
        pieces.append(f'<span class="{kind}">{inside}</span>' if kind else inside)
    return Markup("".join(pieces))


def _kinds(text: str) -> Iterator[tuple[str, str]]:
    """Tokens with their classes; the end of a line belongs to the line."""
    kind = ""
    for _, token, value in _lexer().get_tokens_unprocessed(text):
        if value.strip("\n"):
            kind = CLASSES.get(str(token), "")
        yield kind, value
