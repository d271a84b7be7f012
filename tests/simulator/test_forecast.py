"""Forecasts: tidy rows, honest intervals, one clear error for what does not fit together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.clusters.cluster import Fit
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName
from ddlnb.plans.methods import METHODS
from ddlnb.results.columns import CELL
from ddlnb.simulator.breakdown import breakdown
from ddlnb.simulator.forecast import draw_clusters, forecast
from ddlnb.simulator.profiles import profile_for
from ddlnb.simulator.simulate import Cell, simulate, steady_seconds
from tests.toy import TOY

SURVEY = get_cluster("survey-10GbE")


def test_a_forecast_has_a_row_per_method_and_number_of_gpus():
    rows = forecast(TOY, SURVEY, gpus=[4, 8], draws=3)
    assert list(zip(rows["gpus"], rows["method"], strict=True)) == [
        (count, method) for count in (4, 8) for method in METHODS
    ]
    assert set(CELL) - {"optimizer", "iterations", "warmup"} <= set(rows.columns)
    assert (rows["source"] == "simulated").all()
    samples = rows["gpus"] * TOY.local_batch
    np.testing.assert_allclose(
        rows["throughput_samples_per_s"], samples / rows["iteration_seconds"]
    )


def test_the_interval_holds_the_value_and_grows_with_the_uncertainty():
    known = replace(SURVEY, fits={}, model_error=0.0)
    rows = forecast(TOY, known, "BSP-A2A", gpus=8, draws=20)
    np.testing.assert_allclose(rows["low"], rows["throughput_samples_per_s"])
    fit = Fit(0.5 * known.effects.between_bandwidth, 2 * known.effects.between_bandwidth, "test")
    for uncertain in (
        replace(known, fits={"between_bandwidth": fit}),
        replace(known, model_error=0.2),
    ):
        row = forecast(TOY, uncertain, "BSP-A2A", gpus=8, draws=50).iloc[0]
        assert row["low"] < row["throughput_samples_per_s"] < row["high"]
    paced = forecast(replace(TOY, spread=0.2), known, "BSP-A2A", gpus=8, draws=50).iloc[0]
    assert paced["low"] < paced["throughput_samples_per_s"] < paced["high"]


def test_draws_are_the_same_twice_and_inside_the_bounds():
    fit = Fit(0.3, 1.0, "test")
    cluster = replace(SURVEY, fits={"inside_share": fit})
    first, second = (draw_clusters(cluster, 40, seed=7) for _ in range(2))
    assert first == second
    shares = [drawn.effects.inside_share for drawn in first]
    assert all(0.01 <= share <= 1.0 for share in shares)
    assert len(set(shares)) > 20
    assert draw_clusters(cluster, 40, seed=8) != first


def test_chances_of_being_best_add_up_to_one():
    rows = forecast(TOY, SURVEY, gpus=[4, 8], draws=25)
    np.testing.assert_allclose(rows.groupby("gpus")["chance_best"].sum(), 1.0)


def test_without_draws_there_are_no_intervals():
    rows = forecast(TOY, SURVEY, gpus=4, draws=0)
    assert rows[["low", "high", "chance_best"]].isna().all().all()


def test_losses_add_up_to_the_iteration():
    cells = [Cell(TOY, SURVEY.with_workers(8), method) for method in METHODS.values()]
    seconds = [found.iteration_seconds for found in steady_seconds(cells)]
    for parts, total in zip(breakdown(cells), seconds, strict=True):
        split = (parts.computation, parts.contention, parts.latency, parts.bandwidth)
        assert sum(split) == pytest.approx(parts.iteration_seconds) == pytest.approx(total)
        assert parts.computation == pytest.approx(TOY.compute_seconds)
        assert min(parts.latency, parts.bandwidth) >= -1e-12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpus": 64}, "64 workers exceed the 32 GPUs"),
        ({"gpus": []}, "gpus is empty"),
        ({"methods": []}, "methods is empty"),
        ({"methods": "MGWFBP"}, "did you mean 'MG-WFBP'"),
        ({"draws": -1}, "draws -1 must be a whole number"),
    ],
)
def test_what_does_not_fit_gets_one_error(words, said):
    with pytest.raises(InputError, match=said):
        forecast(TOY, SURVEY, **words)


def test_a_model_without_a_profile_for_the_hardware_says_how_to_make_one():
    with pytest.raises(InputError, match="ddlnb profile --model bert-base"):
        profile_for("bert-base", SURVEY, local_batch=3)
    with pytest.raises(UnknownName, match="did you mean 'survey-10GbE'"):
        forecast(TOY, "survey-10gbe")


def test_servers_are_refused_where_a_cluster_has_none():
    lonely = replace(SURVEY, server_place=None)
    with pytest.raises(InputError, match="needs parameter servers"):
        simulate(TOY, lonely, "BSP-PS", workers=8)
