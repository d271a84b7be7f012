"""Forecasts from names against published cells: what is kept is today's, and holds."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.by_name import KEPT, RATE, summary
from benchmarks.by_name_h100 import KEPT as KEPT_H100, summary as summary_h100
from ddlnb.clusters.named import cluster_of
from ddlnb.files import HARDWARE, PUBLISHED
from ddlnb.simulator.simulate import steady_seconds
from ddlnb.survey.published import fig4_cells
from ddlnb.survey.testbed import cell_as_run, fig4_workload
from ddlnb.units import US
from ddlnb.workloads.roofline import estimate

ROWS = pd.read_csv(KEPT)


def test_the_survey_s_testbed_is_forecast_from_the_names_of_its_hardware():
    [overall] = summary(ROWS, []).to_dict("records")
    assert overall["cells"] == 252
    assert overall["median_error"] <= 0.1
    assert overall["in_interval"] >= 0.9
    assert overall["median_error"] < 0.3 * overall["nominal_ring"]
    assert overall["nominal_ring"] < overall["linear_scaling"]


def test_published_runs_on_another_cluster_are_forecast_from_its_name():
    """Nanotron overlaps nothing, as BSP-A2A; buckets as DDP has them stand beside it."""
    for row in summary_h100(pd.read_csv(KEPT_H100)).reset_index().to_dict("records"):
        assert row["median_error"] < 0.13
        share = 0.4 if row["method"] == "BSP-A2A" else 0.9
        assert row["median_error"] < share * row["linear_scaling"]


@pytest.mark.parametrize("network", ["10GbE", "100GbIB"])
def test_kept_forecasts_are_those_of_today(network):
    published = fig4_cells()
    single = published[published["method"] == "single"].set_index("model")[RATE]
    cluster = replace(cluster_of("RTX2080Ti", 8, 4, network), placement="hashed").with_workers(8)
    workload = estimate(
        fig4_workload("bert-base"), "RTX2080Ti", "fp32", samples_per_second=single["bert-base"]
    )
    methods = ["WFBP-A2A", "MG-WFBP", "WFBP-PS"]
    cells = [cell_as_run(workload, cluster, method) for method in methods]
    kept = ROWS.query("model == 'bert-base' and gpus == 8 and network == @network")
    kept = kept.set_index("method")[RATE]
    for cell, found in zip(cells, steady_seconds(cells), strict=True):
        assert cell.samples / found.iteration_seconds == pytest.approx(
            kept[cell.method.name], rel=1e-3
        )


def test_kept_rows_are_near_what_was_measured():
    [overall] = summary(ROWS, []).to_dict("records")
    runs = pd.read_csv(KEPT_H100).query("method == 'BSP-A2A'")
    error = (runs["forecast"] / runs["published"] - 1).abs().median()
    left_out = pd.read_csv(HARDWARE / "roofline_left_out.csv").query("left_out == 'model'")
    off = (left_out["estimated_seconds"] / left_out["measured_seconds"] - 1).abs().median()
    assert overall["median_error"] < 0.056
    assert error < 0.03
    assert off < 0.1


@pytest.mark.parametrize(
    ("block", "words", "most"),
    [
        ("oci-a100-2n", {"gpu": "A100-40GB", "nodes": 2, "network": "RoCE 8x200 Gb/s"}, 0.15),
        ("309-2n", {"gpu": "H100", "nodes": 2, "network": "8x400GbIB"}, 0.15),
        ("mle-8xH200", {"gpu": "H200", "nodes": 1}, 0.2),
    ],
)
def test_all_reduces_of_named_clusters_are_like_those_of_nccl_tests(block, words, most):
    """Messages of 16 MiB to 2 GiB; on two nodes a tree sends half as much as on four."""
    rows = pd.read_csv(PUBLISHED / "collectives_upto2nodes.csv").query("block == @block")
    rows = rows[rows["size_bytes"].between(2**24, 2**31)]
    latency, per_byte, _ = cluster_of(gpus_per_node=8, **words).all_reduce_seconds
    seconds = latency + per_byte * rows["size_bytes"]
    assert len(rows) > 5
    assert (seconds / (rows["time_us_out_of_place"] * US) - 1).abs().median() < most
