"""The least number of servers is found in a sweep, and the rule counts bytes."""

import pytest

from ddlnb.survey.sec5_5_servers import least_servers, rule_findings, sweep


@pytest.mark.item("A64", how="simulated")
def test_the_first_number_that_reaches_all_to_all_is_in_the_table_and_told():
    rows = sweep(["resnet50"], ["survey-100GbE"], servers=(1, 4, 8))
    alone = rows.loc[rows["place"] == "none", "throughput_samples_per_s"].item()
    told = least_servers(rows).loc[("resnet50", "100GbE")].drop("rule")
    for place, number in told.items():
        swept = rows[rows["place"] == place].set_index("servers")["throughput_samples_per_s"]
        enough = swept.index[swept >= 0.99 * alone]
        assert number == (str(enough.min()) if len(enough) else f"more than {max(swept.index)}")
    assert "over 1 of 1 cells; the rule says 5" in rule_findings(rows)


def test_servers_beside_workers_are_at_most_as_many_as_nodes():
    rows = sweep(["resnet50"], ["survey-100GbE"], gpus=8, servers=(1, 2, 4))
    assert rows.loc[rows["place"] == "workers' nodes", "servers"].max() == 2
    assert rows.loc[rows["place"] == "extra machines", "servers"].max() == 4
