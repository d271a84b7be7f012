"""What counts as drift: by chance only where nothing changed, and at once where something did."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from ddlnb.engines.settings import LEAST_WINDOW
from ddlnb.replanning.replanner import CHANCE, THRESHOLD, Drift, chance

MEETINGS, RUNS = 20, 100


def log_normal(generator, count):
    """Shared machines: a fifth of noise, and one iteration of twenty takes ten times as long."""
    return generator.lognormal(0, 0.2, count) * np.where(generator.random(count) < 0.05, 10, 1)


def pareto(generator, count):
    """Iterations without a mean: some take a thousand times as long as others."""
    return 1 + generator.pareto(1, count)


def two_speeds(generator, count):
    """Half of the iterations take three times as long: medians jump between both."""
    return np.where(generator.random(count) < 0.5, 1.0, 3.0)


def meetings(noise, seed, count=MEETINGS):
    """The windows of one run, the first included."""
    generator = np.random.default_rng(seed)
    return [noise(generator, LEAST_WINDOW) for _ in range(count + 1)]


@pytest.mark.parametrize(
    ("noise", "runs", "share"),
    [
        (log_normal, 5 * RUNS, 1 / 10_000),
        (pareto, RUNS, CHANCE),
        (two_speeds, RUNS, CHANCE),
    ],
)
def test_noise_of_any_distribution_is_taken_for_drift_by_chance_only(noise, runs, share):
    alarms = 0
    for seed in range(runs):
        drift = Drift()
        alarms += sum(drift.found(window) for window in meetings(noise, seed))
    assert alarms <= share * runs * MEETINGS


def test_the_chance_is_not_below_the_exact_one_where_it_decides():
    """All 184,756 ways to deal 20 ranks to two windows are alike if nothing changed."""
    size = LEAST_WINDOW
    sums = np.bincount([sum(dealt) for dealt in combinations(range(2 * size), size)])
    found = 0
    for total in np.flatnonzero(sums):
        slower = total - size * (size - 1) // 2  # pairs whose later one is the longer
        before = [0.5 + k for k in range(size)]
        now = [_beats(slower, k, size) for k in range(size)]
        if chance(before, now) <= CHANCE:
            found += sums[total]
    assert 0 < found <= CHANCE * sums.sum()


def _beats(slower, position, size):
    """Seconds over so many of ``size`` others that all positions together beat ``slower``."""
    return min(size, max(0, slower - position * size))


def test_the_chance_is_that_of_scipy():
    generator = np.random.default_rng(0)
    for _ in range(20):
        before, now = generator.random(12), generator.random(10)
        known = mannwhitneyu(now, before, method="asymptotic", use_continuity=False).pvalue
        assert chance(before, now) == pytest.approx(known)


@pytest.mark.parametrize("factor", [2 * THRESHOLD, 1 / (2 * THRESHOLD)])
def test_drift_either_way_is_found_in_the_first_window_after_it(factor):
    late = 0
    for seed in range(RUNS):
        *quiet, changed = meetings(log_normal, seed, count=4)
        drift = Drift()
        found = [drift.found(window) for window in [*quiet, factor * changed]]
        late += found != [False] * 4 + [True]
    assert late <= 0.15 * RUNS  # where two iterations or more of the first window took long


def test_steady_iterations_drift_beyond_the_threshold_only():
    drift = Drift()
    assert not drift.found([1.0] * LEAST_WINDOW)
    assert not drift.found([0.999 * THRESHOLD] * LEAST_WINDOW)
    assert drift.found([1.001 * THRESHOLD] * LEAST_WINDOW)


def test_one_slow_iteration_in_the_least_window_hides_no_drift():
    drift = Drift()
    assert not drift.found([1.0] * (LEAST_WINDOW - 1) + [100.0])
    assert drift.found([2.0] * LEAST_WINDOW)
    fewer = Drift()
    assert not fewer.found([1.0] * 7 + [100.0])
    assert not fewer.found([2.0] * 8)
