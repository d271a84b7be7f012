"""Time to target, arranged: the quickest per cluster, verdicts as a table, a pure workload."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.figures import target_speedups
from ddlnb.survey.time_to_target import quickest, quickest_table, target_findings, verdict_table
from ddlnb.training.cost.pure_case import digits_workload, made_up_cluster
from ddlnb.training.cost.time_to_target import MARGIN, NO, YES, time_to_target

SIGN = "bsp + ef-sign + feedback on A2A"
TOP_K = "bsp + top-k(0.01) + feedback on A2A"
SLOW, FAST = made_up_cluster("10 Mb/s", "1 ms"), made_up_cluster("100 Gb/s", "1 us")


def curves() -> pd.DataFrame:
    rows = []
    for workers in (4, 8):
        for method, needed in (("bsp on A2A", 40), (SIGN, 50), (TOP_K, math.inf)):
            for seed in range(3):
                for step in range(0, 101, 5):
                    loss = 0.1 if step >= needed + 5 * seed else 1.0
                    rows.append(("digits", method, workers, seed, step, loss, 0.0))
    names = ["task", "method", "workers", "seed", "step", "test_loss", "averaging_bytes_sent"]
    return pd.DataFrame(rows, columns=names)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    workload = digits_workload(iterations=3)
    return time_to_target(curves(), 0.5, workload, [SLOW, FAST], steps=4)


def test_digits_are_a_workload_measured_here():
    workload = digits_workload(iterations=2)
    assert workload.parameters == 9930
    assert workload.local_batch == 16
    assert workload.compute_seconds > 0
    assert "measured" in workload.source


def test_a_made_up_cluster_costs_what_its_links_do():
    cluster = made_up_cluster("8 Mb/s", "1 ms").with_workers(4)
    latency, per_byte, share = cluster.all_reduce_seconds
    assert latency == pytest.approx(6e-3)
    assert per_byte == pytest.approx(2 * 3 / 4 / 1e6)
    assert share == 1.0
    assert "made up" in cluster.name
    with pytest.raises(InputError):
        made_up_cluster("fast", "1 ms")


def test_the_quickest_is_the_row_of_fewest_seconds(table):
    found = quickest(table)
    assert len(found) == 4
    for (network, workers), row in found.iterrows():
        rows = table[(table["network"] == network) & (table["workers"] == workers)]
        assert row["seconds"] == rows["seconds"].min()
    assert set(found.loc[SLOW.network, "method"]) == {SIGN}
    assert set(found.loc[FAST.network, "method"]) == {"bsp on A2A"}


def test_every_lossy_row_has_a_verdict(table):
    said = verdict_table(table)
    assert len(said) == (~table["is_dense"]).sum()
    choice = said.set_index(["network", "workers", "method"])["choice"]
    assert choice[SLOW.network, 4, SIGN] == YES
    assert choice[FAST.network, 4, SIGN] == NO
    assert (choice.xs(TOP_K, level="method") == NO).all()
    assert said["said"].str.contains("here: ").all()
    assert said["said"][0].startswith(f"{SLOW.network}, 4 workers: compress here: ")


def test_speedups_are_drawn_where_there_are_any(table):
    figure = target_speedups(table)
    slow, fast = figure.axes
    lines = {held.get_label(): held.lines[0] for held in slow.containers}
    rows = table[(table["network"] == SLOW.network) & (table["method"] == SIGN)]
    assert list(lines["ef-sign + feedback"].get_ydata()) == rows["speedup"].tolist()
    assert all(map(math.isnan, lines["top-k(0.01) + feedback (never)"].get_ydata()))
    assert [ax.get_title() for ax in (slow, fast)] == [SLOW.network, FAST.network]
    with pytest.raises(InputError, match="no lossy methods"):
        target_speedups(table[table["is_dense"]])


def test_a_choice_has_its_interval_and_the_quickest_is_no_slower_than_the_best_lossless(table):
    said = verdict_table(table)
    lossy = table[~table["is_dense"]].reset_index(drop=True)
    low = lossy["speedup_low"].fillna(lossy["speedup"])
    assert (low[said["choice"] == YES] > 1 + MARGIN).all()
    dense = table[table["is_dense"]].groupby(["network", "workers"])["seconds"].min()
    assert (quickest(table)["seconds"] <= dense).all()
    reached = table[table["seconds"] < math.inf]
    products = reached["iterations"] * reached["iteration_seconds"]
    assert (reached["seconds"] / products).tolist() == pytest.approx([1] * len(reached))


def test_findings_name_who_gains_where(table):
    said = target_findings({"digits": table}, 4).splitlines()
    assert said[0].startswith(f"- digits, {SLOW.network}: a gain by bsp + ef-sign + feedback; ")
    assert said[1].startswith(f"- digits, {FAST.network}: no gain by bsp + ef-sign + feedback, ")
    columns = quickest_table({"free": table}).columns
    assert ("free", "time to target (s)") in columns
