"""Searched plans beside the seven: tables and sentences say what the searches found."""

import pytest

import ddlnb
from ddlnb.calibration.statistics import Verdict
from ddlnb.plans.methods import SURVEYED
from ddlnb.survey.sec5_4_schedule import beside, search_findings, search_table, searches

CELL = ("bert-large", "survey-100GbIB")


@pytest.mark.item("A63", how="simulated")
def test_no_searched_plan_is_slower_than_the_seven_or_below_its_bound():
    found = searches(["resnet50", "bert-large"], ["survey-100GbIB"], 32, most_plans=60)
    rows = search_table(found)
    assert (rows["faster"] >= 1).all()
    assert (rows["faster"] > 1.03).any()
    assert (rows["searched_ms"] >= rows["bound_ms"]).all()
    forecast = ddlnb.forecast(*CELL, gpus=32, draws=0)
    forecast = forecast[forecast["method"].isin(SURVEYED)]
    best = forecast.loc[forecast["iteration_seconds"].idxmin()]
    row = rows.set_index("model").loc["bert-large"]
    assert row["best_ms"] == pytest.approx(1e3 * best["iteration_seconds"])
    assert row["best of the seven"] == best["method"]
    assert search_findings(rows).items[0].verdict is Verdict.HOLDS
    slower = rows.assign(faster=[0.9, 1.2])
    assert search_findings(slower).items[0].verdict is Verdict.CONTRADICTED
    assert "1 of 2 cells" in search_findings(slower)
    lines = beside(found, *CELL, 32, ["MG-WFBP"])
    assert list(lines) == ["MG-WFBP", "searched"]
    seconds = found[CELL].iteration_seconds
    assert lines["searched"].iteration_seconds == pytest.approx(seconds, rel=1e-6)
