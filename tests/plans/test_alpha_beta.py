"""Cost formulas, and the fit of latency and bandwidth."""

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta, ring_all_reduce
from ddlnb.units import MIB


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-8))
def test_the_fit_finds_the_line_it_was_given(latency, slope):
    truth = AlphaBeta(latency, slope)
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = fit_alpha_beta(sizes, [truth.seconds(size) for size in sizes])
    np.testing.assert_allclose(found.latency_seconds, latency, rtol=1e-6)
    np.testing.assert_allclose(found.seconds_per_byte, slope, rtol=1e-6)


@pytest.mark.parametrize(("sizes", "seconds"), [([1, 1], [1, 1]), ([1, 2], [1, 0]), ([1, 2], [1])])
def test_a_fit_without_enough_points_is_refused(sizes, seconds):
    with pytest.raises(InputError):
        fit_alpha_beta(sizes, seconds)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_cost_must_be_finite_and_not_negative(value):
    with pytest.raises(InputError, match="latency_seconds"):
        AlphaBeta(value, 0.0)


def test_ring_takes_the_seconds_derived_from_the_survey_s_message_times():
    """10GbE constants from A14/A15, 32 workers, 1 MiB: 7.72 ms."""
    link = AlphaBeta(95.6e-6, 0.8816e-9)
    assert ring_all_reduce(link, 32).seconds(MIB) == pytest.approx(7.72e-3, rel=2e-3)


@given(st.lists(st.tuples(st.floats(1.0, 1e9), st.floats(1e-7, 10.0)), min_size=2, max_size=8))
def test_no_measured_times_make_a_latency_or_a_bandwidth_negative(pairs):
    sizes, seconds = zip(*pairs, strict=True)
    assume(len(set(sizes)) > 1)
    found = fit_alpha_beta(sizes, seconds)
    assert found.latency_seconds >= 0
    assert found.seconds_per_byte >= 0
