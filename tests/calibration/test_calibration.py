"""Calibration: what is known comes back, and what is not known is said to be so."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import ddlnb.calibration.fit
from ddlnb.calibration.fit import calibrate_parameters, unexplained
from ddlnb.calibration.misfit import Misfit
from ddlnb.calibration.observations import AllReduceTime, HopTime, observe, predictions
from ddlnb.calibration.parameters import Parameter, World
from ddlnb.calibration.posterior import draw_within
from ddlnb.calibration.validation import predict_intervals
from ddlnb.errors import InputError, UnknownName
from tests.toy_world import (
    BANDWIDTH,
    FAST,
    FAT,
    INSIDE,
    PACE,
    PARAMETERS,
    RUN,
    SHARE,
    SLOW,
    TRUTH,
    cells,
    seen,
)

TRUE = dict(zip([p.name for p in PARAMETERS], TRUTH.values, strict=True))
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
    assert 0.7 < fitted.scatter < 1.3
    assert fitted.median_error < 0.01
    assert fitted.mean_error < 0.015
    assert fitted.model_error < 0.01
    assert fitted.identifiability.untold == ()


def drawn_worlds(count):
    """Worlds drawn from the priors: in these, and only on average, intervals are what they say."""
    misfit = Misfit([], PARAMETERS)
    for seed in range(count):
        x = misfit.draw(np.random.default_rng(100 + seed))
        yield seed, World(PARAMETERS, tuple(np.exp(x).tolist()))


def test_intervals_hold_the_truth_about_nine_times_in_ten():
    hits = []
    for seed, world in drawn_worlds(10):
        rows = seen(cells(workers=(2, 4, 8), methods=RUN[::2]), world, seed=seed)
        found = calibrate_parameters(rows, PARAMETERS)
        for truth, (name, (low, high)) in zip(world.values, found.intervals.items(), strict=True):
            assert low <= found.value_of[name] <= high
            hits.append(low <= truth <= high)
    assert 0.78 <= np.mean(hits) <= 0.98


def test_sampled_intervals_know_of_parameters_that_trade_off(monkeypatch):
    # What few rows put down to latencies may be computation: the posterior is bent.
    rows = seen(cells(workers=(2, 4), methods=RUN[1:], workloads=(FAT,), clusters=(SLOW,)))
    found = calibrate_parameters(rows, PARAMETERS)
    walked = found.sampled(steps=40, seed=1)
    assert walked.values == found.values
    assert np.array_equal(walked.samples(9, 2), found.sampled(steps=40, seed=1).samples(9, 2))
    for parameter, column in zip(PARAMETERS, walked.samples(500).T, strict=True):
        assert parameter.low <= column.min() <= column.max() <= parameter.high * (1 + 1e-12)
    low, high = walked.intervals["operation_latency"]
    assert low < 1e-4 < high  # from none of it to the truth or more
    assert walked.identifiability.ratio.keys() == found.identifiability.ratio.keys()
    monkeypatch.setattr(ddlnb.calibration.fit, "MOST_DRIFT", 0.01)
    with pytest.raises(InputError, match="take more steps"):
        found.sampled(steps=8)


@pytest.mark.parametrize("prior_spread", [None, 0.5])
def test_what_the_data_does_not_move_is_named_and_stays_at_its_prior(prior_spread):
    elsewhere = replace(ELSEWHERE, prior_spread=prior_spread)
    found = calibrate_parameters(seen(cells(workers=(2, 4))), [*PARAMETERS, elsewhere])
    told = found.identifiability
    assert told.untold == (elsewhere.name,)
    assert told.ratio[elsewhere.name] == pytest.approx(1.0)
    assert max(ratio for name, ratio in told.ratio.items() if name != elsewhere.name) < 0.5
    assert found.value_of[elsewhere.name] == pytest.approx(2e9)
    low, high = found.intervals[elsewhere.name]
    assert low < 1e9
    assert high > 4e9
    assert "not told by the data" in str(told)


def test_the_search_leaves_alone_what_no_row_tells():
    found = calibrate_parameters(seen(cells(workers=(2,))), PARAMETERS)  # all within one node
    assert found.value_of["between_bandwidth@slow"] == pytest.approx(BANDWIDTH.prior)
    assert found.value_of["between_share"] == pytest.approx(SHARE.prior)


def test_both_posteriors_are_exact_where_the_problem_is_linear():
    row = observe(HopTime(SLOW.with_effects(between_latency=0.0), 1e6), 1e-3, 0.3, "measured")
    bandwidth = Parameter("between_bandwidth", low=1e6, high=1e12, prior=1.2e9, prior_spread=0.4)
    found = calibrate_parameters([row], [bandwidth])
    weights = 1 / 0.3**2, 1 / 0.4**2
    mean = (weights[0] * np.log(1e9) + weights[1] * np.log(1.2e9)) / sum(weights)
    assert np.log(found.values[0]) == pytest.approx(mean, abs=1e-3)
    for posterior in (found.posterior, found.sampled(steps=400).posterior):
        assert posterior.spread[0] == pytest.approx(sum(weights) ** -0.5, rel=0.08)
        drawn = np.log(posterior.samples(4000)[:, 0])
        assert drawn.mean() == pytest.approx(mean, abs=0.02)
        assert drawn.std() == pytest.approx(sum(weights) ** -0.5, rel=0.08)


def test_parameters_of_which_only_the_sum_is_told_are_named_as_a_pair():
    hops = [observe(HopTime(SLOW, 1e3 * size), 1e-4, 0.01, "measured") for size in (1.0, 1.01)]
    latency = Parameter("between_latency", low=1e-6, high=1e-3, prior_spread=2.0)
    bandwidth = Parameter("between_bandwidth", low=1e6, high=1e9, prior=2e7, prior_spread=2.0)
    ((first, second, correlation),) = calibrate_parameters(
        hops, [latency, bandwidth]
    ).identifiability.alike
    assert (first, second) == ("between_latency", "between_bandwidth")
    assert correlation > 0.95


def test_bounds_hold_and_are_named_where_the_data_pushes_against_them():
    narrow = replace(BANDWIDTH, low=9e8, high=9e9, prior=3e9)  # the truth is 7e8
    found = calibrate_parameters(seen(cells(workers=(2, 4))), [narrow, INSIDE, SHARE, PACE])
    assert found.value_of[narrow.name] == pytest.approx(9e8, rel=0.01)
    assert found.identifiability.at_bound == (narrow.name,)
    drawn = found.samples(500)
    for column, parameter in zip(drawn.T, found.parameters, strict=True):
        assert parameter.low <= column.min()
        assert column.max() <= parameter.high * (1 + 1e-12)
    assert found.intervals[narrow.name][1] < 1.2e9
    for parameter, (low, high) in zip(
        found.parameters, found.bootstrap(count=20).values(), strict=True
    ):
        assert parameter.low * 0.999 <= low <= high <= parameter.high * 1.001


def test_a_limit_that_is_never_reached_is_told_from_below_only():
    # Servers faster than the nodes do not show, so all that is known is that they are no slower.
    server = Parameter("server_bandwidth", ("slow",), low=1e8, high=1e11)
    truth = World((server,), (5e9,))
    found = calibrate_parameters(seen(cells((4, 8), ("WFBP-PS",)), truth), [server])
    low, high = found.intervals[server.name]
    assert 8e8 < low < 1.5e9
    assert high > 1e10


def test_the_same_call_gives_the_same_fit(fitted):
    again = calibrate_parameters(seen(cells()), PARAMETERS)
    assert again.values == fitted.values
    assert np.array_equal(again.samples(50, seed=3), fitted.samples(50, seed=3))
    assert not np.array_equal(again.samples(50, seed=3), fitted.samples(50, seed=4))
    assert again.intervals == fitted.intervals
    assert again.bootstrap(count=10) == fitted.bootstrap(count=10)


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


def test_no_more_than_thirty_parameters_and_each_but_once():
    many = [replace(ELSEWHERE, of=(f"network {i}",)) for i in range(31)]
    with pytest.raises(InputError, match="31 parameters are more than 30"):
        calibrate_parameters(seen(cells(workers=(2,))), many)
    with pytest.raises(InputError, match="different names"):
        calibrate_parameters(seen(cells(workers=(2,))), [INSIDE, INSIDE])
    with pytest.raises(InputError, match="parameters is empty"):
        calibrate_parameters(seen(cells(workers=(2,))), [])
    with pytest.raises(InputError, match="observations is empty"):
        calibrate_parameters([], PARAMETERS)


def test_no_published_cell_above_eight_gpus_is_fitted():
    rows = seen(cells(workers=(4, 16), methods=("BSP-A2A",)), source="published")
    with pytest.raises(InputError, match="BSP-A2A on slow with 16 GPUs must not be fitted"):
        calibrate_parameters(rows, PARAMETERS)


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
    assert found.scatter > 5
    assert (found.posterior.spread > 2 * fitted.posterior.spread).all()


def test_predicted_intervals_hold_new_cells(fitted):
    new = cells(workers=(16,))
    expected = np.array([row.value for row in seen(new, noise=1e-9)])
    found = predict_intervals(new, fitted, count=100)
    assert found.median == pytest.approx(expected, rel=0.05)
    assert np.mean((found.low <= expected) & (expected <= found.high)) > 0.7
    wider = predict_intervals(new, replace(fitted, model_error=0.2), count=100)
    ratio = np.log(wider.high / wider.low) / (2 * 1.645)
    assert ratio == pytest.approx(np.full(len(new), 0.2), rel=0.1)
    hop = predict_intervals([HopTime(SLOW, 1e6)], fitted, count=20)
    assert hop.low[0] < hop.median[0] < hop.high[0]


def test_bootstrap_and_laplace_agree_where_the_model_is_right(fitted):
    laplace, boot = fitted.intervals, fitted.bootstrap(count=200)
    for name, (low, high) in boot.items():
        width = np.log(high / low) / np.log(laplace[name][1] / laplace[name][0])
        assert 0.3 < width < 3
    with pytest.raises(UnknownName, match="unknown label 'models'"):
        fitted.bootstrap(by="models")


def test_bootstrap_with_full_fits_is_close_to_that_with_steps():
    rows = seen(cells(workers=(2, 4), workloads=(FAT,)))
    found = calibrate_parameters(rows, [INSIDE, BANDWIDTH])
    steps, full = found.bootstrap(count=8), found.bootstrap(count=8, refit=True)
    for name in steps:
        assert np.log(steps[name]) == pytest.approx(np.log(full[name]), abs=0.02)


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


def test_the_model_error_of_rows_is_what_their_spread_leaves(fitted):
    rows = [replace(row, predicted=row.observed * 1.2, spread=0.05) for row in fitted.rows]
    assert unexplained(rows) == pytest.approx((np.log(1.2) ** 2 / 1.6449**2 - 0.05**2) ** 0.5)
    assert fitted.with_cross_validation(rows).model_error == unexplained(rows)


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


def test_predictions_of_the_fit_are_kept(fitted):
    again = predictions(fitted.observations, [fitted.world])[0]
    assert fitted.predicted == pytest.approx(again)
    row = fitted.rows[0]
    assert (row.model, row.network, row.method, row.gpus) == ("thin", "slow", "BSP-A2A", 2)
    assert row.relative_error == pytest.approx(row.predicted / row.observed - 1)


def test_import_is_light():
    code = (
        "import sys, ddlnb.calibration.validation, ddlnb.calibration.baselines, ddlnb.clusters.file; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'matplotlib')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
