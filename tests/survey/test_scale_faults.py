"""The notebook on time lost: sentences count what its tables hold."""

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.parallelism.goodput.compare import goodput_table
from ddlnb.parallelism.goodput.failures import failure_records
from ddlnb.survey.scale_faults import (
    case_findings,
    cases,
    checkpoint_findings,
    effective_findings,
    effective_time,
    failure_findings,
    labels,
    left_out_failures,
)


def test_no_rate_is_forecast_by_a_fit_that_saw_its_source_and_restarts_cost_time():
    rows = left_out_failures()
    assert len(rows) == len(failure_records())
    same = rows[rows["source"].str.startswith("Revisiting")]
    per_gpu = same["forecast"] * same["gpus"]
    assert per_gpu.max() == pytest.approx(per_gpu.min())  # one fit, without all of them
    others = rows.drop(same.index)
    assert (others["forecast"] * others["gpus"]).nunique() == len(others)
    seen = rows[~rows["projected"].astype(bool)]
    assert 0 < len(seen) < len(rows)
    inside = seen["published"].between(seen["low"], seen["high"]).sum()
    assert f"{inside} of {len(seen)} lie in their 90 % intervals" in failure_findings(rows)
    rows = effective_time(failure_records()[0], [1, 10, 40])
    assert rows["share"].is_monotonic_decreasing
    assert "restarts within about 1 minutes" in effective_findings(
        rows.assign(share=[0.95, 0.85, 0.7]), 90
    )
    assert "short enough" in effective_findings(rows.assign(share=0.5), 90)


def test_every_size_gets_its_sentences_and_checkpoints_their_largest_difference():
    jobs = cases([1024, 2048], [64, 128], 0.03)
    table = goodput_table(jobs, draws=20)
    said = case_findings(jobs, table)
    assert len(labels(jobs)) == len(table) == 6
    assert "1,024 GPUs fails every" in said
    assert "2,048 GPUs fails every" in said
    rows = pd.DataFrame(
        {"interval_seconds": [60.0, 600.0], "simulated": [0.5, 0.8], "formula": [0.5, 0.82]}
    )
    assert "differ by 2.4% at most" in checkpoint_findings(rows, {"Daly": 600.0})
    with pytest.raises(InputError, match="give every job the GPUs of one copy of its model"):
        cases([1024], [64, 128], 0.03)
