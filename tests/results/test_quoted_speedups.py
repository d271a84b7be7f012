"""The speed-ups that the text quotes, beside those of tidy rows."""

from __future__ import annotations

from itertools import product

import pytest

from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.published import quotes
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.published import QUOTED_SPEEDUPS, beside_quotes
from ddlnb.survey.sec4_2_findings import forecast_nvlink
from ddlnb.survey.testbed import as_run, fig4_workload
from tests.toy_forecasts import forecasts


def test_every_quoted_speed_up_of_the_text_is_there_once():
    printed = {(q.id, q.item) for key in ("A40", "A41", "A42", "A43") for q in quotes()[key]}
    assert {(quote.id, quote.item) for quote in QUOTED_SPEEDUPS} == printed
    assert len(QUOTED_SPEEDUPS) == len(printed)
    assert all(quote.value > 1 for quote in QUOTED_SPEEDUPS)


def test_a_quote_stands_beside_the_best_method_of_its_cells():
    table = beside_quotes(forecasts())
    assert list(table.index) == ["A40", "A40", "A41", "A41", "A42"]
    first = table.iloc[0]
    assert (first["best method"], first["published"]) == ("BSP-PS", 4.0)
    assert first["simulated"] == pytest.approx(0.95 * 4)
    assert first["difference (%)"] == pytest.approx(-5)


def test_quotes_of_more_than_one_node_were_never_fitted():
    table = beside_quotes(forecasts())
    assert set(table.loc[table["GPUs"] == 32, "the fit"]) == {"has not seen it"}
    assert set(table.loc[table["GPUs"] == 4, "the fit"]) == {"saw its cells"}


def test_a_panel_has_only_its_own_quotes():
    rows = forecasts()
    panel = rows[(rows["model"] == "resnet50") & (rows["network"] == "10GbE")]
    assert beside_quotes(panel)["GPUs"].tolist() == [4]
    assert beside_quotes(panel.iloc[:0]).empty


@pytest.mark.item("A40", "A41", "A42", how="simulated")
def test_forecasts_are_within_a_tenth_of_the_quoted_speed_ups():
    methods = [as_run(method) for method in SURVEYED]
    clusters = [get_cluster("survey-100GbIB", gpus) for gpus in (4, 32)]
    models = [fig4_workload(model) for model in ("resnet50", "bert-base", "bert-large")]
    cells = [Cell(*one) for one in product(models, clusters, methods)]
    table = beside_quotes(forecast_cells(cells, draws=0))
    assert list(table.index) == ["A40", "A40", "A41", "A41", "A42"]
    assert table["difference (%)"].abs().max() < 10


@pytest.mark.item("A43", how="simulated")
def test_the_forecast_for_nvlink_is_within_a_tenth_of_the_quoted_speed_up():
    table = beside_quotes(forecast_nvlink())
    assert list(table.index) == ["A43"]
    assert table["difference (%)"].abs().max() < 10
