"""The three views of a cell: with what settings probes and compared runs are measured."""

from __future__ import annotations

import pandas as pd

from ddlnb.calibration import comparison
from ddlnb.survey.fig4_emulated import three_views


def test_only_the_compared_runs_warm_up_as_long_as_was_asked(monkeypatch, tmp_path):
    found = {}

    def probed(folder, *, settings, **rest):
        found["probes"] = settings
        return "probed"

    def compared(clusters, folder, *, settings, **rest):
        found["compared"] = settings
        return pd.DataFrame({"model": ["small-conv"]})

    monkeypatch.setattr(comparison, "micro_benchmark", probed)
    monkeypatch.setattr(comparison, "calibrate_here", lambda probed: (None, []))
    monkeypatch.setattr(comparison, "measure_and_forecast", compared)
    profiles = ["small-conv_b64_cpu-1thread"]
    three_views(tmp_path, "1GbE", profiles, workers=[2], scale=0.4, iterations=1, warmup=1)
    assert found["probes"].warmup == comparison.WARMUP > found["compared"].warmup == 1
    assert found["compared"].iterations == 1
    assert found["compared"].site.scale == 0.4
