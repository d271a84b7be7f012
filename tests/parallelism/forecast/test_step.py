"""Laws of the step: what must hold for every case, whatever the parameters are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import FULL, SELECTIVE, Cases
from ddlnb.parallelism.forecast.fit import FOUNDRY, H100, observed
from ddlnb.parallelism.forecast.forecast import (
    WITHOUT_MEMORY,
    chance_of_slow,
    forecast,
    links_across,
)
from ddlnb.parallelism.forecast.frameworks import saved_fit
from ddlnb.parallelism.forecast.step import Step, bubble_seconds, exposed, score_seconds, step
from ddlnb.parallelism.schedules import play, schedule


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


def chance(cases: Cases, lacking: bool = False) -> np.ndarray:
    return chance_of_slow(cases, saved_fit(), np.full(len(cases), lacking))


def counted(tp: int, dp: int, pp: int, per_node: int) -> int:
    """Count the links to another node: tensors, then replicas, then stages on neighbours."""
    ranks = tp * dp
    return sum(
        rank // per_node != (rank + ranks) // per_node
        for stage in range(pp - 1)
        for rank in range(stage * ranks, (stage + 1) * ranks)
    )


def test_links_are_those_that_are_counted_rank_by_rank(cases: Cases) -> None:
    found = links_across(cases)
    shapes = np.stack([cases.tp, cases.dp, cases.pp, cases.gpus_per_node], axis=1).astype(int)
    assert found.tolist() == [counted(*shape) for shape in shapes.tolist()]
    assert len(set(found)) > 10


def test_only_runs_of_several_stages_replicas_and_nodes_can_be_slow(cases: Cases) -> None:
    able = (cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 1)
    assert (chance(cases) > 0).tolist() == able.tolist()
    assert (chance(cases, lacking=True)[able] == WITHOUT_MEMORY).all()
    assert not chance(replace(cases, framework=np.full(len(cases), "fsdp")), lacking=True).any()


def test_runs_whose_links_are_independent_stay_quick_together(cases: Cases) -> None:
    """Twice the links: the chance that none is slow is squared; never more than certain."""
    some = cases.select((cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 2))
    twice = replace(some, dp=2 * some.dp)
    doubled = links_across(twice) == 2 * links_across(some)
    assert doubled.sum() > 50
    assert 1 - chance(twice)[doubled] == pytest.approx((1 - chance(some)[doubled]) ** 2)
    many, more = (replace(some, dp=factor * some.dp) for factor in (500, 1000))
    assert ((chance(some) < chance(many)) & (chance(many) <= 1)).all()
    assert (chance(many) == chance(more)).all()  # further than runs tell of


def test_whole_optimizer_states_make_slow_runs_likelier(cases: Cases) -> None:
    able = cases.select((chance(cases) > 0) & (cases.micro_batches > 8))
    whole, sharded = (replace(able, zero=np.full(len(able), float(zero))) for zero in (0, 1))
    assert (chance(whole) > chance(sharded)).all()
