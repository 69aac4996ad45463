r"""The paper's tables of a run as LaTeX. Plain `tabular` with `\hline`: no package is needed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.paper_tables import (
    TABLE3_CAPTION,
    TABLE3_COLUMNS,
    TABLE4_CAPTION,
    TABLE4_COLUMNS,
    Numbers,
    headline_rows,
    table3,
    table4,
)
from harness.profiles import PROFILES
from rtb.console import visible
from rtb.run import RunRecord

WORDS = ("Metric", "Model", "Profile", "Category")  # columns that hold no numbers
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "\n": " ", "[": "{[}", "*": "{*}", '"': r"\textquotedbl{}",
}  # fmt: skip


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; characters that cannot be seen become escapes."""
    return "".join(SPECIAL.get(char, char) for char in visible(text))


def to_latex(record: RunRecord, found: Numbers) -> str:
    """Three tables: the metrics with interval and n, Table 3, Table 4."""
    model = ", ".join(record.model_names) or "no model"
    headings = ["Metric", *(title for profile in PROFILES for title in (profile, "95 % interval", "n"))]
    where = f"Run {record.run_id} of suite {record.suite}, rtb {record.rtb_version}"
    return "\n".join([
        "% " + escape(where),
        *_table("Metrics in both profiles", headings, headline_rows(found)),
        *_table(TABLE3_CAPTION, TABLE3_COLUMNS, table3(model, found)),
        *_table(TABLE4_CAPTION, TABLE4_COLUMNS, table4(found)),
    ])  # fmt: skip


def _table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A floating table; columns of words stand left, those of numbers right."""
    columns = "".join("l" if title in WORDS else "r" for title in titles)
    return [
        r"\begin{table}", rf"\caption{{{escape(caption)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\hline",
        _line(titles), r"\hline", *(_line(row) for row in rows), r"\hline", r"\end{tabular}", r"\end{table}", "",
    ]  # fmt: skip


def _line(cells: Sequence[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"
