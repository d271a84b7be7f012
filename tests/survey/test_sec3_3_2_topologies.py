"""What the survey says of topologies, decided by flows on their graphs."""

import pytest

from ddlnb.survey.sec3_3_2_topologies import (
    cost_table,
    exchange_times,
    seconds_table,
    topology_findings,
    verdicts,
)
from ddlnb.units import bandwidth_from

SIZE = 16 * 10**6


@pytest.fixture(scope="module")
def played():
    return exchange_times(16, SIZE, "8 Gb/s")


@pytest.mark.item("A34", how="simulated")
def test_rings_that_share_no_link_run_as_fast_as_if_each_were_alone(played):
    one = 2 * 15 / 16 * SIZE / bandwidth_from("8 Gb/s")
    for network, rings in (("fat-tree", 1), ("BCube", 2), ("torus", 4)):
        assert played[network, "one ring"].seconds == pytest.approx(one)
        assert played[network, "all rings that fit"].seconds == pytest.approx(one / rings)


@pytest.mark.item("A36", how="simulated")
def test_both_sides_of_a_torus_at_once_take_half_of_a_ring(played):
    seconds = [played["torus", name].seconds for name in ("torus, both sides at once", "one ring")]
    assert seconds[0] == pytest.approx(seconds[1] / 2)


def test_every_claim_has_its_numbers_and_every_exchange_its_milliseconds(played):
    table = verdicts(played)
    assert set(table["verdict"]) <= {"holds", "contradicted"}
    assert table["numbers"].str.contains(r"\d\.\d\d").all()
    table = seconds_table(played)
    assert table.loc["one ring", "torus"] == round(1e3 * played["torus", "one ring"].seconds, 1)
    found = topology_findings(played)
    assert found.startswith("- The quickest exchange of each: fat-tree")
    assert [one.item for one in found.items] == ["A34", "A35", "A36"]
    # With equal cables BCube's hosts have twice the bandwidth; with half of it per cable, not.
    assert [one.verdict for one in found.items] == ["holds", "undecided", "holds"]
    assert "equal cables: holds" in found.items[1].said
    assert "equal bandwidth of hosts: contradicted" in found.items[1].said


def test_switches_and_cables_are_those_of_the_topologies():
    costs = cost_table((16,))
    assert costs.loc[(16, "fat-tree")].tolist() == [20, 80, 48, 1]
    assert costs.loc[(16, "torus"), "ports of switches"] == 0
