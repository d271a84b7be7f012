"""The forecast of Fig. 4: made from data alone, and never from what it is tested on."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pandas as pd
import pytest

from ddlnb.calibration.survey import (
    calibrate_survey,
    cell_observations,
    quoted_observations,
    survey_setup,
)
from ddlnb.calibration.testbed import (
    FORECAST_COLUMNS,
    GPUS,
    as_run,
    fig4_cells_to_forecast,
    fig4_workload,
)
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import UnknownName
from ddlnb.paths import DATA
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate, Order
from ddlnb.simulator.forecast import draw_clusters
from ddlnb.simulator.simulate import steady_seconds

KEPT = DATA / "forecasts" / "fig4.csv"


def test_fig4_has_252_cells_each_once():
    cells = fig4_cells_to_forecast()
    keys = {(c.workload.model, c.cluster.network, c.cluster.workers, c.method.name) for c in cells}
    assert len(cells) == len(keys) == 3 * 3 * len(GPUS) * len(METHODS) == 252


def test_the_kept_forecast_is_what_the_data_gives_now():
    """Otherwise somebody changed clusters, profiles or methods and did not forecast again."""
    kept = pd.read_csv(KEPT)
    assert list(kept.columns) == FORECAST_COLUMNS
    cells = fig4_cells_to_forecast()
    for row, cell, found in zip(kept.to_dict("records"), cells, steady_seconds(cells), strict=True):
        key = (cell.workload.model, cell.cluster.network, cell.method.name, cell.cluster.workers)
        assert (row["model"], row["network"], row["method"], row["gpus"]) == key
        assert row["throughput_samples_per_s"] == pytest.approx(
            cell.samples / found.iteration_seconds, rel=1e-5
        )
        assert row["low"] <= row["throughput_samples_per_s"] <= row["high"]


def test_effects_are_drawn_as_when_the_forecast_was_kept():
    """Streams are named by words; new words for an effect must not move the kept intervals."""
    (drawn,) = draw_clusters(get_cluster("survey-10GbE"), 1)
    assert drawn.effects.operation_latency == pytest.approx(9.759388237603308e-05, rel=1e-12)
    assert drawn.effects.between_share == pytest.approx(0.657816353879583, rel=1e-12)


def test_the_fit_sees_nothing_with_more_than_eight_gpus():
    clusters = survey_setup().clusters
    seen = [*quoted_observations(clusters), *cell_observations()]
    assert seen
    assert all(one.labels.gpus is None or one.labels.gpus <= 8 for one in seen)


@pytest.fixture
def made_up_cells(tmp_path):
    """Cells of ResNet-50 as a testbed would give them on which everything is a little slower."""
    path = tmp_path / "fig4_upto8.csv"
    slower = {"between_bandwidth": 0.9, "inside_bandwidth": 0.9, "compute_factor": 1.1}
    lines = ["model,local_batch,network,method,gpus,throughput_samples_per_s,std,source"]
    for cell in fig4_cells_to_forecast(models=("resnet50",), gpus=(1, 4, 8)):
        effects = cell.cluster.effects
        changed = {name: getattr(effects, name) * by for name, by in slower.items()}
        cell = replace(cell, cluster=cell.cluster.with_effects(**changed))
        rate = cell.samples / steady_seconds([cell])[0].iteration_seconds
        key = f"resnet50,64,{cell.cluster.network},{cell.method.name},{cell.cluster.workers}"
        lines.append(f"{key},{rate},,published")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_cells_join_the_fit_when_their_file_is_there(made_up_cells):
    """No cell is in this edition; this is what happens on the day they come."""
    before, found = calibrate_survey(), calibrate_survey(cells=made_up_cells)
    assert len(found.observations) == len(before.observations) + 3 * 3 * len(METHODS)
    assert found.value_of["compute_factor@resnet50"] == pytest.approx(
        1.1 * before.value_of["compute_factor@resnet50"], rel=0.02
    )
    of_cells = [row for row in found.rows if row.method is not None]
    assert median(abs(row.relative_error) for row in of_cells) < 0.015
    low, high = found.intervals["compute_factor@resnet50"]
    assert high / low < 1.1


def test_networks_do_not_matter_inside_one_node():
    cells = fig4_cells_to_forecast(gpus=(4,))
    seconds = {
        (cell.workload.model, cell.method.name, round(found.iteration_seconds, 12))
        for cell, found in zip(cells, steady_seconds(cells), strict=True)
    }
    assert len(seconds) == 3 * len(METHODS)


def test_methods_as_run_differ_only_where_the_scripts_do():
    for name, method in METHODS.items():
        if not name.startswith("ByteScheduler"):
            assert as_run(name) == method
    a2a, ps = as_run("ByteScheduler-A2A"), as_run("ByteScheduler-PS")
    assert (a2a.partition_bytes, a2a.credit_bytes) == (16_000_000, 64_000_000)
    plan = ps.plan(fig4_workload("resnet50"), servers=2)
    assert (plan.order, plan.gate, plan.method) == (Order.LISTED, Gate.ALL_LAYERS, ps.name)


def test_an_unknown_model_is_named():
    with pytest.raises(UnknownName, match="'vgg'; choose one of resnet50"):
        fig4_workload("vgg")
