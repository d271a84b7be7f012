"""Time to target, arranged: the quickest per cluster, verdicts as a table, a pure workload."""

import math
from itertools import product

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.figures import target_speedups
from ddlnb.survey.time_to_target import (
    digits_workload,
    made_up_cluster,
    target_findings,
    verdict_table,
)
from ddlnb.training.cost.time_to_target import MARGIN, NO, YES, time_to_target

SIGN = "bsp + ef-sign + feedback on A2A"
TOP_K = "bsp + top-k(0.01) + feedback on A2A"
SLOW, FAST = made_up_cluster("10 Mb/s", "1 ms"), made_up_cluster("100 Gb/s", "1 us")


def curves() -> pd.DataFrame:
    needed = {"bsp on A2A": 40, SIGN: 50, TOP_K: math.inf}
    cells = product((4, 8), needed, range(3), range(0, 101, 5))
    rows = [
        ("digits", method, workers, seed, step, 0.1 if step >= needed[method] + 5 * seed else 1.0)
        for workers, method, seed, step in cells
    ]
    names = ["task", "method", "workers", "seed", "step", "test_loss"]
    return pd.DataFrame(rows, columns=names).assign(averaging_bytes_sent=0.0)


def test_digits_are_measured_here_and_a_made_up_cluster_costs_what_its_links_do():
    workload = digits_workload(iterations=2)
    assert workload.parameters == 9930
    assert workload.local_batch == 16
    assert workload.compute_seconds > 0
    assert "measured" in workload.source
    cluster = made_up_cluster("8 Mb/s", "1 ms").with_workers(4)
    latency, per_byte, share = cluster.all_reduce_seconds
    assert latency == pytest.approx(6e-3)
    assert per_byte == pytest.approx(2 * 3 / 4 / 1e6)
    assert share == 1.0
    assert "made up" in cluster.name


def test_every_lossy_row_has_a_verdict_a_gain_and_a_line_of_its_own():
    work = digits_workload(iterations=3)
    table = time_to_target(curves(), 0.5, work, [SLOW, FAST], "free", steps=4)
    said = verdict_table(table)
    assert len(said) == (~table["is_dense"]).sum()
    choice = said.set_index(["network", "workers", "method"])["choice"]
    assert choice[SLOW.network, 4, SIGN] == YES
    assert choice[FAST.network, 4, SIGN] == NO
    assert (choice.xs(TOP_K, level="method") == NO).all()
    assert said["said"].str.contains("here: ").all()
    assert said["said"][0].startswith(f"{SLOW.network}, 4 workers: compress here: ")
    low = table[~table["is_dense"]]["speedup_low"].reset_index(drop=True)
    assert (low[said["choice"] == YES] > 1 + MARGIN).all()
    figure = target_speedups(table)
    slow, fast = figure.axes
    lines = {held.get_label(): held.lines[0] for held in slow.containers}
    rows = table[(table["network"] == SLOW.network) & (table["method"] == SIGN)]
    assert list(lines["ef-sign + feedback"].get_ydata()) == rows["speedup"].tolist()
    assert all(map(math.isnan, lines["top-k(0.01) + feedback (never)"].get_ydata()))
    assert [ax.get_title() for ax in (slow, fast)] == [SLOW.network, FAST.network]
    with pytest.raises(InputError, match="no lossy methods"):
        target_speedups(table[table["is_dense"]])
    said = target_findings({"digits": table}, 4).splitlines()
    assert said[0].startswith(f"- digits, {SLOW.network}: a gain by bsp + ef-sign + feedback; ")
    assert said[1].startswith(f"- digits, {FAST.network}: no gain by bsp + ef-sign + feedback, ")
