"""Which runs may be slow, and how often: by links, clusters and optimizer states."""

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.fit import OWN_NETWORK
from ddlnb.parallelism.forecast.forecast import (
    WITHOUT_MEMORY,
    chance_of_slow,
    forecast,
    links_across,
)
from ddlnb.parallelism.forecast.frameworks import saved_fit
from ddlnb.parallelism.forecast.published import observed


@pytest.fixture(scope="module")
def cases() -> Cases:
    return observed().cases


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


def test_of_a_cluster_that_nobody_knows_any_run_with_a_pipeline_may_be_slow(cases: Cases) -> None:
    unknown = replace(saved_fit(), parameters=replace(saved_fit().parameters, **OWN_NETWORK))
    none = np.zeros(len(cases), bool)
    found = chance_of_slow(cases, unknown, none)
    able = (cases.pp > 1) & (cases.nodes > 1)
    assert (found > 0).tolist() == able.tolist()
    assert found[able] == pytest.approx(OWN_NETWORK["slow_cluster"], rel=0.4)
    quick, slow = forecast(cases, saved_fit()), forecast(cases, unknown)
    wider = (slow.high / slow.low > quick.high / quick.low)[able & (quick.chance < 0.01)]
    assert wider.all()


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
