"""Draws of fits: every framework's parameters vary, what can be counted hardly does."""

from __future__ import annotations

import numpy as np
import pytest

from ddlnb.parallelism.forecast.fit import AWAY, LIMITS, drawn_parameters
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, parameter_names, saved_fit

DRAWS = 200


@pytest.fixture(scope="module")
def drawn():
    return drawn_parameters(saved_fit(), DRAWS, np.random.default_rng(0))


def values(drawn, framework: str, name: str) -> np.ndarray:
    """Return a framework's parameter in every draw."""
    return np.array([getattr(one.of(framework), name) for one in drawn])


def usual(framework: str, name: str) -> float:
    return float(getattr(saved_fit().of(framework), name))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", parameter_names("time"))
def test_parameters_of_every_framework_are_off_by_the_same_factors(drawn, framework, name):
    own, shared = values(drawn, framework, name), values(drawn, "nanotron", name)
    low, high = LIMITS[name]
    within = (np.minimum(own, shared) > low) & (np.maximum(own, shared) < high)
    assert within.sum() > DRAWS / 10
    assert own[within] / usual(framework, name) == pytest.approx(
        shared[within] / usual("nanotron", name)
    )
    assert own[within].std() > 0


@pytest.mark.parametrize("framework", ["nanotron", "megatron", "nemo"])
def test_what_is_counted_varies_no_more_than_the_fit_lets_it(drawn, framework):
    off = np.log(values(drawn, framework, "elementwise"))
    assert 0.02 < off.std() < 1.1 * AWAY


def test_what_is_of_memory_stays(drawn):
    assert {one.of("nemo").kept for one in drawn} == {saved_fit().of("nemo").kept}
