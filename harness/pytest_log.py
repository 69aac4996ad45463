"""Reader of a pytest console log, given the ids that are known. Pure.

A text log cannot be split safely at spaces or at " - ", so ids are matched, never guessed, wherever they are known.
The log is a witness beside the records, and says why nothing was recorded; alone it never makes a pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from harness.records import worse
from rtb.result import TestStatus

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\-_])")
_HEADER = re.compile(r"^=+ short test summary info =+$")
_START = re.compile(r"^=+ test session starts")
_STATUS_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:at (?:setup|teardown) of )?(.+)$")
_VERBOSE_LINE = re.compile(r"^(?P<id>\S.*::.*?) (?P<status>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?P<rest> .*)?$")
_FOLDED_SKIP = re.compile(r"^SKIPPED \[(\d{1,9})\] ")
_COUNT = re.compile(r"\b(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)\b")
_TOTALS = re.compile(
    r"^(?:=+ )?((?:\d{1,9} [a-z ]+|no tests ran)(?:, \d{1,9} [a-z ]+)*) in [\d.]+s(?: \([^)]*\))?(?: =+)?$"
)
_NODE = re.compile(r"^[^\s:][^:]*\.py::\S")
_FILE = re.compile(r"^([^\s:][^:]*\.py)(?: - .*)?$")
_COLLECTING = re.compile(r"^_+ ERROR collecting (\S+) _+$")
_NOT_FOUND = re.compile(r"^ERROR: (?:not found|file or directory not found): (.+)$")
_NO_PYTEST = re.compile(r"No module named '?pytest'?$")
_FATAL = re.compile(r"^(Fatal Python error|Segmentation fault|Aborted|Killed|Bus error|Illegal instruction)")


@dataclass(frozen=True)
class PytestLog:
    """What a log shows. `counts` are those of the last totals line, None when there is none (the run did not end,
    or the end is cut); `running` is the id of the last verbose line without a status."""

    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    file_errors: tuple[str, ...] = ()
    not_found: tuple[str, ...] = ()
    running: str | None = None
    skips_without_ids: int = 0
    has_start: bool = False
    has_summary: bool = False
    no_pytest: bool = False
    fatal: str | None = None


def decode(data: bytes) -> str:
    """Text of a whole log: decoded at once (a character may be split over frames), bad bytes replaced."""
    return data.decode("utf-8", "replace")


def plain(text: str) -> str:
    """Text without terminal escapes and carriage returns."""
    return _ESCAPE.sub("", text).replace("\r", "")


def read_log(data: bytes | str, known: Sequence[str] = ()) -> PytestLog:
    """Read a log. `known` are full node ids; they win over any guess at where an id ends."""
    lines = plain(decode(data) if isinstance(data, bytes) else data).split("\n")
    ids = frozenset(known)
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    has_start = any(_START.match(line) for line in lines)
    # Before the header only verbose lines count. Without a start the log is cut: then everything may be summary.
    summary_from = headers[-1] if headers else (len(lines) if has_start else 0)
    statuses: dict[str, TestStatus] = {}
    files: list[str] = []
    skips = 0
    for number, line in enumerate(lines):
        if number >= summary_from:
            skips += _folded(line)
            found = _summary_line(line, ids)
        else:
            found = _verbose_line(line, ids)
        if found is not None:
            statuses[found[0]] = worse(statuses.get(found[0]), found[1])
        files += _broken_file(line, number >= summary_from)
    return PytestLog(
        statuses=statuses,
        counts=_totals(lines),
        file_errors=tuple(dict.fromkeys(files)),
        not_found=tuple(match[1] for match in map(_NOT_FOUND.match, lines) if match),
        running=_running(lines[:summary_from], ids, statuses),
        skips_without_ids=skips,
        has_start=has_start,
        has_summary=bool(headers),
        no_pytest=not has_start and any(_NO_PYTEST.search(line) for line in lines),
        fatal=next((line for line in lines if _FATAL.search(line) or _fatal_after_id(line, ids)), None),
    )


def _folded(line: str) -> int:
    match = _FOLDED_SKIP.match(line)
    return int(match[1]) if match else 0


def _summary_line(line: str, ids: frozenset[str]) -> tuple[str, TestStatus] | None:
    match = _STATUS_LINE.match(line)
    if match is None or _FOLDED_SKIP.match(line):
        return None
    status = cast(TestStatus, match[1])
    node = _leading_id(match[2], ids, " - ") or _guess_id(match[2], status)
    return (node, status) if node is not None and _NODE.match(node) else None


def _verbose_line(line: str, ids: frozenset[str]) -> tuple[str, TestStatus] | None:
    node = _leading_id(line, ids, " ")
    match = _VERBOSE_LINE.match(line)
    if node is not None:
        match = re.match(r"^ (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: |$)", line[len(node) :])
        return (node, cast(TestStatus, match[1])) if match else None
    if match is None or not _NODE.match(match["id"]):
        return None
    return match["id"], cast(TestStatus, match["status"])


def _leading_id(text: str, ids: frozenset[str], after: str) -> str | None:
    """The longest known id that starts the text and is followed by its end or by `after`."""
    end = len(text)
    while end > 0:
        if text[:end] in ids:
            return text[:end]
        end = text.rfind(after, 0, end)
    return None


def _guess_id(text: str, status: TestStatus) -> str | None:
    """Where the id of an unknown test ends. PASSED lines hold nothing but the id."""
    if status == "PASSED":
        return text
    name = text.partition("::")[2]
    if not name:
        return None
    opening, dash = text.find("["), text.find(" - ")
    if opening != -1 and (dash == -1 or opening < dash):
        closing = text.find("] - ", opening)
        return text[: closing + 1] if closing != -1 else text
    return text if dash == -1 else text[:dash]


def _broken_file(line: str, in_summary: bool) -> list[str]:
    match = _COLLECTING.match(line)
    if match:
        return [match[1]]
    if in_summary and line.startswith("ERROR "):
        match = _FILE.match(line.removeprefix("ERROR "))
        return [match[1]] if match else []
    return []


def read_totals(data: bytes) -> dict[str, int] | None:
    """The counts of the last totals line, from the end of a log; None when there is no such line."""
    return _totals(plain(decode(data[-65536:])).split("\n"))


def _totals(lines: Sequence[str]) -> dict[str, int] | None:
    for line in reversed(lines):
        if _TOTALS.match(line.strip()):
            return {kind.removesuffix("s") if kind == "errors" else kind: int(n) for n, kind in _COUNT.findall(line)}
    return None


def _running(lines: Sequence[str], ids: frozenset[str], statuses: Mapping[str, TestStatus]) -> str | None:
    for line in reversed(lines):
        node = _leading_id(line, ids, " ")
        if node is None:
            match = re.match(r"^([^\s:][^:]*\.py::[^ \[]+(?:\[.*?\])?) ", line)
            node = match[1] if match else None
        if node is not None:
            return None if node in statuses else node
    return None


def _fatal_after_id(line: str, ids: frozenset[str]) -> bool:
    node = _leading_id(line, ids, " ")
    return node is not None and _FATAL.match(line[len(node) + 1 :]) is not None
