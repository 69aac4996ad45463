"""The paper's averages from its per-model numbers by our aggregation, and what does not follow (docs/paper.md)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from harness.metrics import NAMES, Row, average, metrics
from rtb.published import Published, PublishedMetrics, PublishedRow, published
from rtb.result import Metric, Metrics
from rtb.task import CATEGORIES, Category

RATIOS = ("s_ttft", "s_tpot")


def all_rows() -> list[PublishedRow]:
    return [*published().models, *published().further]


def label(row: PublishedRow) -> str:
    return f"{row.name} ({row.scaffold})"


def as_metrics(row: PublishedMetrics) -> Metrics:
    values = {name: Metric(value=getattr(row, name, None), n=1) for name in NAMES}
    return Metrics.model_validate(values)


def rounding(value: float) -> float:
    """How far a number printed with four digits after rounding may be from what it stands for (some are cut off)."""
    return 0.0101 if value >= 10 else 0.00101 if value >= 1 else 0.000101


def whole(percent: float, n: int) -> int:
    """The count that a printed percentage of n tasks stands for; it must be one."""
    count = round(percent * n / 100)
    assert abs(100 * count / n - percent) <= 0.0101, (percent, n)
    return count


def rows_of(row: PublishedRow, facts: Published) -> list[Row]:
    """Tasks that give a model's published counts of each category, each with the category's mean UTP."""
    found: list[Row] = []
    for category, n in facts.category_tasks.items():
        said = row.by_category[category]
        resolved, applied, passed = (whole(value, n) for value in (said.success, said.applied, said.ftp))
        rest = (said.utp * n / 100 - passed) / (n - passed) if n > passed else 0.0
        found.extend(
            Row(
                f"a__b-{number}", category, "resolved" if number < resolved else "unresolved", number < applied,
                1.0 if number < passed else rest, None,
            )
            for number in range(n)
        )  # fmt: skip
    return found


@pytest.mark.parametrize("row", all_rows(), ids=label)
def test_a_models_row_follows_from_its_categories(row: PublishedRow) -> None:
    found = metrics(rows_of(row, published()))
    for name in ("success", "applied", "ftp", "utp"):
        assert getattr(found, name).value == pytest.approx(getattr(row.overall, name), abs=0.0101), name
        assert getattr(found, name).n == published().tasks == 31


@pytest.mark.parametrize("group", [None, *CATEGORIES])
def test_the_averages_are_means_over_models(group: Category | None) -> None:
    facts = published()

    def of(row: PublishedRow) -> PublishedMetrics:
        return row.overall if group is None else row.by_category[group]

    found = average([as_metrics(of(row)) for row in facts.models])
    for name in NAMES[:-1]:
        said = getattr(of(facts.average), name)
        ours = getattr(found, name)
        assert ours.n == 5
        printed = [rounding(getattr(of(row), name)) for row in facts.models]
        agrees = ours.value == pytest.approx(said, abs=rounding(said) + sum(printed) / 5)
        assert agrees is not ((group, name) == ("new_kernel", "applied")), (group, name, ours.value, said)


def test_the_one_average_that_is_none_is_a_mean_of_six_values() -> None:
    facts = published()
    values = [row.by_category["new_kernel"].applied for row in facts.models]
    assert sum(values) / 5 == pytest.approx(92.72, abs=0.01)
    assert sum([*values, 100.0]) / 6 == pytest.approx(facts.average.by_category["new_kernel"].applied, abs=0.01)


def weights(row: PublishedRow, names: Sequence[str], facts: Published) -> list[tuple[int, ...]]:
    """Numbers of tasks a category under which each of these overall values is a mean over tasks; a category cannot
    have more than passed all unit tests."""
    most = [whole(row.by_category[category].ftp, n) for category, n in facts.category_tasks.items()]
    found = []
    for counts in itertools.product(*(range(count + 1) for count in most)):
        tasks = [
            Row("a__b-1", category, "unresolved", True, 1.0, None, s_ttft=said.s_ttft, s_tpot=said.s_tpot)
            for (category, said), count in zip(row.by_category.items(), counts, strict=True)
            for _ in range(count)
        ]
        ours = metrics(tasks)
        if tasks and all(
            getattr(ours, name).value == pytest.approx(getattr(row.overall, name), abs=6e-4) for name in names
        ):
            found.append(counts)
    return found


@pytest.mark.parametrize("row", all_rows(), ids=label)
def test_the_ratios_are_means_over_tasks_except_those_of_one_model(row: PublishedRow) -> None:
    found = weights(row, RATIOS, published())
    assert bool(found) is not (label(row) == "GPT-5.4 (mini-SWE-agent)"), found
    assert (7, 3, 2) in found or row.name != "DeepSeek-V3.2 non-reasoning"


@pytest.mark.parametrize("row", all_rows(), ids=label)
def test_nr_stands_on_the_tasks_that_passed_their_unit_tests_and_have_an_accuracy_test(row: PublishedRow) -> None:
    facts = published()
    most = [whole(row.by_category[category].ftp, n) for category, n in facts.category_tasks.items()]
    shares = [row.by_category[category].nr for category in facts.category_tasks]
    found = []
    for counts in itertools.product(*(range(count + 1) for count in most)):
        kept = [round(share * count / 100) for share, count in zip(shares, counts, strict=True)]
        exact = all(
            not n or abs(100 * k / n - share) < 0.0101 for k, n, share in zip(kept, counts, shares, strict=True)
        )
        rows = [
            Row("a__b-1", "optimization", "unresolved", True, 1.0, None, not_reduced=number < k)
            for k, n in zip(kept, counts, strict=True)
            for number in range(n)
        ]
        value = metrics(rows).nr.value
        if exact and value is not None and abs(value - row.overall.nr) < 0.0101:
            found.append(counts)
    assert found


def test_failing_units_and_the_degraded_are_one_case_apart_from_the_text() -> None:
    facts = published().average.overall
    assert 100 - facts.ftp == pytest.approx(56.77, abs=0.01)
    assert facts.ftp - facts.success == pytest.approx(24.52, abs=0.01)  # the text says 25.16, which is 39 of 155


def test_success_by_threshold_is_of_155_cases() -> None:
    shares = {key: 100 * count / 155 for key, count in published().success_by_latency_threshold.items()}
    assert shares["0.98"] == pytest.approx(published().average.overall.success, abs=0.01)
    assert shares == {
        "0.95": pytest.approx(20.0),
        "0.98": pytest.approx(18.71, abs=0.01),
        "0.99": pytest.approx(11.61, abs=0.01),
    }
