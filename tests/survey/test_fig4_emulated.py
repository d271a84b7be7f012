"""The three views of a cell: with what settings probes and compared runs are measured."""

from unittest.mock import Mock

import pandas as pd

from ddlnb.survey import simulated_here as comparison
from ddlnb.survey.fig4_emulated import three_views


def test_only_the_compared_runs_warm_up_as_long_as_was_asked(monkeypatch, tmp_path):
    probing = Mock(return_value="probed")
    comparing = Mock(return_value=pd.DataFrame({"model": ["small-conv"]}))
    monkeypatch.setattr(comparison, "micro_benchmark", probing)
    monkeypatch.setattr(comparison, "measure_and_forecast", comparing)
    monkeypatch.setattr(comparison, "calibrate_here", lambda probed: (None, []))
    profiles = ["small-conv_b64_cpu-1thread"]
    three_views(tmp_path, "1GbE", profiles, workers=[2], scale=0.4, iterations=1, warmup=1)
    probes, compared = (one.call_args.kwargs["settings"] for one in (probing, comparing))
    assert probes.warmup == comparison.WARMUP > compared.warmup == 1
    assert (compared.iterations, compared.site.scale) == (1, 0.4)
