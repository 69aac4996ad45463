"""The paper's published numbers, as data: to be shown beside ours, and to check our aggregation against. Pure facts.

They are as published; docs/paper.md says which of them follow from one another and which do not.
"""

from __future__ import annotations

from pathlib import Path

from rtb.suite import read_model
from rtb.task import Category, Frozen


class PublishedMetrics(Frozen):
    """Percentages of tasks; ratios gold / model."""

    success: float
    applied: float
    ftp: float
    utp: float
    nr: float
    s_ttft: float
    s_tpot: float


class PublishedRow(Frozen):
    """A model's row of Table 3 with its columns of Table 4."""

    name: str
    scaffold: str
    tokens_millions: float | None
    overall: PublishedMetrics
    by_category: dict[Category, PublishedMetrics]


class Published(Frozen):
    """All of it. `further`: rows of the appendix, outside the average."""

    title: str
    note: str
    category_tasks: dict[Category, int]
    models: tuple[PublishedRow, ...]
    average: PublishedRow
    further: tuple[PublishedRow, ...]
    success_by_latency_threshold: dict[str, int]

    @property
    def tasks(self) -> int:
        return sum(self.category_tasks.values())


def published() -> Published:
    """The numbers of `published.json`."""
    return read_model(Path(__file__).with_name("published.json"), Published)
