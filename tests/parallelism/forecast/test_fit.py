"""The kept fit, what its forecasts are off by, and draws of what it leaves open."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.scale_validation import with_unseen
from ddlnb.parallelism.forecast.fit import (
    AWAY,
    COUNTED,
    FOUNDRY,
    H100,
    LIMITS,
    PAPERS,
    drawn_parameters,
    fit,
    is_slow,
    observed,
    rows_of,
    with_frameworks,
)
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, parameter_names, saved_fit
from ddlnb.parallelism.forecast.table import cases


@pytest.mark.slow
def test_the_kept_fit_is_what_the_fit_gives() -> None:
    found = with_unseen(with_frameworks(fit(observed())))
    assert asdict(found.parameters) == pytest.approx(asdict(saved_fit().parameters), rel=0.02)
    for name, values in saved_fit().frameworks.items():
        assert found.frameworks[name] == pytest.approx(values, rel=0.02)
    assert found.spread == pytest.approx(saved_fit().spread, rel=0.05)


def test_what_one_model_does_not_tell_apart_stays_near_to_what_is_counted() -> None:
    runs = observed()
    few = (runs.models == "llama-3B") & (runs.cases.tp <= 2) & (runs.cases.gpus <= 16)
    one = fit(runs.select(few)).parameters
    for name in ("kept", "kept_inner", "elementwise"):  # left free, the last is ten times less
        assert abs(np.log(getattr(one, name) / COUNTED[name])) < 2 * AWAY


@pytest.mark.parametrize(
    ("most", "ends"), [(16, [(26.3, 25), (26.3, 23)]), (32, [(25.5, 26)])]
)  # of the runs on 64 GPUs
def test_slow_runs_are_expected_about_as_often_as_seen(
    most: int, ends: list[tuple[float, int]]
) -> None:
    """From 16 GPUs it hangs on how a processor rounds which runs the fit takes for slow."""
    runs = observed()
    fitted = fit(runs.select(runs.cases.gpus <= most))
    more = runs.select(runs.cases.gpus == 64)
    found = forecast(more.cases, fitted)
    chance, slow = found.chance.sum(), is_slow(more, found.step).sum()
    assert any(
        chance == pytest.approx(expected, abs=0.5) and slow == pytest.approx(seen, abs=1)
        for expected, seen in ends
    )


@pytest.mark.parametrize(("path", "median"), [(H100, 0.03), (FOUNDRY, 0.03), (PAPERS, 0.03)])
def test_forecasts_are_near_to_the_runs_that_they_are_fitted_to(path, median: float) -> None:
    runs = observed(path)
    found = forecast(runs.cases)
    assert np.median(np.abs(found.tokens_per_s_per_gpu / runs.rates - 1)) < median
    inside = (found.low <= runs.rates) & (runs.rates <= found.high)
    assert inside.mean() > 0.85  # of Megatron-LM all: left-out papers were further off
    assert found.fits.mean() > 0.97  # as they ran


def test_memory_is_that_of_the_first_stage_in_nanotron_and_of_the_fullest_in_others() -> None:
    """Papers print the most of any rank; the first stage has less where stages hold few layers."""
    for path, off in ((H100, np.mean), (PAPERS, np.max)):
        runs = observed(path)
        runs = runs.select(np.isfinite(runs.memory))
        assert off(np.abs(forecast(runs.cases).memory_gib / runs.memory - 1)) < 0.1


def test_what_asks_for_far_more_memory_than_there_is_does_not_fit() -> None:
    crashed = cases(rows_of(H100, measured=False))
    found = forecast(crashed)
    far = found.most_gib > 1.2 * crashed.memory / 2**30
    assert far.mean() > 0.5
    assert not found.fits[far].any()


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
