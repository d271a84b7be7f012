"""Laws of exchanges beside computation: never slower, and never hidden by more than there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.fit import FOUNDRY, H100, observed
from ddlnb.parallelism.forecast.frameworks import saved_fit
from ddlnb.parallelism.forecast.step import Step, exposed, step


def with_overlap(cases: Cases, overlap: float) -> Step:
    return step(replace(cases, overlap=np.full(len(cases), overlap)), saved_fit())


@pytest.mark.parametrize("path", [H100, FOUNDRY])  # without ZeRO, with ZeRO-1, with ZeRO-3
def test_overlap_is_never_slower_and_helps_where_replicas_exchange(path) -> None:
    cases = observed(path).cases
    beside, after = with_overlap(cases, 1).seconds, with_overlap(cases, 0).seconds
    assert (beside <= after * (1 + 1e-12)).all()
    alone = cases.replicas == 1
    assert np.array_equal(beside[alone], after[alone])
    # One layer of a stage has nothing beside it.
    several = cases.stages.layers.max(axis=1) > 1
    assert (beside < after)[~alone & several].all()


def test_what_is_longer_than_the_computation_beside_it_is_exposed() -> None:
    cases = replace(observed().cases, overlap=np.ones(530))
    rng = np.random.default_rng(7)
    exchange, computation = rng.lognormal(size=(2, 530))
    left = exposed(cases, exchange, computation)
    assert (left >= np.maximum(exchange - computation, 0) - 1e-12).all()
    assert (left <= exchange).all()
    none = exposed(cases, exchange, np.zeros(530))
    assert none == pytest.approx(exchange)


def test_more_computation_hides_more() -> None:
    cases = replace(observed().cases, overlap=np.ones(530))
    by_computation = [
        exposed(cases, np.ones(530), np.full(530, beside)) for beside in (0.1, 0.5, 2.0, 9.0)
    ]
    assert (np.diff(by_computation, axis=0) <= 1e-12).all()
