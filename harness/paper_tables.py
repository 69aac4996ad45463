"""A run's numbers as tables: metrics in both profiles, and the paper's Tables 3 and 4 for this run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.profiles import PROFILES, Profile, ProfileMetrics, TaskRows, by_category, under
from rtb.result import Metric
from rtb.task import Category

PAPER_COLUMNS = ("Success", "Applied", "FTP", "UTP", "NR", "S_TTFT", "S_TPOT")
PAPER_KEYS = ("success", "applied", "ftp", "utp", "nr", "s_ttft", "s_tpot")
CATEGORY_NAMES: dict[Category, str] = {
    "optimization": "Optimization", "modification": "Modification", "new_kernel": "New kernel",
}  # fmt: skip
HEADLINE = (
    ("success", "Success %"), ("applied", "Applied %"), ("ftp", "FTP %"), ("utp", "UTP %"), ("nr", "NR %"),
    ("s_ttft", "S_TTFT, arithmetic mean"), ("geometric_ttft", "S_TTFT, geometric mean"),
    ("s_tpot", "S_TPOT, arithmetic mean"), ("geometric_tpot", "S_TPOT, geometric mean"), ("cost", "Cost $ a task"),
)  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """A run under both profiles, as a whole and by category. `tokens`: their sum, over `tokens_known` tasks."""

    whole: Mapping[Profile, ProfileMetrics]
    categories: Mapping[Profile, Mapping[Category, ProfileMetrics]]
    tokens: int
    tokens_known: int


def numbers(tasks: Sequence[TaskRows]) -> Numbers:
    """The numbers of a run."""
    tokens = [task.tokens for task in tasks if task.tokens is not None]
    return Numbers(
        whole={profile: under(tasks, profile) for profile in PROFILES},
        categories={profile: by_category(tasks, profile) for profile in PROFILES},
        tokens=sum(tokens),
        tokens_known=len(tokens),
    )


def metric(found: ProfileMetrics, key: str) -> Metric:
    """One of HEADLINE's metrics."""
    value = getattr(found, key) if key.startswith("geometric") else getattr(found.metrics, key)
    assert isinstance(value, Metric)
    return value


def digits(key: str) -> int:
    """Decimals that a metric is shown with, as in the paper."""
    return 4 if key in ("s_ttft", "s_tpot", "cost", "geometric_ttft", "geometric_tpot") else 2


def shown(found: Metric, key: str) -> str:
    """A value, or a dash where nothing was measured."""
    return "–" if found.value is None else f"{found.value:.{digits(key)}f}"


def interval(found: Metric, key: str) -> str:
    """The 95 % interval, or a dash."""
    if found.low is None or found.high is None:
        return "–"
    return f"{found.low:.{digits(key)}f} to {found.high:.{digits(key)}f}"


def headline_rows(found: Numbers) -> list[tuple[str, ...]]:
    """Each metric: name; then value, interval and n a profile."""
    rows = []
    for key, title in HEADLINE:
        cells = [title]
        for profile in PROFILES:
            item = metric(found.whole[profile], key)
            cells += [shown(item, key), interval(item, key), str(item.n)]
        rows.append(tuple(cells))
    return rows


def paper_cells(found: ProfileMetrics) -> tuple[str, ...]:
    """A row of the paper's metrics."""
    return tuple(shown(metric(found, key), key) for key in PAPER_KEYS)


def tokens_cell(found: Numbers) -> str:
    """All tokens of the run in millions, as in Table 3; a dash where no task's are known."""
    return f"{found.tokens / 1e6:.2f}M" if found.tokens_known else "–"


def table3(model: str, found: Numbers) -> list[tuple[str, ...]]:
    """Table 3 for this run: model, profile, metrics, tokens; one row a profile."""
    return [(model, profile, *paper_cells(found.whole[profile]), tokens_cell(found)) for profile in PROFILES]


def table4(found: Numbers) -> list[tuple[str, ...]]:
    """Table 4 for this run: category, number of tasks, profile, metrics; one row a category and profile."""
    return [
        (CATEGORY_NAMES[category], str(item.tasks), profile, *paper_cells(item))
        for category in found.categories[PROFILES[0]]
        for profile in PROFILES
        for item in (found.categories[profile][category],)
    ]


TABLE3_CAPTION = "Table 3 for this run"
TABLE4_CAPTION = "Table 4 for this run: by category"
TABLE3_COLUMNS = ("Model", "Profile", *PAPER_COLUMNS, "Tokens")
TABLE4_COLUMNS = ("Category", "Tasks", "Profile", *PAPER_COLUMNS)
