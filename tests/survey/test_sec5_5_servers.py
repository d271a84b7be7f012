"""The least number of servers is found in a sweep, and the rule counts bytes."""

import pytest

from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.survey.sec5_5_servers import least_servers, rule, rule_findings, sweep


@pytest.fixture(scope="module")
def rows():
    return sweep(["resnet50"], ["survey-100GbE"], servers=(1, 4, 8))


@pytest.mark.parametrize("nodes", [2, 3, 8, 100])
def test_the_rule_is_the_least_number_whose_links_carry_no_more_than_a_ring_s(nodes):
    ring, least = ring_bytes_sent(1.0, nodes), rule(nodes)
    assert nodes / least <= ring + 1e-9
    assert least == 1 or nodes / (least - 1) > ring - 1e-9


@pytest.mark.item("A64", how="simulated")
def test_the_table_has_the_first_number_that_reaches_all_to_all(rows):
    alone = rows.loc[rows["place"] == "none", "throughput_samples_per_s"].item()
    told = least_servers(rows).loc[("resnet50", "100GbE")].drop("rule")
    for place, number in told.items():
        swept = rows[rows["place"] == place].set_index("servers")["throughput_samples_per_s"]
        enough = swept.index[swept >= 0.99 * alone]
        assert number == (str(enough.min()) if len(enough) else f"more than {max(swept.index)}")


def test_servers_beside_workers_are_at_most_as_many_as_nodes():
    rows = sweep(["resnet50"], ["survey-100GbE"], gpus=8, servers=(1, 2, 4))
    assert rows.loc[rows["place"] == "workers' nodes", "servers"].max() == 2
    assert rows.loc[rows["place"] == "extra machines", "servers"].max() == 4


def test_the_sentence_counts_the_cells_of_the_table(rows):
    assert "over 1 of 1 cells; the rule says 5" in rule_findings(rows)


def test_a_cluster_of_one_node_has_no_servers_to_count():
    with pytest.raises(InputError, match="4 GPUs of cluster 'survey-10GbE' are one node"):
        sweep(["resnet50"], ["survey-10GbE"], gpus=4)
