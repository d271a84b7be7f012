"""Choices alone and together, searched places, two jobs on a tree, flows by deadline."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from ddlnb.networks.flows import busiest_seconds
from ddlnb.networks.topologies import Star, TwoTier
from ddlnb.survey.layers_codesign import (
    CHOICES,
    Layers,
    arrivals,
    deadline_findings,
    deadline_table,
    factorial_findings,
    gain_table,
    iterations,
    pair_table,
    placement_findings,
    placement_table,
    searched_placement,
    slowdown,
    slowdown_table,
    tree_findings,
)


def times(of):
    """Return rows in which an iteration with some choices takes as long as a function says."""
    choices = [dict(zip(CHOICES, taken, strict=True)) for taken in product((False, True), repeat=4)]
    return pd.DataFrame([{"topology": "toy", **taken, "seconds": of(taken)} for taken in choices])


def test_choices_that_do_not_meet_multiply_and_one_that_needs_another_is_told():
    rows = times(lambda choice: 8.0 / (1 + choice["placement"]) / (1 + 3 * choice["overlap"]))
    gains = gain_table(rows).loc["toy"]
    assert gains["alone"].tolist() == [2, 1, 4, 1, 8]
    assert gains["last"].tolist()[:-1] == [2, 1, 4, 1]
    assert gains.loc["all", "product"] == 8
    assert set(pair_table(rows)["interaction"]) == {1}
    rows = times(lambda choice: 1.0 if choice["collective"] and choice["placement"] else 3.0)
    pairs = pair_table(rows).set_index(["one", "other"])["interaction"]
    assert pairs["placement", "collective"] == 3
    said = factorial_findings(rows)
    assert "all choices together are 3.00 times as fast as none" in said
    assert "the product of each alone says 1.00" in said
    assert "collective (1.00 alone, 3.00 as the last)" in said
    assert "needs each other most is placement and collective (3.00 times" in said


def test_overlap_never_slows_an_iteration_and_a_collective_needs_ranks_that_share_nodes():
    networks = ["two-tier(2, 1, 4.0, 2)", "rail-optimised(2, 4, 2)"]
    played = iterations(networks, "dp4 tp2", per_node=4)
    keys = ["topology", "placement", "collective", "routing"]
    by_overlap = played.set_index([*keys, "overlap"])["seconds"].unstack()
    assert (by_overlap[True] < by_overlap[False]).all()
    across = played[~played["placement"] & ~played["overlap"] & ~played["routing"]]
    assert across.groupby("topology")["seconds"].nunique().eq(1).all()  # replicas fill a node
    rails = played[(played["topology"] == "rail-optimised(2, 4, 2)") & played["placement"]]
    by_collective = rails.set_index([*keys[3:], "overlap", "collective"])["seconds"].unstack()
    assert (by_collective[True] < by_collective[False]).all()


def test_searched_places_bring_pairs_that_talk_together_and_are_told_beside_trivial_ones():
    network = TwoTier(2, 2, 4.0).network(1e9)
    matrix = np.kron([[0, 1], [1, 0]], np.eye(2)) * 1e9  # ranks 0 and 2 talk, and 1 and 3
    found = searched_placement(network, matrix, seed=1)
    assert found[0] // 2 == found[2] // 2 != found[1] // 2 == found[3] // 2
    assert busiest_seconds(network, matrix) == pytest.approx(4.0)
    assert busiest_seconds(network, matrix, found) == pytest.approx(1.0)
    table = placement_table(["two-tier(2, 2, 4.0)"], "dp4 tp2 acc4", per_node=2)
    own = table.loc["two-tier(2, 2, 4.0)"]
    assert own.loc["searched", "busiest"] <= own.loc["random", "busiest"]
    assert own.loc["searched", "busiest"] == pytest.approx(own.loc["along", "busiest"])
    busiest = 1e3 * own.loc["random", "busiest"]
    assert f"{busiest:,.0f} ms with ranks at" in placement_findings(table)


@pytest.mark.parametrize("duty", [0.2, 0.5, 0.8])
def test_two_jobs_are_slowed_as_by_formula(duty):
    """Aligned bursts take twice as long; shifted ones meet only where the link is always busy."""
    assert slowdown("mixed", duty, 0.0) == pytest.approx(1 + duty)
    assert slowdown("mixed", duty, 0.5) == pytest.approx(max(1.0, 2 * duty))
    assert slowdown("apart", duty, 0.0) == pytest.approx(1.0)


def test_what_shifting_brings_is_said():
    said = tree_findings(slowdown_table([0.3, 0.6]))
    assert "up to 1.30 times as slow" in said
    assert "Shifted bursts meet no other ones at duty cycles of 30%." in said


def test_orders_are_those_by_hand_at_least_the_bound_and_told():
    """Layer 2 is ready at 1 s, layer 0 last; the forward pass needs layer 0 first."""
    network = Star(2).network(1.0)
    layers = Layers(np.array([1.0, 1.0, 5.0]), np.array([1.0, 1.0, 1.0]), np.array([1.0, 4.0, 4.0]))
    assert layers.ready.tolist() == [3.0, 2.0, 1.0]
    alone, urgent, fair = (
        arrivals(layers, network, order) for order in ("first come", "deadline", "fair shares")
    )
    assert alone.tolist() == [10.0, 9.0, 5.0]
    assert urgent.tolist() == [6.0, 10.0, 5.0]
    assert [layers.iteration_seconds(order) for order in (alone, urgent)] == [17.0, 16.0]
    assert fair.max() == pytest.approx(10.0)  # no byte more, no byte less
    assert fair[0] == pytest.approx(6.0 - 1 / 6, abs=1)
    table = deadline_table(["50 GB/s"], replicas=4)
    assert (table["bound"] <= table[["fair shares", "first come", "deadline"]].min(axis=1)).all()
    said = deadline_findings(table)
    gain = table["fair shares"].iloc[0] / table["deadline"].iloc[0]
    assert f"By deadline an iteration is at most {gain:.2f} times as fast" in said
