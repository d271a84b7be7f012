"""A large model step by step: memory by its layers, parts that add up, papers left unseen."""

import numpy as np
import pandas as pd
import pytest

import ddlnb
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.published import PAPERS, observed
from ddlnb.survey import scale_case_study as study
from ddlnb.survey.scale_case_study import yield_sentences


def test_parts_of_the_time_add_up_to_the_forecast_step():
    ranking = ddlnb.scale("llama3-70b", "H100", 64, framework="nanotron")
    table, rows = study.time_table(ranking, 5), ranking.rows(5)
    assert list(table.index) == [row["layout"] for row in rows]
    best = pd.DataFrame(rows, table.index)
    assert (table["slow"] > 1e-9).tolist() == (best["chance_of_slow"] > 0).tolist()
    assert table["seconds"].tolist() == pytest.approx(best["seconds"].tolist())
    rates = best["tokens_per_s_per_gpu"].tolist()
    assert table["tokens_per_second"].tolist() == pytest.approx(rates)


def test_a_month_yields_throughput_times_goodput_and_sentences_name_the_cheapest():
    table = study.yield_table("llama3-70b", "H100", [64], [0, 1], 2.0, draws=20)
    one = table.iloc[0]
    month = 30 * 24 * 3600
    assert one["billion_tokens"] == pytest.approx(
        one["tokens_per_s_per_gpu"] * 512 * one["goodput"] * month / 1e9
    )
    paid = (512 + 8 * one["spare_nodes"]) * 2.0 * month / 3600
    assert one["cost_per_billion"] == pytest.approx(paid / one["billion_tokens"])
    assert one["billion_low"] < one["billion_tokens"] < one["billion_high"]
    assert one["cost_low"] < one["cost_per_billion"] < one["cost_high"]
    row = {
        "gpus": 512, "goodput": 0.9, "failures": 9.0, "spare_nodes": 1, "elastic": True,
        "billion_tokens": 600.0, "billion_low": 300.0, "billion_high": 700.0,
        "days_per_trillion": 50.0,
        "cost_per_billion": 1000.0, "cost_low": 900.0, "cost_high": 2000.0,
    }  # fmt: skip
    smaller = row | {"gpus": 128, "cost_per_billion": 750.0, "days_per_trillion": 170.0}
    said = yield_sentences(pd.DataFrame([row, smaller]), 512)
    assert "1 spare node and elastic training" in said[0]
    assert "600 billion tokens in a month (300 to 700), 140 in a week" in said[1]
    assert said[-1].startswith("They are cheapest on 128 GPUs, 25% less")
    assert len(yield_sentences(pd.DataFrame([row]), 512)) == 3


@pytest.mark.thorough
def test_published_runs_are_forecast_by_fits_that_have_not_seen_their_paper():
    runs = study.published_runs()
    assert len(runs) == len(observed(PAPERS))
    seen = forecast(observed(PAPERS).cases).tokens_per_s_per_gpu
    assert runs["fitted"].to_numpy() == pytest.approx(seen)
    assert (runs.groupby("left_out")["constant"].count() == [10, 8, 24]).all()
    off = (runs["tokens_per_s_per_gpu"] / runs["measured"] - 1).abs()
    trivial = (runs["constant"] / runs["measured"] - 1).abs()
    assert off.median() < 0.12
    assert off.median() < trivial.median() / 2
    by_paper = off.groupby(runs["left_out"]).median()
    kept = (runs["fitted"] / runs["measured"] - 1).abs().groupby(runs["left_out"]).median()
    assert (by_paper > kept - 0.01).all()  # unseen is no easier than seen


@pytest.mark.item("D06", "D07")
def test_days_of_training_are_those_of_the_formula():
    table = study.training_days()
    assert table["formula"].to_numpy() == pytest.approx([33.9, 83.2], rel=0.01)
    assert table["layers"].to_numpy() == pytest.approx(table["published"], rel=0.03)
    last = table.iloc[-1]
    assert last["petaflops"] == pytest.approx(500.7, abs=0.1)
    assert last["share"] == pytest.approx(0.52, abs=0.005)
    assert np.isfinite(table["forecast"]).all()
    assert (table["forecast"] < 1.1 * table["published"]).all()
