"""pass@k against its definition: the share of all ways to draw k attempts that hold a solved one."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtb.errors import ExpectedError
from rtb.pass_at_k import estimate, pass_at_k
from rtb.task import Category


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_estimate_is_the_share_of_draws_with_a_solved_attempt(numbers: tuple[int, int, int]) -> None:
    n, solved, k = numbers
    attempts = [True] * solved + [False] * (n - solved)
    draws = list(combinations(attempts, k))
    assert estimate(n, solved, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


CATEGORIES: dict[str, Category] = {"a": "optimization", "b": "optimization", "c": "new_kernel"}


def test_the_mean_is_over_all_tasks_and_grows_with_k() -> None:
    found = pass_at_k(
        {
            "a": ["resolved", "unresolved", "empty_patch"],
            "b": ["apply_failed", "tampered", "inconclusive"],
            "c": ["resolved", "resolved", "resolved"],
        },
        CATEGORIES,
    )
    assert found.values == {1: pytest.approx((1 / 3 + 0 + 1) / 3), 2: pytest.approx((2 / 3 + 0 + 1) / 3), 3: 2 / 3}
    assert not found.incomplete
    assert found.by_category == {
        "optimization": {1: pytest.approx(1 / 6), 2: pytest.approx(1 / 3), 3: 0.5},
        "new_kernel": {1: 1.0, 2: 1.0, 3: 1.0},
    }
    assert [(task.instance_id, task.n, task.solved) for task in found.tasks] == [
        ("a", 3, 1),
        ("b", 3, 0),
        ("c", 3, 3),
    ]


@pytest.mark.parametrize(
    ("n", "solved", "expected"),
    # by hand: with 3 of 10 solved, a draw of 2 misses in (7*6)/(10*9), a draw of 5 in (7*6*5*4*3)/(10*9*8*7*6)
    [(10, 3, {1: 0.3, 2: 1 - 42 / 90, 5: 1 - 2520 / 30240, 8: 1.0}), (4, 0, {1: 0.0, 4: 0.0})],
)
def test_known_numbers(n: int, solved: int, expected: dict[int, float]) -> None:
    assert {k: estimate(n, solved, k) for k in expected} == pytest.approx(expected)


def test_a_fault_of_a_machine_is_neither_solved_nor_failed() -> None:
    found = pass_at_k({"a": ["not_submitted", "resolved"], "b": ["unresolved", "resolved"]}, CATEGORIES)
    assert found.values == {1: pytest.approx((1 + 0.5) / 2), 2: None}
    found = pass_at_k({"a": ["error", "resolved"], "b": ["unresolved", "resolved"]}, CATEGORIES)
    assert found.values == {1: pytest.approx((1 + 0.5) / 2), 2: None}
    assert found.incomplete


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="k=3 of n=2"):
        estimate(2, 1, 3)
    with pytest.raises(ExpectedError):
        pass_at_k({}, {})
