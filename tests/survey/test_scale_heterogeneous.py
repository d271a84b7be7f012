"""The notebook on unlike GPUs: sentences count what its tables hold."""

import pandas as pd

from ddlnb.survey.scale_heterogeneous import by_ratio, executed_findings, forecast_findings, ways_of


def test_equal_shares_gain_nothing_from_faster_gpus_and_sentences_name_gain_and_ratio():
    ratios = by_ratio([1, 2, 4], 2, 64)
    equal = ratios[ratios["way"] == "equal shares"].set_index("ratio")
    rates = equal["samples_per_second"]
    assert rates[1] == rates[2] == rates[4]  # BSP: the slowest worker decides
    by_speed = ratios[ratios["way"] == "shares by speed"].set_index("ratio")
    assert by_speed.loc[1, "samples_per_second"] == rates[1]
    assert by_speed["gain"].is_monotonic_decreasing
    assert (by_speed["of_all"] < 1).all()
    table = ways_of({"A100": 2, "V100": 2}, 64)
    rate = table.set_index("way")["samples_per_second"]
    said = forecast_findings(table, ratios)
    assert f"train {rate['shares by speed'] / rate['equal shares']:.2f} times" in said
    assert f"from {equal.index[equal['gain'] < 1].min():g} times the speed on" in said
    assert "At none of these" in forecast_findings(table, ratios.assign(gain=2.0))


def test_the_sentence_on_ranks_names_the_largest_errors():
    rows = pd.DataFrame(
        {
            "forecast_seconds": [1.0, 0.9],
            "seconds": [1.0, 1.0],
            "trivial_seconds": [0.5, 0.8],
            "gradient_error": [1e-16, 3e-16],
        }
    )
    said = executed_findings(rows)
    assert "off by 5.0% in the median and 10.0% at most" in said
    assert "off by 35.0% and 50.0%" in said
    assert "by 3e-16 of the largest" in said
