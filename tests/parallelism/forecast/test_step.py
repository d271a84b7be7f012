"""Laws of the step: what must hold for every case, whatever the parameters are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import FULL, Cases
from ddlnb.parallelism.forecast.fit.observations import observed
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.parameters import kept, names
from ddlnb.parallelism.forecast.step import step


@pytest.fixture(scope="module")
def cases() -> Cases:
    return observed().cases


def seconds(cases: Cases) -> np.ndarray:
    return step(cases, kept()).seconds


@pytest.mark.parametrize("better", ["inside", "across", "peak", "memory_bandwidth"])
def test_more_of_what_a_machine_has_never_hurts(cases: Cases, better: str) -> None:
    more = replace(cases, **{better: 2 * getattr(cases, better)})
    if better == "peak":
        more = replace(more, core_peak=2 * cases.core_peak)
    assert (seconds(more) <= seconds(cases) * (1 + 1e-12)).all()
    assert (seconds(more) < seconds(cases)).any()


def test_one_stage_has_no_bubble_and_no_transfers(cases: Cases) -> None:
    found, alone = step(cases, kept()), cases.pp == 1
    for seconds_of in (found.bubble, found.transfers, found.slow):
        assert (seconds_of[alone] == 0).all()
    assert (found.bubble[~alone] > 0).all()


def test_the_bubble_of_equal_stages_is_that_of_1f1b(cases: Cases) -> None:
    equal = replace(cases.select(np.array([0])), layers=np.array([64.0]), pp=np.array([4.0]),
                    vocab=np.array([1e-6]), framework=np.array([1.0]))  # fmt: skip
    found, rounds = step(equal, kept()), equal.micro_batches
    assert found.bubble / (found.compute + found.tensor) == pytest.approx(3 / rounds, rel=0.02)


def test_recomputation_takes_longer_and_keeps_less(cases: Cases) -> None:
    again = replace(cases, recomputation=np.full(len(cases), float(FULL)))
    assert (seconds(again) >= seconds(cases)).all()
    assert (forecast(again).most_gib <= forecast(cases).most_gib * (1 + 1e-12)).all()


def test_sharding_needs_less_memory(cases: Cases) -> None:
    many = cases.select(cases.dp > 1)
    by_degree = [
        forecast(replace(many, zero=np.full(len(many), float(zero)))).most_gib for zero in range(4)
    ]
    for more, less in pairwise(by_degree):
        assert (less < more).all()


def test_there_are_twenty_five_parameters() -> None:
    assert len(names()) == 25
