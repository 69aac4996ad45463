"""Intervals against known values and by counting how often they miss; the decision rules on what they must decide."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.decisions import (
    PATIENT,
    STANDARD,
    combine,
    decide_difference,
    decide_ratio,
    paper_accuracy,
    paper_latency,
    question_looks,
    unmeasurable,
)
from harness.kernel_times import summarise_calls, summarise_shapes
from harness.model_stages import is_noisy
from harness.statistics import (
    Pairs,
    arithmetic_mean,
    bootstrap_bounds,
    geometric_mean,
    mcnemar,
    median,
    pair_up,
    paired_bounds,
    provable_margin,
    quantile,
    questions_needed,
    score_bounds,
    student_bounds,
)
from rtb.baseline import Baseline
from tests.cases import cases_root

CASES = cases_root() or Path("shared/cases")


def pairs(n: int, lost: int, won: int) -> Pairs:
    return Pairs(n, n // 2 + lost, n // 2 + won, lost, won)


def test_student_bounds_are_those_of_the_tables() -> None:
    bounds = student_bounds([1.0, 2.0, 3.0, 4.0], 0.05)
    assert bounds is not None
    half = 2.353363 * math.sqrt(5 / 3) / 2  # t(3) at 95 %
    assert (bounds.estimate, bounds.low) == (2.5, pytest.approx(2.5 - half, rel=1e-6))
    assert student_bounds([1.0], 0.05) is None
    assert student_bounds([1.0, math.nan], 0.05) is None


def test_means_know_no_gaps() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    for broken in ([], [1.0, None], [1.0, 0.0], [1.0, math.inf], [1.0, -1.0]):
        assert geometric_mean(broken) is None
    assert arithmetic_mean([1.0, 4.0]) == 2.5
    assert arithmetic_mean([1.0, None]) is None
    assert arithmetic_mean([]) is None


def test_quantiles_are_numpys() -> None:
    values = [5.0, 1.0, 9.0, 2.0, 7.0]
    for share in (0.0, 0.2, 0.5, 0.8, 0.9, 1.0):
        assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)))
    assert median([]) is None


def test_pairing_counts_both_directions() -> None:
    found = pair_up([True, True, False, False, True], [True, False, True, False, False])
    assert (found.n, found.reference_right, found.new_right, found.lost, found.won) == (5, 3, 2, 2, 1)
    assert found.difference == pytest.approx(-0.2)
    with pytest.raises(ValueError, match="cannot pair"):
        pair_up([True], [True, False])


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar(pairs(100, 0, 0)) == 1.0
    assert mcnemar(pairs(100, 5, 0)) == pytest.approx(2 / 32)
    assert mcnemar(pairs(100, 8, 2)) == pytest.approx(0.109375)
    assert mcnemar(pairs(100, 3, 3)) == 1.0


def test_score_bounds_are_where_the_restricted_likelihood_puts_them() -> None:
    bounds = score_bounds(Pairs(44, 0, 11, lost=1, won=12), 0.025)
    assert bounds.estimate == pytest.approx(0.25)
    low, high = score_inverse(44, 12, 1)
    assert bounds.low == pytest.approx(low, abs=1e-4)
    assert bounds.high == pytest.approx(high, abs=1e-4)


def score_inverse(n: int, won: int, lost: int) -> tuple[float, float]:
    """The same bounds by search over the restricted likelihood, written another way."""
    from scipy.optimize import brentq, minimize_scalar

    def statistic(delta: float) -> float:
        def loss(share: float) -> float:  # share of lost, restricted so that won - lost = delta
            cells = (share + delta, share, 1 - 2 * share - delta)
            if min(cells) <= 0:
                return 1e9
            return -(won * math.log(cells[0]) + lost * math.log(cells[1]) + (n - won - lost) * math.log(cells[2]))

        low, high = max(0.0, -delta), (1 - delta) / 2
        share = float(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)
        return (won - lost - n * delta) / math.sqrt(n * (2 * share + delta * (1 - delta)))

    z = 1.959964
    centre = (won - lost) / n
    return brentq(lambda d: statistic(d) - z, -0.5, centre), brentq(lambda d: statistic(d) + z, centre, 0.9)


def test_without_discordance_the_bootstrap_alone_is_too_sure() -> None:
    same = pairs(50, 0, 0)
    assert bootstrap_bounds(same, 0.05).low == 0.0
    assert paired_bounds(same, 0.05).low < -0.02  # 50 equal answers do not show a margin of 2 points
    assert paired_bounds(pairs(1319, 0, 0), 0.05).low > -0.005


def test_the_lower_bound_misses_as_seldom_as_it_says() -> None:
    generator = np.random.default_rng(7)
    truth, n, misses, trials = -0.01, 400, 0, 250
    for lost, won in generator.multinomial(n, [0.04, 0.03, 0.93], size=trials)[:, :2]:
        misses += paired_bounds(pairs(n, int(lost), int(won)), 0.05).low > truth
    assert misses / trials < 0.08


def test_provable_margin_and_questions_are_those_of_the_table() -> None:
    assert 100 * provable_margin(0.05, 1319) == pytest.approx(1.5, abs=0.05)
    assert 100 * provable_margin(0.10, 1319) == pytest.approx(2.2, abs=0.05)
    assert questions_needed(0.05, 0.02) == pytest.approx(773, abs=1)
    assert provable_margin(0.0, 1319) > 0


def test_accuracy_is_decided_by_the_bound_and_not_by_the_sign() -> None:
    slightly_below = decide_difference(pairs(1319, 14, 12), 2.0, used_up=True)
    assert slightly_below.decision == "passed"
    assert not paper_accuracy([slightly_below.bounds.estimate])
    assert decide_difference(pairs(1319, 120, 10), 2.0, used_up=True).decision == "failed"
    undecided = decide_difference(pairs(1319, 60, 40), 2.0, used_up=True)
    assert (undecided.decision, undecided.final) == ("inconclusive", True)
    early = decide_difference(pairs(330, 6, 6), 2.0, used_up=False)
    assert (early.decision, early.final) == ("inconclusive", False)
    assert question_looks(1319) == (330, 660, 1319)
    assert question_looks(60) == (60,)


def test_equal_accuracy_passes_often_and_a_true_loss_of_the_margin_seldom() -> None:
    generator = np.random.default_rng(3)

    def share_passed(lost: float, won: float) -> float:
        passed = 0
        for _ in range(150):
            draws = generator.choice(3, size=1319, p=[lost, won, 1 - lost - won])
            for look in question_looks(1319):
                part = draws[:look]
                found = pairs(look, int((part == 0).sum()), int((part == 1).sum()))
                verdict = decide_difference(found, 2.0, used_up=look == 1319)
                if verdict.final:
                    passed += verdict.decision == "passed"
                    break
        return passed / 150

    assert share_passed(0.02, 0.02) > 0.9
    assert share_passed(0.04, 0.02) < 0.12


def test_latency_looks_are_those_of_the_design() -> None:
    assert decide_ratio([0.0] * 3, 0.98) is None
    equal = [0.001, -0.001, 0.002, -0.002, 0.0, 0.001]
    early = decide_ratio(equal, 0.98)
    assert early is not None
    assert (early.decision, early.pairs, early.final) == ("passed", 4, True)
    slow = decide_ratio([value + math.log(0.97) for value in equal], 0.98)
    assert slow is not None
    assert slow.decision == "failed"
    assert slow.estimate == pytest.approx(0.97, rel=1e-3)


def test_latency_undecided_goes_on_to_the_last_look_and_ends_inconclusive() -> None:
    noisy = [0.04, -0.05, 0.03, -0.04] * 3
    for count, used, final in ((4, 4, False), (5, 4, False), (6, 6, False), (9, 9, False), (12, 12, True)):
        found = decide_ratio(noisy[:count], 0.98)
        assert found is not None
        assert (found.decision, found.pairs, found.final) == ("inconclusive", used, final)


def test_a_decision_does_not_change_when_more_blocks_come() -> None:
    first = [0.001, -0.001, 0.002, -0.002]
    assert decide_ratio([*first, *[-0.2] * 8], 0.98) == decide_ratio(first, 0.98)


def test_a_missing_block_is_never_a_number() -> None:
    with pytest.raises(ValueError, match="finite"):
        decide_ratio([0.0, math.nan, 0.0, 0.0], 0.98)


@pytest.mark.parametrize("schedule", [STANDARD, PATIENT])
def test_a_true_ratio_at_the_threshold_passes_seldom(schedule: object) -> None:
    generator = np.random.default_rng(5)
    passed = 0
    for _ in range(400):
        logs = generator.normal(math.log(0.98), 0.01, 120)
        found = decide_ratio(list(logs), 0.98, schedule)  # type: ignore[arg-type]
        passed += found is not None and found.decision == "passed"
    assert passed / 400 < 0.09


@pytest.mark.parametrize("launch_noise", [0.007, 0.01, 0.03])
def test_the_schedule_that_the_noise_asks_for_passes_equal_servers(launch_noise: float) -> None:
    """Both metrics of 300 pairs of equal servers, on the schedule that a baseline of that noise leads to."""
    pair = launch_noise * math.sqrt(2)
    schedule = PATIENT if is_noisy(Baseline(deviation={"s_ttft": pair, "s_tpot": pair})) else STANDARD
    generator = np.random.default_rng(11)
    passed = 0
    for _ in range(300):
        found = [decide_ratio(list(generator.normal(0, pair, 120)), 0.98, schedule) for _ in range(2)]
        passed += combine([ratio.decision for ratio in found if ratio]) == "passed"
    assert passed / 300 >= 0.98  # 99 in the long run


def test_parts_combine_to_the_worst() -> None:
    assert combine(["passed", "passed"]) == "passed"
    assert combine(["passed", "inconclusive"]) == "inconclusive"
    assert combine(["inconclusive", "failed"]) == "failed"
    assert combine([]) == "inconclusive"


def test_the_papers_rule_needs_three_runs() -> None:
    assert paper_latency([1.0, 0.97, 0.98], 0.98) is True
    assert paper_latency([1.0, 0.97, 0.96], 0.98) is False
    assert paper_latency([1.0, 1.0], 0.98) is None


def test_a_machine_that_cannot_tell_gold_from_gold_is_named() -> None:
    assert unmeasurable([0.001, -0.002, 0.001, 0.0]) is None
    assert "1.5 %" in (unmeasurable([0.015, 0.016, 0.014, 0.015]) or "")
    assert unmeasurable([]) is not None


def case(name: str) -> tuple[dict[str, object], Path]:
    folder = CASES / name
    if not folder.is_dir():
        pytest.skip("the shared cases are not beside the repository")
    return json.loads((folder / "case.json").read_text()), folder


def test_case_100_first_calls_and_outlier() -> None:
    _, folder = case("100-first-calls-and-outlier")
    given = json.loads((folder / "samples.json").read_text())
    found = summarise_calls(given["samples_ms"], given["warmup_calls"])
    assert (found.n, found.median) == (10, pytest.approx(0.51))
    assert found.first_calls == (1850.0, 2.4)
    assert found.low is not None and found.high is not None
    assert found.low <= 0.51 <= found.high <= 0.53
    assert found.flags == ("max/median = 7.8",)


def test_case_101_one_zero_in_the_geomean() -> None:
    _, folder = case("101-one-zero-in-the-geomean")
    found = summarise_shapes(json.loads((folder / "shapes.json").read_text()))
    assert found.score is None
    assert found.invalid == {"b": "the time is not above zero", "c": "no valid time"}
    assert found.below_floor == ("b", "d")


def test_shapes_that_are_all_sound_have_a_score() -> None:
    shapes = [
        {"shape": "a", "ref_ms": 1.0, "cand_ms": 0.5, "correct": True},
        {"shape": "b", "ref_ms": 1.0, "cand_ms": 2.0, "correct": True},
    ]
    found = summarise_shapes(shapes)
    assert found.score == pytest.approx(1.0)
    assert found.below_floor == ()
