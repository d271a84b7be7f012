"""A fit recovers what made its rows, transfers what it may, and says how sure it is."""

import numpy as np
import pandas as pd
import pytest

import ddlnb
from ddlnb.calibration.collective_tables import SECONDS, bus_factor
from ddlnb.calibration.collectives import (
    NAMES,
    OFF_ROWS,
    fit_collectives,
    forecast,
    parameters,
    prior_of,
    residuals,
)
from ddlnb.calibration.nccl import Setting, gpu_of, network_of, seconds
from ddlnb.errors import InputError
from ddlnb.units import MIB

WORDS = {"gpu": "A100", "network": "RoCE 8x200 Gb/s", "library": "NCCL", "settings": ""}
SIZES = 2.0 ** np.arange(10, 34)


def made(nodes: int, block: str = "made-up", **shifts: float) -> pd.DataFrame:
    """Return rows that the model itself makes, with parameters off their priors by these logs."""
    gpu = gpu_of(WORDS["gpu"])
    mean = prior_of(gpu, network_of(WORDS["network"], gpu, 8)).mean.copy()
    for name, shift in shifts.items():
        mean[NAMES.index(name)] += shift
    setting = Setting("all_reduce", nodes, 8, gpu.generation, gpu.has_switch_reduction)
    times = seconds(setting, SIZES, parameters(mean[None]))[0]
    counts = {"nodes": nodes, "gpus_per_node": 8, "ranks": 8 * nodes}
    fixed = {"source_url": block, "block": block, "collective": "all_reduce", **WORDS, **counts}
    return pd.DataFrame({**fixed, "size_bytes": SIZES, SECONDS: times})


def test_a_fit_recovers_the_parameters_that_made_the_rows():
    shifts = {"inside": 0.1, "hop": 0.9, "few": 0.25}
    [cluster] = fit_collectives(made(2, **shifts)).clusters.values()
    found = cluster.draws.mean(axis=0) - cluster.prior.mean
    assert found[NAMES.index("inside")] == pytest.approx(0.1, abs=0.06)
    assert found[NAMES.index("hop")] > 0.4
    assert found[NAMES.index("few")] > 0.0


def test_forecasts_of_more_nodes_hit_rows_that_the_model_makes():
    shifts = {"between": -0.15, "many": 0.2, "hop": 0.5}
    fitted = fit_collectives(made(2, **shifts))
    seen, unseen = made(8), made(8, block="another").assign(network="not stated")
    widths = [np.log(f["high"] / f["low"]) for f in (forecast(fitted, q) for q in (seen, unseen))]
    assert (widths[1] > widths[0]).all()
    for nodes in (4, 16, 64):
        hidden = made(nodes, **shifts)
        found = forecast(fitted, hidden)
        measured = hidden[SECONDS] * 1e6
        large = hidden["size_bytes"] >= MIB
        assert ((found["time_us"] / measured - 1).abs()[large]).median() < 0.12
        assert measured.between(found["low"], found["high"]).mean() > 0.85


def test_a_cluster_seen_on_one_node_keeps_its_nodes_and_takes_its_network_from_words():
    fitted = fit_collectives(made(1, inside=-0.3).assign(network="NVLink in node"))
    slow = forecast(fitted, made(1).assign(network="NVLink in node"))["time_us"]
    usual = forecast(fitted, made(1, block="another"))["time_us"]
    assert slow[-1] > 1.1 * usual[-1]
    assert np.isfinite(forecast(fitted, made(4))["time_us"]).all()


def test_the_same_seed_gives_the_same_forecast_and_order_does_not_matter():
    rows, asked = made(2), made(8)
    first = forecast(fit_collectives(rows, draws=100), asked)["time_us"]
    again = forecast(fit_collectives(rows, draws=100), asked)["time_us"]
    assert (first == again).all()
    turned = forecast(fit_collectives(rows, draws=100), asked[::-1])["time_us"]
    assert (turned[::-1] == first).all()


def test_what_passes_through_keeps_its_text_and_its_place():
    table = pd.DataFrame(
        {
            "size_bytes": ["1048576.0", "8"],
            "collective": ["AllReduce", "all_gather"],
            "nodes": ["4.0", ""],
            "ranks": ["", "16"],
            "remark": ["007", ""],
        }
    )
    found = ddlnb.collectives(table, made(2), draws=60)
    assert found[["size_bytes", "nodes", "remark"]].equals(table[["size_bytes", "nodes", "remark"]])
    assert (found["low"] < found["time_us"]).all()
    assert (found["time_us"] < found["high"]).all()
    none = ddlnb.collectives(table[:0], made(2), draws=60)
    assert list(none.columns) == [*table.columns, "time_us", "low", "high"]
    with pytest.raises(InputError, match="lacks the columns size_bytes"):
        ddlnb.collectives(table[["collective", "nodes"]], made(2))
    with pytest.raises(InputError, match="no rows to fit"):
        fit_collectives(made(2)[:0])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"collective": "hypercube"},
            "row 1 of the table has the collective 'hypercube'; write one",
        ),
        ({"size_bytes": ""}, "row 1 of the table has no size_bytes"),
        ({"size_bytes": "-3"}, "size_bytes '-3'; write a positive number"),
        ({"nodes": "two"}, "nodes 'two'; write a positive whole number"),
        ({"nodes": "", "ranks": ""}, "neither nodes nor ranks"),
        ({"nodes": "3", "ranks": "16"}, "16 ranks on 3 nodes"),
        ({"nodes": "1", "ranks": "1"}, "exchanges nothing"),
    ],
)
def test_a_row_that_cannot_be_forecast_is_named_with_the_way_out(row, said):
    usual = {"collective": "all_reduce", "size_bytes": "1024", "nodes": "2", "ranks": "16"}
    with pytest.raises(InputError, match=said):
        ddlnb.collectives(pd.DataFrame([usual | row]), made(2))


def slow(nodes: int, rate: float) -> pd.DataFrame:
    """Return rows of a cluster whose ring moves so many bytes/s, whatever its words say."""
    rows = made(nodes)
    sent = rows["size_bytes"] * bus_factor("all_reduce", 8 * nodes)
    return rows.assign(**{SECONDS: 50e-6 + sent / rate})


def test_what_was_fitted_comes_back_also_where_a_network_is_far_from_its_words():
    eighth, third = slow(2, 23.8e9), slow(2, 65e9)
    without_words = eighth.assign(gpu="", network="")
    for rows in (made(2), without_words):
        [found] = residuals(fit_collectives(rows), rows)
        assert found[OFF_ROWS] == 0
    large = third[third["size_bytes"] >= 16 * MIB]
    times = forecast(fit_collectives(third), large)["time_us"]
    assert times == pytest.approx(1e6 * large[SECONDS].to_numpy(), rel=0.15)
    fitted = fit_collectives(eighth)  # eight times as slow as its words
    [found] = residuals(fitted, eighth)
    assert int(str(found[OFF_ROWS])) <= 3
    told = forecast(fitted, eighth)
    assert (eighth[SECONDS] * 1e6).between(told["low"], told["high"]).mean() > 0.7


def test_a_question_without_a_source_is_of_the_cluster_that_its_own_rows_are_of():
    rows = slow(2, 65e9)
    asked = slow(4, 65e9)[-1:].drop(columns=["source_url", "block", SECONDS])
    [own] = ddlnb.collectives(asked, rows)["time_us"]
    assert own == pytest.approx(1e6 * slow(4, 65e9)[SECONDS].iloc[-1], rel=0.15)
    fitted = fit_collectives(rows)
    [unseen] = forecast(fitted, asked.assign(ranks=32))["time_us"]  # as of published rows
    assert unseen < 0.6 * own
    other = asked.assign(network="RoCE 4x200 Gb/s")
    assert ddlnb.collectives(other, rows)["time_us"].iloc[0] < own


@pytest.mark.parametrize("gpu", ["RTX4090", ""])
def test_a_node_without_nvlink_is_fitted_too(gpu):
    rows = made(1).assign(gpu=gpu, network="")
    rows[SECONDS] = 30e-6 + rows["size_bytes"] * bus_factor("all_reduce", 8) / 10e9
    [found] = residuals(fit_collectives(rows), rows)
    assert float(str(found["median error"]).rstrip("%")) < 10


def test_nothing_is_forecast_to_be_sent_faster_than_the_line_that_words_name():
    fitted = fit_collectives(made(4))
    asked = {"collective": "all_gather", "size_bytes": 1 << 30, "nodes": 3, "gpus_per_node": 1}
    for rate in (25, 100, 200):
        row = {**asked, "gpu": "H100", "network": f"{rate} Gb/s RoCE"}
        [micros] = forecast(fitted, pd.DataFrame([row]))["time_us"]
        assert micros > 1e6 * 2 / 3 * (1 << 30) / (rate / 8 * 1e9)
