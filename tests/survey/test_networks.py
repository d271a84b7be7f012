"""The tour of networks: claims of layers decided by flows, and clusters on topologies."""

import pytest

from ddlnb.survey.networks import (
    all_reduce_loads,
    by_topology,
    crossing_bytes,
    described,
)


@pytest.mark.parametrize("workers", [4, 8])
def test_algorithms_cross_where_formulas_say(workers):
    simulated, formula = crossing_bytes(workers)
    assert simulated == pytest.approx(formula, rel=0.02)


def test_a_topology_is_described_by_its_structure_and_loads_are_shares_of_time():
    table = described(["fat-tree(4)", "torus(4, 4)"])
    assert table["failures that cut a rank off"].tolist() == [1, 4]
    (network, busy), *_ = all_reduce_loads(["star(4)"], "ring").values()
    assert len(busy) == len(network.links)
    assert busy == pytest.approx([1.0] * len(busy))


def test_servers_suffer_from_oversubscription_and_a_ring_does_not():
    table = by_topology(
        "resnet50",
        "survey-10GbE",
        ["star(8)", "two-tier(2, 4, oversubscription=4.0)"],
        methods=["BSP-A2A", "BSP-PS"],
    )
    kept = table.iloc[:, 1] / table.iloc[:, 0]
    assert kept["BSP-A2A"] == pytest.approx(1, abs=0.01)
    assert kept["BSP-PS"] < 0.95
