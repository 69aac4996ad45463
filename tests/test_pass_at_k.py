"""pass@k against its definition: the share of all ways to draw k attempts that hold a solved one."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtb.errors import ExpectedError
from rtb.pass_at_k import estimate, pass_at_k


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_estimate_is_the_share_of_draws_with_a_solved_attempt(numbers: tuple[int, int, int]) -> None:
    n, solved, k = numbers
    attempts = [True] * solved + [False] * (n - solved)
    draws = list(combinations(attempts, k))
    assert estimate(n, solved, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_the_mean_is_over_all_tasks_and_grows_with_k() -> None:
    found = pass_at_k(
        {
            "a": ["resolved", "unresolved", "empty_patch"],
            "b": ["apply_failed", "tampered", "not_submitted"],
            "c": ["resolved", "resolved", "resolved"],
        }
    )
    assert found.values == {1: pytest.approx((1 / 3 + 0 + 1) / 3), 2: pytest.approx((2 / 3 + 0 + 1) / 3), 3: 2 / 3}
    assert not found.incomplete


def test_a_fault_of_a_machine_is_neither_solved_nor_failed() -> None:
    found = pass_at_k({"a": ["error", "resolved"], "b": ["unresolved", "resolved"]})
    assert found.values == {1: pytest.approx((1 + 0.5) / 2), 2: None}
    assert found.incomplete


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="k=3 of n=2"):
        estimate(2, 1, 3)
    with pytest.raises(ExpectedError):
        pass_at_k({})
