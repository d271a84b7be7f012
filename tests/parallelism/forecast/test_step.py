"""Laws of the step: what must hold for every case, whatever the parameters are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import FULL, SELECTIVE, Cases
from ddlnb.parallelism.forecast.fit import observed
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.frameworks import parameter_names, saved_fit
from ddlnb.parallelism.forecast.step import score_seconds, step


@pytest.fixture(scope="module")
def cases() -> Cases:
    return observed().cases


def seconds(cases: Cases) -> np.ndarray:
    return step(cases, saved_fit()).seconds


@pytest.mark.parametrize("better", ["inside", "across", "peak", "memory_bandwidth"])
def test_more_of_what_a_machine_has_never_hurts(cases: Cases, better: str) -> None:
    more = replace(cases, **{better: 2 * getattr(cases, better)})
    if better == "peak":
        more = replace(more, core_peak=2 * cases.core_peak)
    assert (seconds(more) <= seconds(cases) * (1 + 1e-12)).all()
    assert (seconds(more) < seconds(cases)).any()


def test_one_stage_has_no_bubble_and_no_transfers(cases: Cases) -> None:
    found, alone = step(cases, saved_fit()), cases.pp == 1
    for seconds_of in (found.bubble, found.transfers, found.slow):
        assert (seconds_of[alone] == 0).all()
    assert (found.bubble[~alone] > 0).all()


def test_the_bubble_of_equal_stages_is_that_of_1f1b(cases: Cases) -> None:
    equal = replace(cases.select(np.array([0])), layers=np.array([64.0]), pp=np.array([4.0]),
                    vocab=np.array([1e-6]), framework=np.array(["fsdp"]))  # fmt: skip
    found, rounds = step(equal, saved_fit()), equal.micro_batches
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


def test_attention_that_keeps_scores_moves_them(cases: Cases) -> None:
    """Twice the sequence has twice the scores per token; recomputation moves them once more."""
    one = replace(cases, recomputation=np.zeros(len(cases)))
    longer = score_seconds(replace(one, sequence=2 * one.sequence))
    assert longer == pytest.approx(4 * score_seconds(one))
    for again in (SELECTIVE, FULL):
        computed_again = replace(one, recomputation=np.full(len(one), float(again)))
        assert score_seconds(computed_again) == pytest.approx(45 / 32 * score_seconds(one))
    keeps = replace(one, framework=np.full(len(one), "megatron"))
    free = replace(keeps, memory_bandwidth=1e6 * keeps.memory_bandwidth)
    moved = step(keeps, saved_fit()).compute - step(free, saved_fit()).compute
    assert (moved > 0.9 * one.micro_batches * score_seconds(one)).all()


def test_there_are_twenty_four_parameters() -> None:
    assert len(parameter_names()) == 24
