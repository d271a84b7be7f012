"""Published runs of compressors, forecast with compressors and tasks left out."""

import pytest

from ddlnb.training.cost import published


def off(rows, column):
    return (rows[column] / rows["measured"] - 1).abs().groupby(rows["source"]).median()


@pytest.mark.slow
def test_forecasts_of_runs_left_out_twice_are_twice_as_near_as_dense_rates():
    rows = published.forecasts()
    times = rows.groupby(["run", "measured"])["source"].agg(set)
    assert (times.str.len() == 2).all()
    assert (off(rows, "forecast") < 0.5 * off(rows, "trivial")).all()
    inside = rows["measured"].between(rows["low"], rows["high"]).groupby(rows["source"]).mean()
    assert inside.between(0.8, 0.97).all()


def test_a_method_without_a_counterpart_is_no_compressor():
    assert published.compressor_of("inceptionn", float("nan")) is None
    assert str(published.compressor_of("topk", 0.5)) == "top-k(0.5)"
    assert published.compressor_of("8bit", float("nan")).payload_bytes(1000) == 1004
