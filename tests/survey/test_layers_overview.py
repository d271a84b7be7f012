"""One number through the layers: volumes by formula, transfers by count, links by played flows."""

import pytest

from ddlnb.errors import InputError
from ddlnb.survey.layers_overview import (
    aggregation_table,
    hidden_table,
    layer_findings,
    layout_traffic,
    volume_table,
    walk_findings,
    walk_table,
)


@pytest.fixture(scope="module")
def walk():
    return walk_table(
        ["two-tier(2, 2, 4.0)", "rail-optimised(4, 4)"],
        ["ring", "hierarchical"],
        layout="dp16",
        per_node=4,
    )


def test_row_sums_are_the_closed_forms_but_for_norms():
    layouts = ["dp4", "tp8 acc2", "pp4 acc8", "dp8 ep4", "dp2 tp4 pp2 acc8 mb2"]
    volumes = volume_table(layout_traffic(layouts))
    others = volumes.drop(index="data", level="axis")
    assert others["ratio"].to_numpy() == pytest.approx(1.0, rel=1e-12)
    assert ((volumes["ratio"] >= 1) & (volumes["ratio"] < 1.001)).all()
    assert set(volumes.loc["dp8 ep4"].index) == {"ep", "data", "expert-data"}
    said = layer_findings(volumes)
    assert f"{len(volumes)} of {len(volumes)} row sums" in said


def test_a_layout_without_a_closed_form_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"layout dp4 zero3 has no closed form here; take dp4"):
        volume_table(layout_traffic(["dp4 zero3"]))


def test_a_ring_uses_one_rail_and_hierarchy_uses_all(walk):
    """Seconds by hand: bytes of the busiest link over its bandwidth."""
    ring, hierarchy = (
        walk.loc[("rail-optimised(4, 4)", name)] for name in ("ring", "hierarchical")
    )
    size = ring["sent"] / (2 * 15 / 16)
    assert ring["seconds"] == pytest.approx(2 * 15 / 16 * size / 50e9)
    assert hierarchy["seconds"] == pytest.approx(
        2 * 3 / 4 * size / 450e9 + 2 * 3 / 4 * size / 4 / 50e9
    )
    assert ring["leaves"] == pytest.approx(ring["sent"])
    assert hierarchy["leaves"] == pytest.approx(2 * 3 / 4 * size)


def test_the_quickest_algorithm_is_named_by_topology(walk):
    said = walk_findings(walk)
    assert "On rail-optimised(4, 4) `hierarchical` takes" in said
    best = walk.loc["rail-optimised(4, 4)", "seconds"].min()
    assert f"{best * 1e3:,.0f} ms" in said


def test_what_a_walk_cannot_take_is_refused():
    with pytest.raises(InputError, match="layout tp4 must be of replicas alone"):
        walk_table(["star(4)"], layout="tp4", per_node=1)


def test_switches_that_add_up_save_at_most_half():
    table = aggregation_table([2, 32, 33, 256], ports=32)
    assert table["ring sends"].tolist() == pytest.approx([1, 31 / 16, 64 / 33, 255 / 128])
    assert (table["ring sends"] < 2 * table["switches: sent"]).all()
    assert table["switches: steps"].tolist() == [2, 2, 4, 4]


def test_hiding_all_of_sixty_percent_gives_two_and_a_half():
    assert hidden_table([1.0])["speed_up"].tolist() == pytest.approx([2.5])
    assert hidden_table([0.5])["speed_up"].tolist() == pytest.approx([1 / 0.7])
    with pytest.raises(InputError, match=r"share 1\.0 of communication"):
        hidden_table(share=1.0)
