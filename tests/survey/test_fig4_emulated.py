"""The three views of a cell: with what settings probes and compared runs are measured."""

import pandas as pd

from ddlnb.survey import simulated_here as comparison
from ddlnb.survey.fig4_emulated import three_views


def test_only_the_compared_runs_warm_up_as_long_as_was_asked(monkeypatch, tmp_path):
    found = {}

    def instead_of(name, answer):
        def called(*_, settings, **rest):
            found[name] = settings
            return answer

        monkeypatch.setattr(comparison, name, called)

    instead_of("micro_benchmark", "probed")
    instead_of("measure_and_forecast", pd.DataFrame({"model": ["small-conv"]}))
    monkeypatch.setattr(comparison, "calibrate_here", lambda probed: (None, []))
    profiles = ["small-conv_b64_cpu-1thread"]
    three_views(tmp_path, "1GbE", profiles, workers=[2], scale=0.4, iterations=1, warmup=1)
    probes, compared = found["micro_benchmark"], found["measure_and_forecast"]
    assert probes.warmup == comparison.WARMUP > compared.warmup == 1
    assert (compared.iterations, compared.site.scale) == (1, 0.4)
