"""Cross-validation: nothing that repeats a tested row is fitted, and forecasts are compared."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.held_out import cross_validate, folds_of
from ddlnb.calibration.clusters import calibrate_parameters
from ddlnb.calibration.observations import HopTime, IterationTime, observe
from ddlnb.calibration.validation import (
    TRIVIAL_FORECASTS,
    ablation,
    linear_scaling,
    ring_scaling,
    textbook_ring,
)
from ddlnb.errors import InputError, UnknownName
from ddlnb.plans.alpha_beta import AlphaBeta
from tests.toy_clusters import (
    BANDWIDTH,
    FAST,
    FAT,
    INSIDE,
    LATENCY,
    PARAMETERS,
    SHARE,
    SLOW,
    SLOWNESS,
    THIN,
    cells,
    seen,
)

FEW = (INSIDE, SHARE, BANDWIDTH, LATENCY)
ROWS = seen(cells(workers=(2, 4)))


@pytest.mark.parametrize("by", ["model", "network", "method", "gpus", "group"])
def test_no_group_is_both_tested_and_fitted(by):
    folds = folds_of(ROWS, by)
    assert len(folds) >= 2
    for fold in folds:
        tested = {row.labels.group for row in fold.tested}
        fitted = {row.labels.group for row in fold.fitted}
        assert tested
        assert not tested & fitted
    tested = [row for fold in folds for row in fold.tested]
    between = [row for row in ROWS if row.labels.gpus == 4]
    assert len(tested) == len(between if by == "network" else ROWS)


def test_rows_within_a_node_use_no_network_and_are_fitted_whichever_is_left_out():
    slow = next(fold for fold in folds_of(ROWS, "network") if fold.left_out == "network slow")
    assert {(row.labels.network, row.labels.gpus) for row in slow.tested} == {("slow", 4)}
    within = [row for row in ROWS if row.labels.gpus == 2]
    assert [row for row in slow.fitted if row.labels.gpus == 2] == within


@pytest.mark.thorough
def test_a_repeated_row_does_not_betray_the_one_that_is_left_out():
    # Both rows of a group are wrong alike. A fit that saw one of them would predict the other.
    wrong = [
        replace(row, value=row.value * 3) if row.labels.group == ROWS[0].labels.group else row
        for row in ROWS
    ]
    inside = replace(INSIDE, of=("thin",))
    rows = cross_validate(wrong, [inside], "group")
    errors = [row["relative_error"] for row in rows if row["group"] == ROWS[0].labels.group]
    assert len(errors) == 2
    assert max(errors) < -0.6


def test_rows_without_the_label_are_always_fitted():
    hop = observe(HopTime(SLOW, 1e6), 1e-3, 0.1, "measured")
    for fold in folds_of([*ROWS, hop], "model"):
        assert hop in fold.fitted
        assert hop not in fold.tested


def test_what_is_left_out_is_predicted_and_compared_with_trivial_forecasts():
    rows = cross_validate(ROWS, PARAMETERS, "gpus", trivial=TRIVIAL_FORECASTS)
    assert len(rows) == 4 * len(ROWS)
    found = pd.DataFrame(rows)
    grouped = found.assign(error=found["relative_error"].abs()).groupby(["forecast", "gpus"])
    counts, means = grouped["error"].count(), grouped["error"].mean()
    assert counts["linear scaling", 2] == 0
    assert counts["linear scaling", 4] == 12
    assert means["fitted", 2] < means["textbook ring", 2] / 5
    assert means["fitted", 4] < means["ring scaling", 4] / 2
    with pytest.raises(UnknownName, match="unknown label 'gpu'"):
        cross_validate(ROWS, FEW, "gpu")


def test_nothing_left_to_fit_is_refused():
    alike = seen(cells(workers=(4,), methods=("BSP-A2A",), workloads=(FAT,), clusters=(FAST,)))
    with pytest.raises(InputError, match="without network fast no observation is left"):
        cross_validate(alike, [INSIDE], "network")


def test_the_effect_that_takes_most_time_matters_most():
    found = calibrate_parameters(seen(cells(workers=(2, 4), clusters=(SLOW,))), PARAMETERS)
    fitted = (found.observations, found.parameter_values)
    rows = ablation(*fitted, ["between_bandwidth", "operation_latency", "inside_latency"])
    assert [row.effect for row in rows] == [
        "between_bandwidth",
        "operation_latency",
        "inside_latency",
    ]
    assert rows[0].growth > 5 * rows[1].growth > 0
    assert rows[2].growth == 0.0
    assert all(row.error == pytest.approx(found.mean_error) for row in rows)
    assert all(np.mean(row.growths) == pytest.approx(row.growth) for row in rows)
    by_default = {row.effect for row in ablation(*fitted)}
    assert by_default == {parameter.effect for parameter in PARAMETERS}
    with pytest.raises(UnknownName, match="unknown effect 'between'"):
        ablation(*fitted, ["between"])


def test_the_textbook_ring_adds_computation_and_ring():
    (cell,) = cells((4,), ("WFBP-A2A",), (FAT,), (SLOW,))
    row = observe(IterationTime(cell), 1.0, 0.01, "measured")
    forecast = textbook_ring({"slow": AlphaBeta(1e-3, 1e-9)}, inside=AlphaBeta(0.0, 1e-10))
    expected = FAT.compute_seconds + 6 * (1e-3 + FAT.gradient_bytes / 4 * 1e-9)
    assert forecast(row, []) == pytest.approx(expected)
    one_node = replace(cell, cluster=SLOW.with_workers(2))
    near = forecast(observe(IterationTime(one_node), 1.0, 0.01, "measured"), [])
    assert near == pytest.approx(FAT.compute_seconds + FAT.gradient_bytes * 1e-10)
    far = replace(cell, cluster=FAST.with_workers(4))
    assert math.isnan(forecast(observe(IterationTime(far), 1.0, 0.01, "measured"), []))
    assert math.isnan(forecast(observe(HopTime(SLOW, 1e6), 1.0, 0.01, "measured"), []))


def test_scaling_starts_from_the_largest_cell_below():
    def row(workers, seconds, workload=FAT):
        (cell,) = cells((workers,), ("WFBP-A2A",), (workload,), (SLOW,))
        return observe(IterationTime(cell), seconds, 0.01, "measured")

    asked, before = row(8, 9.0), [row(2, 0.3), row(4, 0.5), row(8, 9.0), row(4, 7.0, THIN)]
    assert linear_scaling(asked, before) == 0.5
    grown = FAT.compute_seconds + (0.5 - FAT.compute_seconds) * (14 / 8) / (6 / 4)
    assert ring_scaling(asked, before) == pytest.approx(grown)
    assert math.isnan(linear_scaling(row(2, 1.0), before[1:]))
    assert math.isnan(ring_scaling(asked, []))


def test_parameters_of_one_model_say_nothing_of_another():
    slowness = replace(SLOWNESS, prior=1.0, prior_spread=0.05)
    rows = cross_validate(ROWS, [*FEW, slowness], "model")
    fat = [row["relative_error"] for row in rows if row["model"] == "fat"]
    assert np.median(fat) < -0.05  # its computation takes 1.2 of the profile, which nobody knew
