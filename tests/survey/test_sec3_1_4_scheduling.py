"""Section 3.1.4 on simulated clusters: timelines, facts and breakdowns of every method."""

import pytest

from ddlnb.plans.methods import SURVEYED
from ddlnb.survey import sec3_1_4_scheduling
from ddlnb.survey.fig3_timelines import EARLY, LATE, PLACES
from ddlnb.survey.testbed import CLUSTERS

ONE = ("survey-10GbE",)


@pytest.mark.item("A26", how="simulated")
def test_facts_of_four_iterations_tell_merging_from_partition_and_parts_add_up():
    simulated = sec3_1_4_scheduling.simulate_schedules("resnet50", ONE, 8)
    facts = sec3_1_4_scheduling.schedule_facts(simulated).loc["10GbE"]
    messages, largest = facts["messages"], facts["largest (MB)"]
    assert messages["BSP-A2A"] == 1
    assert messages["BSP-A2A"] < messages["MG-WFBP"] < messages["WFBP-A2A"]
    assert messages["WFBP-A2A"] < messages["ByteScheduler-A2A"]
    assert largest["ByteScheduler-A2A"] < largest["WFBP-A2A"] < largest["BSP-A2A"]
    assert facts.loc["BSP-A2A", EARLY] == 0 < facts.loc["WFBP-A2A", EARLY]
    assert facts.loc["WFBP-A2A", [LATE, PLACES]].tolist() == [0, 1]
    assert list(simulated) == ["10GbE"]
    assert list(simulated["10GbE"]) == list(SURVEYED)
    for line in simulated["10GbE"].values():
        assert line.iterations == sec3_1_4_scheduling.SHOWN_ITERATIONS
        assert line.source == "simulated"
    rows = sec3_1_4_scheduling.breakdown_rows("resnet50", ONE, 8).set_index("method")
    parts = rows[list(sec3_1_4_scheduling.PARTS)].sum(axis=1)
    assert parts.tolist() == pytest.approx(rows["iteration_seconds"].tolist())
    line = simulated["10GbE"]["BSP-A2A"]
    assert rows.loc["BSP-A2A", "iteration_seconds"] == pytest.approx(line.iteration_seconds)


def test_the_breakdown_table_is_in_milliseconds_and_in_the_order_of_the_networks():
    rows = sec3_1_4_scheduling.breakdown_rows("resnet50", tuple(CLUSTERS.values()), 4)
    table = sec3_1_4_scheduling.breakdown_table(rows)
    assert list(table.index) == list(SURVEYED)
    assert list(dict.fromkeys(table.columns.get_level_values("network"))) == list(CLUSTERS)
    first = rows.iloc[0]
    shown = table.loc[first["method"], (first["network"], "iteration")]
    assert shown == pytest.approx(1e3 * first["iteration_seconds"], abs=0.05)
    latency = rows.pivot(index="network", columns="method", values="latency")
    assert (latency["MG-WFBP"] < latency["WFBP-A2A"] + 1e-3).all()
