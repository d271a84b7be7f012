"""One number through the layers: volumes by formula, transfers by count, links by played flows."""

import pytest

from ddlnb.survey.layers_overview import (
    aggregation_table,
    layer_findings,
    layout_traffic,
    volume_table,
    walk_findings,
    walk_table,
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


def test_a_ring_uses_one_rail_and_hierarchy_uses_all_and_the_quickest_is_named():
    """Seconds by hand: bytes of the busiest link over its bandwidth."""
    networks = ["two-tier(2, 2, 4.0)", "rail-optimised(4, 4)"]
    walk = walk_table(networks, ["ring", "hierarchical"], layout="dp16", per_node=4)
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
    said = walk_findings(walk)
    assert "On rail-optimised(4, 4) `hierarchical` takes" in said
    assert f"{hierarchy['seconds'] * 1e3:,.0f} ms" in said


def test_switches_that_add_up_save_at_most_half():
    table = aggregation_table([2, 32, 33, 256], ports=32)
    assert table["ring sends"].tolist() == pytest.approx([1, 31 / 16, 64 / 33, 255 / 128])
    assert (table["ring sends"] < 2 * table["switches: sent"]).all()
    assert table["switches: steps"].tolist() == [2, 2, 4, 4]
