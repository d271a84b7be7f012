"""Intervals, paired comparisons and verdicts."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from ddlnb.calibration.statistics import (
    Interval,
    Verdict,
    bracket_interval,
    holm,
    mean_interval,
    paired_comparison,
    ratio_interval,
    t_test,
)


def test_intervals_cover_as_often_as_they_say():
    """2,000 intervals of five normal values: 95 % within 4 standard errors, 2 percent points."""
    draws = np.random.default_rng(0).standard_normal((2000, 5))
    found = [mean_interval(values) for values in draws]
    assert np.mean([one.low <= 0 <= one.high for one in found]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.inf], [1.0, math.nan]])
def test_there_is_no_interval_without_two_finite_values(values):
    assert math.isnan(mean_interval(np.array(values)).half_width)


def test_an_interval_decides_only_as_a_whole():
    interval = Interval(1.05, 1.02, 1.08)
    assert interval.above(1.0) == "holds"
    assert interval.above(1.1) == "contradicted"
    assert interval.above(1.06) == interval.above(1.0, margin=0.03) == "undecided"
    assert interval.within(1.0, 1.1) == "holds"
    assert interval.within(0.9, 1.01) == interval.within(1.09, 2.0) == "contradicted"
    assert interval.within(1.05, 1.1) == "undecided"
    nothing = Interval(math.inf)
    assert nothing.above(0.0) == nothing.within(0.0, 1.0) == "undecided"


def test_brackets_widen_intervals():
    exact = np.array([[2.0, 2.0], [2.2, 2.2], [2.1, 2.1]])
    wide = exact - [0.5, 0.0]
    assert bracket_interval(exact) == mean_interval(exact[:, 1])
    assert bracket_interval(wide).high == bracket_interval(exact).high
    assert bracket_interval(wide).low == pytest.approx(bracket_interval(exact).low - 0.5)
    ratio = ratio_interval(2 * exact, exact)
    assert ratio == pytest.approx((2.0, 2.0, 2.0))
    wider, apart = ratio_interval(2 * wide, wide), np.log(wide[:, 1] / wide[:, 0]).mean()
    assert np.log(wider) == pytest.approx(math.log(2.0) + apart * np.array([0, -1, 1]))


def test_what_is_never_reached_makes_the_ratio_zero():
    reached = np.array([[1.0, 2.0], [1.0, 2.0]])
    never = np.array([[1.0, 2.0], [math.inf, math.inf]])
    assert ratio_interval(reached, never).estimate == 0.0
    assert ratio_interval(reached, never).above(1.0) is Verdict.UNDECIDED


def test_a_comparison_is_the_paired_t_test():
    better, worse = np.array([1.0, 1.3, 0.9, 1.2]), np.array([1.4, 1.5, 1.6, 1.1])
    found = paired_comparison(better, worse)
    expected = ttest_rel(worse, better)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.difference == pytest.approx(
        (np.mean(worse - better), *expected.confidence_interval(0.95))
    )
    half = np.ptp(expected.confidence_interval(0.95)) / 2
    assert found.columns()["half_width"] == pytest.approx(half)


def test_a_margin_counts_small_differences_as_none():
    better, worse = np.array([1.0, 2.0, 3.0]), np.array([1.01, 2.01, 3.01])
    assert paired_comparison(better, worse).verdict is Verdict.HOLDS
    assert paired_comparison(better, worse, margin=0.05).verdict is Verdict.UNDECIDED
    assert paired_comparison(worse, better).verdict is Verdict.CONTRADICTED


@pytest.mark.parametrize(
    ("better", "worse", "verdict", "p_value", "difference"),
    [
        ([1.0, 1.0, 1.0], [2.0, math.inf, 2.0], Verdict.HOLDS, 0.25, math.inf),
        ([2.0, math.inf, 2.0], [1.0, 1.0, 1.0], Verdict.CONTRADICTED, 0.25, -math.inf),
        ([1.0, 1.0, 3.0], [2.0, math.inf, 2.0], Verdict.UNDECIDED, 1.0, math.inf),
        ([1.0, 2.0, math.inf], [1.5, 3.0, math.inf], Verdict.UNDECIDED, 1.0, 0.75),
        ([math.inf] * 2, [math.inf] * 2, Verdict.UNDECIDED, 1.0, math.nan),
        ([1.0], [math.inf], Verdict.UNDECIDED, 1.0, math.inf),
    ],
)
def test_where_runs_diverged_all_pairs_decide_and_one_alone_does_not(
    better, worse, verdict, p_value, difference
):
    found = paired_comparison(np.array(better), np.array(worse))
    assert (found.verdict, found.p_value) == (verdict, p_value)
    assert found.difference.estimate == pytest.approx(difference, nan_ok=True)
    assert math.isnan(found.difference.half_width)


def test_the_p_value_of_equal_differences_is_that_of_no_spread():
    assert t_test(np.array([0.5, 0.5, 0.5])) == 0.0
    assert t_test(np.array([0.0, 0.0])) == 1.0
    assert math.isnan(t_test(np.array([0.5])))
    assert math.isnan(t_test(np.array([0.5, math.inf])))


def test_holms_correction_never_says_more_than_one():
    assert holm(np.array([0.9, 0.02, 0.8])).tolist() == pytest.approx([1.0, 0.06, 1.0])
