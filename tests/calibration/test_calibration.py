"""Calibration: what is known comes back, and what is not known is said to be so."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.calibrate import calibrate
from ddlnb.calibration.clusters import calibrate_parameters, unexplained
from ddlnb.calibration.fit import Prior
from ddlnb.calibration.observations import AllReduceTime, HopTime, observe
from ddlnb.calibration.parameters import Parameter, ParameterValues, prior_of
from ddlnb.calibration.posterior import draw_within, tempered_draws
from ddlnb.errors import InputError
from ddlnb.files import DATA
from tests.toy_clusters import (
    BANDWIDTH,
    FAST,
    FAT,
    INSIDE,
    PARAMETERS,
    RUN,
    SHARE,
    SLOW,
    SLOWNESS,
    TRUTH,
    cells,
    seen,
)

TRUE = dict(zip([p.name for p in PARAMETERS], TRUTH.values, strict=True))
ROWS = seen(cells(workers=(2,)))  # all within one node
ELSEWHERE = Parameter("between_bandwidth", ("elsewhere",), low=1e8, high=1e10, prior=2e9)


@pytest.fixture(scope="module")
def fitted():
    return calibrate_parameters(seen(cells()), PARAMETERS)


def test_known_parameters_come_back_within_three_standard_deviations(fitted):
    distance = np.log(np.array(fitted.values) / TRUTH.values) / fitted.posterior.spread
    assert np.abs(distance).max() < 3
    assert fitted.posterior.spread.max() < 0.2  # and that says something
    assert fitted.value_of["between_bandwidth@slow"] == pytest.approx(7e8, rel=0.02)
    assert fitted.converged
    assert 0.7 < fitted.residual_deviation < 1.3
    assert fitted.median_error < 0.01
    assert fitted.mean_error < 0.015
    assert fitted.model_error < 0.01
    assert fitted.identifiability.unidentified == ()


def test_fewer_rows_than_effects_are_refused(tmp_path):
    rows = pd.read_csv(DATA / "measured" / "2026-11-21_two-cores_loopback" / "rows.csv").head(2)
    path = tmp_path / "rows.csv"
    seen = {"model": "resnet50", "local_batch": 64, "network": "10GbE", "gpus": 8, "servers": 0}
    rows.assign(**seen).assign(method="BSP-A2A").to_csv(path, index=False)
    with pytest.raises(InputError, match=r"2 rows of .* cannot say what the \d+ effects of"):
        calibrate("survey-10GbE", rows=path)


def drawn_values(count):
    """Values drawn from the priors: for these, and only on average, intervals are what they say."""
    for seed in range(count):
        x = prior_of(PARAMETERS).draws(1, np.random.default_rng(100 + seed))[0]
        yield seed, ParameterValues(PARAMETERS, tuple(np.exp(x).tolist()))


@pytest.mark.thorough
def test_intervals_hold_the_truth_about_nine_times_in_ten():
    hits = []
    for seed, truths in drawn_values(10):
        rows = seen(cells(workers=(2, 4, 8), methods=RUN[::2]), truths, seed=seed)
        found = calibrate_parameters(rows, PARAMETERS)
        for truth, (name, (low, high)) in zip(truths.values, found.intervals.items(), strict=True):
            assert low <= found.value_of[name] <= high
            hits.append(low <= truth <= high)
    assert 0.78 <= np.mean(hits) <= 0.98


@pytest.mark.parametrize("prior_spread", [None, 0.5])
def test_what_the_data_does_not_move_is_named_and_stays_at_its_prior(prior_spread):
    elsewhere = replace(ELSEWHERE, prior_spread=prior_spread)
    found = calibrate_parameters(seen(cells(workers=(2, 4))), [*PARAMETERS, elsewhere])
    identified = found.identifiability
    assert identified.unidentified == (elsewhere.name,)
    assert identified.ratio[elsewhere.name] == pytest.approx(1.0)
    assert max(ratio for name, ratio in identified.ratio.items() if name != elsewhere.name) < 0.5
    assert found.value_of[elsewhere.name] == pytest.approx(2e9)
    low, high = found.intervals[elsewhere.name]
    assert low < 1e9
    assert high > 4e9
    assert "not identified by the data" in str(identified)


def test_the_search_leaves_alone_what_no_row_identifies():
    found = calibrate_parameters(ROWS, PARAMETERS)
    assert found.value_of["between_bandwidth@slow"] == pytest.approx(BANDWIDTH.prior)
    assert found.value_of["between_share"] == pytest.approx(SHARE.prior)


def test_the_posterior_is_exact_where_the_problem_is_linear():
    row = observe(HopTime(SLOW.with_effects(between_latency=0.0), 1e6), 1e-3, 0.3, "measured")
    bandwidth = Parameter("between_bandwidth", low=1e6, high=1e12, prior=1.2e9, prior_spread=0.4)
    found = calibrate_parameters([row], [bandwidth])
    weights = 1 / 0.3**2, 1 / 0.4**2
    mean = (weights[0] * np.log(1e9) + weights[1] * np.log(1.2e9)) / sum(weights)
    assert np.log(found.values[0]) == pytest.approx(mean, abs=1e-3)
    assert found.posterior.spread[0] == pytest.approx(sum(weights) ** -0.5, rel=0.08)
    drawn = np.log(found.posterior.samples(4000)[:, 0])
    assert drawn.mean() == pytest.approx(mean, abs=0.02)
    assert drawn.std() == pytest.approx(sum(weights) ** -0.5, rel=0.08)


def test_parameters_of_which_only_the_sum_is_identified_are_named_as_a_pair():
    hops = [observe(HopTime(SLOW, 1e3 * size), 1e-4, 0.01, "measured") for size in (1.0, 1.01)]
    latency = Parameter("between_latency", low=1e-6, high=1e-3, prior_spread=2.0)
    bandwidth = Parameter("between_bandwidth", low=1e6, high=1e9, prior=2e7, prior_spread=2.0)
    ((first, second, correlation),) = calibrate_parameters(
        hops, [latency, bandwidth]
    ).identifiability.alike
    assert (first, second) == ("between_latency", "between_bandwidth")
    assert correlation > 0.95


def test_bounds_hold_and_are_named_where_the_data_press_against_them():
    narrow = replace(BANDWIDTH, low=9e8, high=9e9, prior=3e9)  # the truth is 7e8
    found = calibrate_parameters(seen(cells(workers=(2, 4))), [narrow, INSIDE, SHARE, SLOWNESS])
    assert found.value_of[narrow.name] == pytest.approx(9e8, rel=0.01)
    assert found.identifiability.at_bound == (narrow.name,)
    drawn = found.posterior.samples(500)
    for column, parameter in zip(drawn.T, found.parameters, strict=True):
        assert parameter.low <= column.min()
        assert column.max() <= parameter.high * (1 + 1e-12)
    assert found.intervals[narrow.name][1] < 1.2e9


def test_a_limit_that_is_never_reached_is_known_from_below_only():
    # Servers faster than the nodes do not show, so all that is known is that they are no slower.
    server = Parameter("server_bandwidth", ("slow",), low=1e8, high=1e11)
    truth = ParameterValues((server,), (5e9,))
    found = calibrate_parameters(seen(cells((4, 8), ("WFBP-PS",)), truth), [server])
    low, high = found.intervals[server.name]
    assert 8e8 < low < 1.5e9
    assert high > 1e10


def test_the_same_call_gives_the_same_fit(fitted):
    again = calibrate_parameters(seen(cells()), PARAMETERS)
    assert again.values == fitted.values
    assert np.array_equal(again.posterior.samples(50, seed=3), fitted.posterior.samples(50, seed=3))
    assert not np.array_equal(
        again.posterior.samples(50, seed=3), fitted.posterior.samples(50, seed=4)
    )
    assert again.intervals == fitted.intervals


def test_more_starts_find_the_same_and_do_so_again(fitted):
    small = seen(cells(workers=(2, 4), workloads=(FAT,)))
    first = calibrate_parameters(small, PARAMETERS, starts=3, seed=5)
    assert calibrate_parameters(small, PARAMETERS, starts=3, seed=5).values == first.values
    once = calibrate_parameters(small, PARAMETERS)
    assert first.cost <= once.cost + 0.01


def test_another_minimum_that_is_as_good_is_named():
    # All-reduces of one size are as slow through one bandwidth as through the other.
    row = observe(AllReduceTime(SLOW.with_workers(4), 1e8), 1.5e8 / 5e8, 0.01, "measured")
    inside = Parameter("inside_bandwidth", low=1e8, high=1e10, prior=6e8)
    between = Parameter("between_bandwidth", low=1e8, high=1e10, prior=3e9)
    found = calibrate_parameters([row], [inside, between], starts=6)
    assert found.value_of["inside_bandwidth"] == pytest.approx(5e8, rel=0.05)
    assert "inside_bandwidth" in {name for name, _ in found.identifiability.ambiguous}
    assert "could as well be" in str(found.identifiability)


MANY = [replace(ELSEWHERE, of=(f"network {i}",)) for i in range(41)]


@pytest.mark.parametrize(
    ("rows", "wanted", "said"),
    [
        (ROWS, MANY, "41 parameters are more than 40"),
        (ROWS, [INSIDE, INSIDE], "different names"),
        (ROWS, [], "parameters is empty"),
        ([], PARAMETERS, "observations is empty"),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows, wanted, said):
    with pytest.raises(InputError, match=said):
        calibrate_parameters(rows, wanted)


@pytest.mark.thorough
def test_a_gross_outlier_does_little_harm_when_the_fit_is_robust():
    rows = seen(cells(workers=(2, 4)))
    rows[5] = replace(rows[5], value=rows[5].value * 8)
    rows[17] = replace(rows[17], value=rows[17].value / 8)
    robust = calibrate_parameters(rows, PARAMETERS, robust=True)
    plain = calibrate_parameters(rows, PARAMETERS)

    def off(found):
        return max(abs(np.log(value / TRUE[name])) for name, value in found.value_of.items())

    assert off(robust) < 0.25
    assert off(plain) > 3 * off(robust)
    assert robust.posterior.spread.mean() < plain.posterior.spread.mean() / 3


def test_what_the_model_lacks_becomes_its_error_and_widens_the_intervals(fitted):
    rows = seen(cells(), noise=0.1)
    rows = [replace(row, spread=0.01) for row in rows]
    found = calibrate_parameters(rows, PARAMETERS)
    assert found.model_error == pytest.approx(0.1, rel=0.4)
    assert found.residual_deviation > 5
    assert (found.posterior.spread > 2 * fitted.posterior.spread).all()


def test_fitted_clusters_carry_values_intervals_and_where_they_are_from(fitted):
    slow, fast = fitted.clusters([SLOW, FAST.with_workers(4)])
    assert slow.effects.between_bandwidth == fitted.value_of["between_bandwidth@slow"]
    assert fast.effects.between_bandwidth == 8e9
    assert fast.workers == 4
    assert fast.effects.inside_bandwidth == slow.effects.inside_bandwidth
    assert set(slow.fits) - set(fast.fits) == {"between_bandwidth"}
    assert slow.effects.compute_factor == 1.0  # that of one model is not the cluster's
    fit = slow.fits["between_bandwidth"]
    assert fit.low <= slow.effects.between_bandwidth <= fit.high
    assert fit.source == "between_bandwidth@slow: fitted to 36 observations (simulated)"
    assert slow.model_error == fitted.model_error


def test_the_model_error_of_rows_is_what_their_spread_leaves():
    assert unexplained(np.full(9, 1.2), 0.05) == pytest.approx(
        (np.log(1.2) ** 2 / 1.6449**2 - 0.05**2) ** 0.5
    )


def test_draws_are_those_of_a_truncated_normal():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    low, high = np.array([0.0, -9.0]), np.full(2, 9.0)
    drawn = draw_within(np.zeros(2), covariance, low, high, np.array([0.1, 0.0]), 20_000, 0)
    half = (2 / np.pi) ** 0.5  # mean of a normal number that is positive
    assert drawn.min(axis=0)[0] >= 0
    assert drawn.mean(axis=0) == pytest.approx([half, 0.9 * half], abs=0.03)
    far = draw_within(np.full(2, -20.0), covariance, -high, high, np.zeros(2), 5000, 0)
    assert far.min() >= -9
    assert np.isfinite(far).all()


def test_tempered_draws_are_those_of_a_normal_posterior_and_keep_both_peaks_of_another():
    prior, random = Prior(("a", "b"), np.zeros(2), np.ones(2)), np.random.default_rng(1)
    draws = tempered_draws(prior, lambda x: -0.5 * ((x[:, 0] - 1.0) / 0.5) ** 2, 4000, random)
    assert draws[:, 0].mean() == pytest.approx(0.8, abs=0.06)  # precisions 1 and 4
    assert draws[:, 0].std() == pytest.approx(np.sqrt(0.2), abs=0.05)
    assert draws[:, 1].std() == pytest.approx(1.0, abs=0.1)
    two_peaks = lambda x: -0.5 * ((np.abs(x[:, 0]) - 1.5) / 0.1) ** 2  # noqa: E731
    draws = tempered_draws(prior, two_peaks, 2000, random)
    assert 0.2 < (draws[:, 0] > 0).mean() < 0.8
