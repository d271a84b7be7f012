"""A panel of Fig. 4: errors by cell, the table and the sentences."""

import pytest

from ddlnb.results.schema import RATE
from ddlnb.survey import fig4_forecast
from tests.toy_forecasts import cells, forecasts


def test_errors_join_the_cells_that_both_have_and_none_is_claimed_without_any():
    errors = fig4_forecast.errors_by_cell(forecasts(), cells())
    assert len(errors) == len(cells())
    assert errors["relative_error"].tolist() == pytest.approx([1 / 1.05 - 1] * len(errors))
    assert errors["in_interval"].all()
    assert fig4_forecast.about_errors(errors).endswith("within the 90 % interval.")
    assert "mean absolute error 4.8%" in fig4_forecast.about_errors(errors)
    assert not fig4_forecast.errors_by_cell(forecasts(), cells(2.0))["in_interval"].any()
    errors = fig4_forecast.errors_by_cell(forecasts(), cells().iloc[:0])
    assert errors.empty
    assert "are unknown" in fig4_forecast.about_errors(errors)


def test_a_panel_says_its_best_methods_and_shows_published_cells_where_there_are_any(monkeypatch):
    rows = forecasts().query("model == 'resnet50' and network == '10GbE'")
    table = fig4_forecast.forecast_table(rows)
    assert table.loc[(32, "BSP-PS"), "speed-up"] == pytest.approx(0.95 * 32)
    assert "- 32 GPUs: BSP-PS, 30.4 times one GPU." in fig4_forecast.panel_findings(rows)
    made = cells().assign(suspicious=lambda cells: cells["method"] == "BSP-A2A")
    made.loc[made["suspicious"], RATE] *= 2
    monkeypatch.setattr(fig4_forecast, "judged_cells", lambda: made)
    table = fig4_forecast.forecast_table(rows)
    assert table.loc[(4, "BSP-PS"), "error (%)"] == pytest.approx(-4.8)
    assert table.loc[(4, "BSP-A2A"), "suspicious"] == "yes"
    assert table.loc[32, "published (samples/s)"].isna().all()
    said = fig4_forecast.panel_findings(rows)
    assert "largest 52.4%; " in said
    assert "Without 2 suspicious ones the mean is 4.8%, the largest 4.8%." in said
