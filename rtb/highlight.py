"""A diff with its lines marked, as HTML, by pygments. Only the lines' kinds are told: that is quick at any size."""

from __future__ import annotations

from functools import cache
from typing import Any

from markupsafe import Markup

from rtb.page import visible


@cache
def _parts() -> tuple[Any, Any]:
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers.diff import DiffLexer

    return DiffLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)


def diff_html(text: str) -> Markup:
    """The diff, escaped and with every character visible. Classes: gi added, gd removed, gu hunk, gh file."""
    from pygments import highlight

    lexer, formatter = _parts()
    return Markup(highlight(visible(text), lexer, formatter))
