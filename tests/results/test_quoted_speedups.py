"""The speed-ups that the text quotes, beside those of tidy rows."""

from __future__ import annotations

import pytest

from ddlnb.results.published import quotes
from ddlnb.results.quoted_speedups import QUOTED_SPEEDUPS, beside_quotes
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
    assert set(table.loc[table["GPUs"] == 4, "the fit"]) == {"has seen it"}


def test_a_panel_has_only_its_own_quotes():
    rows = forecasts()
    panel = rows[(rows["model"] == "resnet50") & (rows["network"] == "10GbE")]
    assert beside_quotes(panel)["GPUs"].tolist() == [4]
    assert beside_quotes(panel.iloc[:0]).empty
