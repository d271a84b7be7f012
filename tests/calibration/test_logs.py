"""A cluster from a log of its all-reduces: its links are found, and what they cannot be is said."""

import numpy as np
import pytest

from ddlnb.calibration import logs
from ddlnb.calibration.collective_tables import with_seconds
from ddlnb.calibration.logs import NOISE, fit_log
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import read_cluster, write_cluster
from ddlnb.clusters.named import cluster_of
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from tests.command_line import ddlnb

SIZES = [float(4**power) for power in range(4, 16)]
CALL = 15e-6


def log_of(cluster: Cluster, sizes=SIZES):
    """Return the rows that a cluster without other work would have logged."""
    import pandas as pd

    alone = cluster.with_effects(level_latency=0.0, operation_latency=CALL)
    latency, work, _ = alone.all_reduce_work(np.array(sizes))
    rows = {
        "collective": "all_reduce",
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "ranks": cluster.workers,
        "size_bytes": sizes,
        "time_us_out_of_place": (latency + work) * 1e6,
    }
    return with_seconds(pd.DataFrame(rows))


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_log_of_a_known_cluster_gives_its_links_back(nodes, monkeypatch, tmp_path):
    true = cluster_of("A100", nodes, network="200GbIB" if nodes > 1 else "")
    true = true.with_effects(inside_bandwidth="180 GB/s")
    if nodes > 1:
        true = true.with_effects(between_bandwidth="20 GB/s", between_latency="20 us")
    monkeypatch.setattr(logs, "rows_of", lambda *given: log_of(true))
    found = fit_log("all_reduce.log", "A100", network="200GbIB")
    assert found.calibration.errors.max() < NOISE
    slowest = "between_bandwidth" if nodes > 1 else "inside_bandwidth"
    assert getattr(found.cluster.effects, slowest) == pytest.approx(
        getattr(true.effects, slowest), rel=0.05
    )
    assert found.cluster.effects.operation_latency == true.effects.operation_latency != CALL
    assert found.cluster.model_error >= true.model_error
    assert read_cluster(write_cluster(found.cluster, tmp_path / "a.yaml")).nodes == nodes


def test_rows_that_the_model_cannot_reproduce_are_counted(monkeypatch):
    rows = log_of(cluster_of("A100", 2, network="200GbIB"))
    rows.loc[::3, "seconds"] *= 3
    monkeypatch.setattr(logs, "rows_of", lambda *given: rows)
    found = fit_log("all_reduce.log", "A100", network="200GbIB")
    assert "4 of 12 rows by more than 25%: the model" in found.in_words
    assert len(found.residuals) == 12


def test_a_log_of_another_collective_is_refused(monkeypatch):
    rows = log_of(cluster_of("A100", 2)).assign(collective="all_gather")
    monkeypatch.setattr(logs, "rows_of", lambda *given: rows)
    with pytest.raises(InputError, match="all_gather and no all_reduce"):
        fit_log("all_gather.log", "A100")


def test_a_log_that_does_not_name_its_collective_is_told_it(tmp_path):
    lines = ["#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] NVIDIA A100-SXM4-80GB"]
    lines += ["#  Rank  1 Group  0 Pid 1 on a device  1 [0x0f] NVIDIA A100-SXM4-80GB"]
    lines += ["#       size         count      type   redop     time   algbw   busbw  #wrong"]
    lines += [f"{size:.0f} {size / 4:.0f} float sum {20 + size / 1e5:.2f} 1 1 0" for size in SIZES]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="give --collective"):
        fit_log(path, "A100")
    words = ["cluster", "fit", str(path), "--gpu", "A100", "--out", str(tmp_path / "fit")]
    assert "give --collective" in ddlnb(*words).stderr
    assert not (tmp_path / "fit").exists()
    assert len(fit_log(path, "A100", collective="all_reduce").residuals) == len(SIZES)
    path.write_text("\n".join(["# Collective test starting: all_gather_perf", *lines]))
    with pytest.raises(InputError, match="has all_gather and no all_reduce"):
        fit_log(path, "A100", collective="all_reduce")


def test_no_fitted_link_is_faster_than_its_line(monkeypatch):
    """Two nodes whose messages pass them at twice the rate of their network, as by reduction in it.

    What the line cannot explain is said as an error of the fit.
    """
    base = cluster_of("A100", 2, network="200GbIB")
    fast = base.with_effects(between_bandwidth="50 GB/s")
    monkeypatch.setattr(logs, "rows_of", lambda *given: log_of(fast))
    found = fit_log("all_reduce.log", "A100", network="200GbIB")
    line = get_interconnect("200GbIB").line_rate
    assert found.cluster.effects.between_bandwidth == pytest.approx(line)
    for effect, most in (
        ("between_bandwidth", line),
        ("inside_bandwidth", get_gpu("A100").inside_bandwidth),
    ):
        assert found.calibration.intervals[effect][1] <= most * (1 + 1e-9)
    assert found.calibration.errors.max() > 0.25
