"""Laws of the search: its plans are plans, no worse than any method, and none beats the bound."""

import gc
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings

from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError
from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm
from ddlnb.networks.collectives.catalogue import (
    COLLECTIVES,
    get_collective,
    register_collective,
)
from ddlnb.plans.plan import Plan
from ddlnb.search.bound import lower_bound
from ddlnb.search.search import search_plan
from ddlnb.search.space import Space
from ddlnb.simulator.events import play
from ddlnb.simulator.forecast import methods_on
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from tests.simulator.test_simulate import clusters, free_situations, situations, workloads

FEW = 40  # plans that a search plays here


def sent(plan: Plan) -> dict[str, set[int]]:
    """The elements of every gradient that are in the messages."""
    found: dict[str, set[int]] = {}
    for message in plan.messages:
        for piece in message.pieces:
            elements = set(range(piece.start, piece.stop))
            assert not found.setdefault(piece.gradient, set()) & elements
            found[piece.gradient] |= elements
    return found


def test_a_search_without_time_or_methods_still_finds_a_plan():
    found = search_plan(
        "resnet50", "survey-10GbE", space=Space(methods=False), time_limit=1e-9, workers=4
    )
    assert (found.evaluated, found.is_complete, found.fixed) == (1, False, {})


@settings(max_examples=25)
@given(workloads(), clusters())
def test_a_searched_plan_loses_and_repeats_nothing_and_is_no_worse_than_any_method(
    workload, cluster
):
    found = search_plan(workload, cluster, most_plans=FEW)
    assert sent(found.plan) == {g.name: set(range(g.elements)) for g in workload.gradients}
    assert set(found.fixed) == {method.name for method in methods_on(cluster)}
    for name, seconds in found.fixed.items():
        program = lower(workload, cluster, plan_on(cluster, workload, name))
        assert play(program).iteration_seconds == pytest.approx(seconds, rel=1e-9)
        assert found.iteration_seconds <= seconds
    played = play(lower(workload, cluster, found.plan))
    assert played.iteration_seconds == pytest.approx(found.iteration_seconds, rel=1e-9)
    assert found.lower_bound_seconds <= found.iteration_seconds * (1 + 1e-9)


@settings(max_examples=150)
@given(situations() | free_situations())
def test_no_plan_is_quicker_than_the_bound(situation):
    workload, cluster, plan = situation
    played = play(lower(workload, cluster, plan))
    if not played.is_steady:
        return
    names = Space().collectives_on(cluster) if cluster.workers > 1 else ()
    names = tuple({*names, *(name for name in plan.collectives if name)})
    bound = lower_bound(workload, cluster, names, servers=plan.servers > 0)
    if plan.servers <= cluster.default_servers:
        assert bound.seconds <= played.iteration_seconds * (1 + 1e-9), bound


def test_a_collective_of_ones_own_is_among_those_that_a_search_chooses_from():
    @dataclass(frozen=True)
    class Mine(Algorithm):
        name = "mine"

        def collective(self, workers, per_node=1, primitive=ALL_REDUCE):
            rows = get_collective("ring", workers).transfers[wrong:]
            return self.made(primitive, workers, workers, rows)

    cluster, wrong = get_cluster("survey-10GbE", 8), 0
    register_collective(Mine)
    try:
        assert "mine" in Space().collectives_on(cluster)
        wrong = 1
        with pytest.raises(InputError, match="'mine' among 8 workers is no all-reduce"):
            Space().collectives_on(cluster)
    finally:
        del COLLECTIVES["mine"]


@pytest.mark.parametrize("all_reduce", ["auto", "swing", "halving-doubling"])
def test_a_search_takes_every_all_reduce_that_a_cluster_may_have(all_reduce):
    cluster = replace(get_cluster("survey-10GbE", 8), all_reduce=all_reduce)
    found = search_plan("resnet50", cluster, most_plans=5, progress=False)
    assert 0 < found.lower_bound_seconds <= found.iteration_seconds * (1 + 1e-9)


def test_where_a_link_has_a_factor_a_search_takes_the_clusters_own_all_reduce():
    """Other collectives are played on a graph, whose links have no factors."""
    cluster = get_cluster("survey-10GbE", 8).with_heterogeneity(link={1: 4.0})
    assert Space().collectives_on(cluster) == ()
    found = search_plan("resnet50", cluster, time_limit=1, progress=False)
    assert not any(found.plan.collectives)
    with pytest.raises(InputError, match="link factors"):
        search_plan("resnet50", cluster, space=Space(collectives="direct"), progress=False)


def test_a_search_leaves_the_garbage_collector_of_its_caller_alone(monkeypatch):
    touched = ("freeze", "unfreeze", "disable", "set_threshold", "collect")
    for name in touched:
        monkeypatch.setattr(gc, name, lambda *_, name=name: pytest.fail(f"gc.{name} was called"))
    search_plan("resnet50", "survey-10GbE", workers=4, most_plans=8)
