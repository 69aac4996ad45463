"""Parts of long texts as a page shows them: patches from their start, logs from their end, and what was cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness.pytest_log import plain
from rtb.highlight import diff_html
from rtb.page import visible


@dataclass(frozen=True)
class Excerpt:
    """A text with its title. `cut` says what is not shown and where it is; empty when all is."""

    title: str
    text: Markup | str
    kind: str = "log"
    cut: str = ""


def patch_excerpt(data: bytes, where: str, limit: int) -> Excerpt:
    """A patch from its start, as marked lines. Bytes that are no UTF-8 are shown as \\xNN."""
    kept = data[:limit]
    if len(data) > limit:
        kept = kept[: kept.rfind(b"\n") + 1] or kept
    text = kept.decode("utf-8", "backslashreplace")
    cut = "" if len(kept) == len(data) else f"the first {len(kept):,} of {len(data):,} bytes; all of it: {where}"
    return Excerpt("Patch", diff_html(text), "diff", cut)


def log_excerpt(path: Path, where: str, limit: int) -> Excerpt | None:
    """A log from its end, without terminal escapes; None when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except OSError:
        return None
    cut = "" if size <= limit else f"the last {limit:,} of {size:,} bytes; all of it: {where}"
    return Excerpt(where, visible(plain(data.decode("utf-8", "replace"))), "log", cut)


def text_excerpt(title: str, text: str, limit: int, kind: str = "log") -> Excerpt:
    """A text from its end."""
    cut = "" if len(text) <= limit else f"the last {limit:,} of {len(text):,} characters"
    return Excerpt(title, visible(plain(text[-limit:] if limit else "")), kind, cut)
