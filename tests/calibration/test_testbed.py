"""The forecast of Fig. 4: made from data alone, and never from what it is tested on."""

import math

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.observations import predictions
from ddlnb.calibration.parameters import MOST_PARAMETERS
from ddlnb.clusters.effects import BANDWIDTH, EFFECTS, SECONDS, SHARE
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, ResultsError
from ddlnb.figures import forecast_bars
from ddlnb.files import DATA, ROOT
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import SURVEYED
from ddlnb.plans.plan import Gate, Order
from ddlnb.results.rows import GPUS_PER_NODE
from ddlnb.simulator.draws import Z90
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import steady_seconds
from ddlnb.survey.calibration import held_out_table, residual_rows, server_schedules
from ddlnb.survey.published import FIG4_CELLS
from ddlnb.survey.testbed import (
    AS_RUN,
    BATCHES,
    CLUSTERS,
    FITTED,
    FORECAST_COLUMNS,
    GPUS,
    HELD_OUT,
    SMALL,
    as_run,
    calibrate_survey,
    cell_observations,
    fig4_cells_to_forecast,
    fig4_workload,
    fitted_values,
    forecast_fig4,
    survey_setup,
)

KEPT = DATA / "forecasts" / "fig4.csv"


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


def test_the_kept_fit_explains_the_cells_with_named_parameters():
    setup, observations = survey_setup(), cell_observations()
    assert len(setup.parameters) <= MOST_PARAMETERS
    gpus = np.array([one.labels.gpus for one in observations])
    assert (gpus > 1).sum() == 229  # 23 of 252 are suspicious
    observed = np.array([one.value for one in observations])
    (predicted,) = predictions([one.quantity for one in observations], [fitted_values()[0]])
    errors = np.abs(predicted / observed - 1)
    assert errors[gpus > 1].mean() <= 0.02
    assert errors[gpus == 32].mean() <= 0.03
    assert errors[gpus == 1].max() <= 0.005


def test_larger_sizes_that_were_left_out_are_predicted_and_within_their_intervals():
    rows = pd.read_csv(HELD_OUT)
    rows = rows[(rows["forecast"] == "fitted") & (rows["gpus"] > GPUS_PER_NODE)]
    for gpus in GPUS[1:]:
        left_out = rows[rows["left_out"] == f"gpus {gpus}"]
        assert left_out["relative_error"].abs().mean() <= (0.04 if gpus == 32 else 0.045)
        assert left_out["observed"].between(left_out["low"], left_out["high"]).mean() >= 0.85


@pytest.mark.thorough
def test_byteschedulers_servers_are_told_from_a_queue_of_priorities_on_the_workers():
    """Published cells are those of the schedule of WFBP-PS, as `as_run` has it."""
    table = server_schedules()
    assert abs(table.loc["published", "faster (%)"]) <= 1
    errors = table["mean error (%)"].drop("published")
    assert errors.idxmin() == "as WFBP-PS"
    assert 2 * errors.min() <= errors.drop("as WFBP-PS").min()


def test_left_out_cells_are_predicted_nearly_twice_as_well_as_by_any_trivial_forecast():
    table = held_out_table()
    for label in ("gpus", "model", "network", "method"):
        errors = table.loc[label, "mean error (%)"]
        assert 1.9 * errors["fitted"] <= errors.drop("fitted").min()


def test_the_readme_quotes_the_errors_of_the_kept_fit():
    rows = residual_rows()
    error = rows.loc[rows["gpus"] > 1, "relative_error"].abs().mean()
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(survey_setup().parameters)} named parameters" in text
    assert f"with a mean error of {100 * error:.1f} %" in text


@pytest.mark.parametrize("label", ["method", "model"])
def test_nine_in_ten_cells_that_were_left_out_are_within_their_intervals(label):
    rows = pd.read_csv(HELD_OUT)
    rows = rows[(rows["forecast"] == "fitted") & rows["left_out"].str.startswith(label)]
    assert 0.86 <= rows["observed"].between(rows["low"], rows["high"]).mean() <= 0.96


def test_the_figure_says_that_its_methods_are_as_the_survey_ran_them():
    rows = forecast_fig4(("resnet50",), ("10GbE",), (8,), draws=0)
    assert rows["settings"].str.startswith(AS_RUN).all()
    assert "methods as the survey ran them" in forecast_bars(rows).get_suptitle()
    proper = forecast("resnet50", "survey-10GbE", gpus=8, draws=0)
    assert "ran them" not in forecast_bars(proper).get_suptitle()


@pytest.mark.parametrize("unit", [SECONDS, BANDWIDTH, SHARE])
def test_intervals_that_nobody_gave_are_as_wide_as_the_survey_s_priors(unit):
    spreads = [one.spread for one in survey_setup().parameters if EFFECTS[one.effect].unit is unit]
    usual = math.exp(Z90 * float(np.median(spreads)))
    assert unit.within == pytest.approx(usual, rel=0.2)


def test_no_small_tensor_travels_alone_in_mgwfbp_as_run():
    cost = AlphaBeta(1e-9, 1e-12)  # so low a latency that the rule merges next to nothing
    for model in BATCHES:
        workload = fig4_workload(model)
        plain, run = (
            method.plan(workload, cost=cost).messages
            for method in (SURVEYED["MG-WFBP"], as_run("MG-WFBP"))
        )
        assert any(len(one.pieces) == 1 and one.elements < SMALL for one in plain)
        assert not any(len(one.pieces) == 1 and one.elements < SMALL for one in run[1:])
        sent = [[piece.gradient for one in some for piece in one.pieces] for some in (plain, run)]
        assert sent[0] == sent[1]


def test_values_of_other_parameters_are_refused(tmp_path):
    file = tmp_path / "fitted.csv"
    for text in (None, "", "inside_bandwidth\n5e9\n", FITTED.read_text().splitlines()[0] + "\n"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ResultsError, match=r"fitted\.csv"):
            fitted_values(file)
    lines = FITTED.read_text().splitlines()
    file.write_text("\n".join([lines[0], "x" + lines[1], *lines[2:]]))
    with pytest.raises(ResultsError, match=r"line 2 .*again: ddlnb cluster fit survey --write"):
        fitted_values(file)


def test_no_more_draws_are_taken_than_the_fit_left():
    with pytest.raises(InputError, match="draws 100000 must be at most 300"):
        forecast_fig4(draws=100_000)


def test_mgwfbp_plans_by_the_table_of_its_number_of_workers():
    """With the constants for 8 workers there would be as many messages on 32 as there are on 8."""
    counts = {
        cell.cluster.workers: len(cell.plan.messages)
        for cell in fig4_cells_to_forecast(("resnet50",), ("10GbE",))
        if cell.method.name == "MG-WFBP"
    }
    assert 2 * counts[32] < counts[8]


def test_a_cluster_of_today_has_nothing_of_the_scripts_that_the_survey_ran():
    for name in CLUSTERS.values():
        cluster = get_cluster(name)
        assert cluster.planning is None
        assert cluster.effects.scheduler_latency == 0
        assert cluster.effects.parallel_factor == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_testbed_with_another_network_is_found_again(tmp_path):
    """Cells as a testbed would give them whose 10GbE has 0.8 of the fitted bandwidth.

    One model, two networks, and the methods of few messages: all of them take minutes.
    """
    fitted = fitted_values()[0]
    names = [parameter.name for parameter in fitted.parameters]
    changed = list(fitted.values)
    changed[names.index("between_bandwidth@10GbE")] *= 0.8
    cells = fig4_cells_to_forecast(
        ("resnet50",), ("10GbE", "100GbE"), gpus=(4, 8, 32), values=fitted.at(changed)
    )
    cells = [cell for cell in cells if not cell.method.name.startswith("ByteScheduler")]
    lines = ["model,local_batch,network,method,gpus,throughput_samples_per_s,std,source"]
    for cell, found in zip(cells, steady_seconds(cells), strict=True):
        model, batch = cell.workload.model, cell.workload.local_batch
        key = f"{model},{batch},{cell.cluster.network},{cell.method.name},{cell.cluster.workers}"
        lines.append(f"{key},{cell.samples / found.iteration_seconds},,published")
    lines += [line for line in FIG4_CELLS.read_text().splitlines() if ",single,1," in line]
    (tmp_path / "cells.csv").write_text("\n".join(lines) + "\n")
    found = calibrate_survey(cells=tmp_path / "cells.csv")
    value = found.value_of["between_bandwidth@10GbE"]
    assert value == pytest.approx(changed[names.index("between_bandwidth@10GbE")], rel=0.03)
    assert found.median_error < 0.005


def test_networks_do_not_matter_inside_one_node():
    cells = fig4_cells_to_forecast(gpus=(4,))
    seconds = {
        (cell.workload.model, cell.method.name, round(found.iteration_seconds, 12))
        for cell, found in zip(cells, steady_seconds(cells), strict=True)
    }
    assert len(seconds) == 3 * len(SURVEYED)


def test_methods_as_run_differ_only_where_the_scripts_do():
    for name, method in SURVEYED.items():
        differs = name.startswith(("ByteScheduler", "MG-WFBP"))
        assert (as_run(name) != method) == differs
    a2a, ps = as_run("ByteScheduler-A2A"), as_run("ByteScheduler-PS")
    assert (a2a.partition_bytes, a2a.credit_bytes) == (16_000_000, 64_000_000)
    plan = ps.plan(fig4_workload("resnet50"), servers=2)
    assert (plan.order, plan.gate, plan.method) == (Order.LISTED, Gate.ALL_LAYERS, ps.name)
