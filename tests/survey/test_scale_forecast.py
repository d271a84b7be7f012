"""Forecasts of left-out runs are as near as is said, beat the trivial ones, and rows are kept."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.scale_validation import cross_validate, folds
from ddlnb.parallelism.forecast.published import observed
from ddlnb.survey import scale_forecast as study


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return study.left_out()


def test_every_kind_of_left_out_run_is_forecast_near_as_no_trivial_forecast_is(rows: pd.DataFrame):
    ours = study.score_table(rows).xs("ours", level="forecast")
    assert (ours["median error (%)"] < 5.2).all()
    assert (ours["within 20 % (%)"] > 85).all()
    assert (ours["picked of best (%)"] > 80).all()
    assert ours["in the interval (%)"].between(85, 95).all()
    assert (ours["error of memory (%)"] < 10).all()
    assert (ours["said to fit (%)"] > 97).all()
    medians = study.errors_by_degree(rows).pivot(
        index=["kind", "left_out"], columns="forecast", values="median"
    )
    beaten = medians["constant MFU"] / medians["ours"]
    assert (beaten > 1.35).all()
    assert (beaten.drop(("pp", "pp 16")) > 4).all()  # 18 runs with few layers per stage
    assert (medians["nearest neighbour"] > 2 * medians["ours"]).all()


def test_the_chance_of_slow_runs_decides_which_layout_is_picked(rows: pd.DataFrame) -> None:
    slow = study.slow_runs(rows)["picked of best (%)"]
    assert slow["ours"] > slow["ours, never slow"] + 5
    assert "Without the chance of slow runs" in study.findings_of(rows)


def test_the_map_has_the_best_layout_and_the_table_units_and_meanings():
    ranking = study.ranked("llama3-8b", "H100", 2, 4096)
    rates = study.rates_by_split(ranking)
    assert np.nanmax(rates.to_numpy()) == ranking.rows(1)[0]["tokens_per_s_per_gpu"]
    assert len(study.best_layouts(ranking, 3)) == 3
    table = study.parameter_table()
    assert len(table) == 25
    assert (table[["unit", "meaning"]] != "").all(axis=None)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_kept_rows_are_what_cross_validation_gives(rows: pd.DataFrame) -> None:
    """All folds are there, with as many rows of every forecast; one of each kind is fitted."""
    runs = observed()
    every = list(folds(runs))
    kept = rows[rows["forecast"] == "ours"]
    assert kept.groupby(["kind", "left_out"])["run"].apply(list).to_dict() == {
        (fold.kind, fold.left_out): np.flatnonzero(fold.test).tolist() for fold in every
    }
    assert set(rows["forecast"].value_counts()) == {len(kept)}
    again = pd.DataFrame(cross_validate(runs, {fold.kind: fold for fold in every}.values()))
    name = ["kind", "left_out", "forecast", "run"]
    both = again.merge(rows, on=name, validate="one_to_one", suffixes=("", "_kept"))
    assert len(both) == len(again)
    ours = both[both["forecast"] == "ours"]
    ratio = ours["tokens_per_s_per_gpu"] / ours["tokens_per_s_per_gpu_kept"]
    assert (np.abs(ratio - 1) < 0.02).mean() > 0.95
