"""What the notebooks ask of the forecasts of Fig. 4: quotes, errors by cell, claims."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ddlnb.calibration.testbed import BATCHES, CLUSTERS
from ddlnb.plans.methods import METHODS
from ddlnb.results.claims import CLAIMS
from ddlnb.results.published import FIG4_KEY, quotes
from ddlnb.studies import fig4_forecast, sec4_2_findings

RATE = fig4_forecast.RATE


def forecasts(gpus: tuple[int, ...] = (4, 8, 32)) -> pd.DataFrame:
    """All panels; a method farther down the list is slower, BERT-Large the slowest model."""
    lines = [
        {"model": model, "local_batch": batch, "network": network, "method": name, "gpus": count}
        | {"speedup": count * (0.95 - 0.1 * place) * (1 - 0.2 * rank)}
        for rank, (model, batch) in enumerate(BATCHES.items())
        for network in CLUSTERS
        for count in gpus
        for place, name in enumerate(METHODS)
    ]
    frame = pd.DataFrame(lines).assign(source="simulated", machine="twin", chance_best=math.nan)
    rate = 100 * frame["speedup"]
    return frame.assign(**{RATE: rate, "low": 0.9 * rate, "high": 1.1 * rate})


def cells(factor: float = 1.05) -> pd.DataFrame:
    found = forecasts((4, 8))[[*FIG4_KEY, RATE]].astype({"gpus": float})
    found[RATE] *= factor
    return found.assign(std=math.nan, source="published")


def test_every_quoted_speed_up_of_the_text_is_there_once():
    printed = {(q.id, q.item) for key in ("A40", "A41", "A42", "A43") for q in quotes()[key]}
    assert {(quote.id, quote.item) for quote in fig4_forecast.QUOTED} == printed
    assert len(fig4_forecast.QUOTED) == len(printed)
    assert all(quote.value > 1 for quote in fig4_forecast.QUOTED)


def test_a_quote_stands_beside_the_best_method_of_its_cells():
    table = fig4_forecast.quotes_beside(forecasts())
    assert list(table.index) == ["A40", "A40", "A41", "A41", "A42"]
    first = table.iloc[0]
    assert (first["best_method"], first["published"]) == ("BSP-PS", 4.0)
    assert first["simulated"] == pytest.approx(0.95 * 4)
    assert first["difference_percent"] == pytest.approx(-5)


def test_quotes_of_more_than_one_node_were_never_fitted():
    table = fig4_forecast.quotes_beside(forecasts())
    assert set(table.loc[table["gpus"] == 32, "the_fit"]) == {"has not seen it"}
    assert set(table.loc[table["gpus"] == 4, "the_fit"]) == {"has seen it"}


def test_a_panel_has_only_its_own_quotes():
    rows = forecasts()
    panel = rows[(rows["model"] == "resnet50") & (rows["network"] == "10GbE")]
    assert fig4_forecast.quotes_beside(panel)["gpus"].tolist() == [4]
    assert fig4_forecast.quotes_beside(panel.iloc[:0]).empty


def test_errors_join_the_cells_that_both_have():
    errors = fig4_forecast.errors_by_cell(forecasts(), cells())
    assert len(errors) == len(cells())
    assert errors["relative_error"].tolist() == pytest.approx([1 / 1.05 - 1] * len(errors))
    assert errors["in_interval"].all()
    assert "mean absolute error 4.8%" in fig4_forecast.about_errors(errors)
    assert not fig4_forecast.errors_by_cell(forecasts(), cells(2.0))["in_interval"].any()


def test_without_published_cells_no_error_is_claimed():
    errors = fig4_forecast.errors_by_cell(forecasts(), cells().iloc[:0])
    assert errors.empty
    assert "cannot be told" in fig4_forecast.about_errors(errors)


def test_single_gpu_rows_follow_from_throughput_and_speed_up():
    rows = sec4_2_findings.with_single(forecasts())
    alone = rows[rows["method"] == "single"]
    assert len(alone) == len(BATCHES) * len(CLUSTERS)
    assert alone[RATE].tolist() == pytest.approx([100.0] * len(alone))
    assert set(alone["gpus"]) == {1}
    assert len(rows) == len(forecasts()) + len(alone)


def test_every_claim_is_judged_or_says_why_not():
    found = sec4_2_findings.verdicts(forecasts(), published=cells().iloc[:0])
    assert list(found) == ["simulated"]
    assert list(found["simulated"]["claim"]) == list(CLAIMS)
    counts = sec4_2_findings.count_of(found["simulated"])
    assert counts["not judged"] == 1  # A57, for want of a second batch
    assert sum(counts.values()) == len(CLAIMS)
    table = sec4_2_findings.verdicts_table(found)
    assert table.loc["A57", ("simulated", "verdict")] == "not judged"
    assert "second local_batch" in sec4_2_findings.against(found).loc["A57", "is"]


def test_a_larger_batch_judges_its_claim_and_no_other():
    larger = forecasts().query("model == 'bert-large'").assign(local_batch=128)
    larger = larger.assign(speedup=larger["speedup"] * 1.2, **{RATE: 5 * larger[RATE]})
    before = sec4_2_findings.verdicts(forecasts())["simulated"].set_index("claim")
    after = sec4_2_findings.verdicts(forecasts(), larger)["simulated"].set_index("claim")
    assert after.loc["A57", "holds"] is True
    assert after.drop("A57").equals(before.drop("A57"))


def test_the_failing_cells_are_those_that_the_verdicts_count():
    found = sec4_2_findings.verdicts(forecasts())["simulated"].set_index("claim")
    failing = sec4_2_findings.failing_cells(forecasts())
    fails = found[[holds is False for holds in found["holds"]]]
    assert len(fails) > 2
    counted = failing.groupby("claim").size()
    expected = ((1 - fails["share"]) * fails["cells"]).round()
    assert counted.to_dict() == expected.to_dict()
    places = sec4_2_findings.where(failing)
    assert places["model"].sum(axis=1).to_dict() == expected.to_dict()
    assert sec4_2_findings.where(failing.iloc[:0]).empty


def test_published_cells_are_judged_beside_the_forecasts():
    found = sec4_2_findings.verdicts(forecasts(), published=cells())
    assert list(found) == ["simulated", "published"]
    table = sec4_2_findings.verdicts_table(found)
    assert set(table["published"]["verdict"]) == {"holds", "fails", "not judged"}
    assert (table["published"]["cells"] <= table["simulated"]["cells"]).all()


def test_best_speed_ups_keep_the_order_of_the_figure():
    best = sec4_2_findings.best_speedups(forecasts())
    assert list(best.index) == list(CLUSTERS)
    assert list(best.columns) == list(BATCHES)
    assert best.loc["10GbE", "resnet50"] == pytest.approx(0.95 * 32)


def test_four_gpus_on_nvlink_scale_better_at_the_large_batch():
    rows = fig4_forecast.forecast_nvlink()
    assert set(rows["gpus"]) == {4}
    assert set(rows["method"]) == {m.name for m in METHODS.values() if m.architecture == "A2A"}
    small = fig4_forecast.forecast_nvlink(8)
    assert (rows["speedup"] > small["speedup"]).all()
    quoted = fig4_forecast.quotes_beside(rows)
    assert list(quoted.index) == ["A43"]
    assert quoted.loc["A43", "the_fit"] == "has not seen it"
