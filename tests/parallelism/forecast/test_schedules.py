"""Pipeline schedules in the forecast: the bubbles are those of the schedules as they are played."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.fit import observed
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.frameworks import saved_fit
from ddlnb.parallelism.forecast.step import bubble_seconds, step
from ddlnb.parallelism.schedules import play, schedule


def scheduled(cases: Cases, name: str) -> Cases:
    return replace(cases, schedule=np.full(len(cases), name))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 3, 4, 8, 32])
def test_the_bubble_is_that_of_the_schedule_when_it_is_played(
    name: str, stages: int, rounds: int
) -> None:
    forward, inputs, weights = 1.0, 1.5, 0.8
    one = observed().cases.select(np.array([0]))
    one = replace(scheduled(one, name), pp=np.array([stages * 1.0]),
                  micro_batches=np.array([rounds * 1.0]))  # fmt: skip
    stage = np.full((1, stages), forward + inputs + weights)
    found = bubble_seconds(one, stage, np.full((1, stages), weights) / stage)
    parts = {"F": forward, "B": inputs, "W": weights}
    if name != "zero-bubble":
        parts = {"F": forward, "B": inputs + weights}
    played = play(schedule(name, stages, rounds), parts).seconds
    assert found[0] == pytest.approx(played - rounds * stage[0, 0])


def test_zero_bubble_is_never_slower_than_1f1b_and_faster_with_stages() -> None:
    cases = observed().cases
    zero = step(scheduled(cases, "zero-bubble"), saved_fit()).seconds
    usual = step(scheduled(cases, "1f1b"), saved_fit()).seconds
    staged = cases.pp > 1
    assert (zero[staged] < usual[staged]).all()
    assert np.array_equal(zero[~staged], usual[~staged])
    assert (step(scheduled(cases, "zero-bubble"), saved_fit()).bubble >= 0).all()


def test_gpipe_keeps_every_micro_batch() -> None:
    cases = observed().cases
    more = forecast(scheduled(cases, "gpipe")).most_gib
    usual = forecast(scheduled(cases, "1f1b")).most_gib
    staged = cases.pp > 1
    assert (more[staged] >= usual[staged]).all()
    longer = staged & (cases.micro_batches > cases.pp)
    assert (more[longer] > usual[longer]).all()
    assert np.array_equal(more[~staged], usual[~staged])
