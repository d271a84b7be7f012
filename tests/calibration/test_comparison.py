"""Forecasts beside measurements: whose rows are compared, and what is said of the errors."""

import pandas as pd
import pytest

from ddlnb.survey.simulated_here import error_sentence, error_table, forecast_errors


def rows(source: str, rate: float, **changes: object) -> dict[str, object]:
    return {
        "model": "small-conv",
        "gpus": 2,
        "method": "MG-WFBP",
        "engine": "torch",
        "source": source,
        "throughput_samples_per_s": rate,
        "iteration_seconds": 100 / rate,
        "std": 2.0,
        "low": 0.9 * rate,
        "high": 1.1 * rate,
        **changes,
    }


def test_a_forecast_is_compared_with_our_engine_and_its_error_is_said():
    errors = forecast_errors(
        pd.DataFrame(
            [
                rows("measured", 100.0),
                rows("measured", 60.0, engine="horovod"),
                rows("simulated", 80.0),
            ]
        )
    )
    assert errors["error"].tolist() == pytest.approx([0.25])
    assert errors["inside"].tolist() == [False]
    table = error_table(errors)
    assert table.loc[("small-conv", 2, "MG-WFBP"), "measured (ms)"] == 1000.0
    assert table["error (%)"].tolist() == [25.0]
    assert error_sentence(errors) == (
        "Over 1 cells the median error of the seconds is 25.0% and the largest 25.0%; 0 are "
        "within 15%, and 0 measured values lie inside the 90 % interval; one run "
        "varies by 2.0% (median)."
    )
