"""The fit of what programs reach of data sheets: recovery, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from ddlnb.calibration.roofline import LAUNCH, MEMORY, fit_roofline, leave_out, measured
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.paths import HARDWARE
from ddlnb.workloads.roofline import efficiency_of


def test_the_fit_recovers_what_made_the_seconds():
    observations = measured()
    true = fit_roofline(observations)
    again = fit_roofline([replace(one, seconds=true.seconds(one)) for one in observations])
    for name in true.names:
        value, low, high = again.interval(name)
        assert low < true.interval(name)[0] < high, name
        if name.startswith("matrix"):
            assert value == pytest.approx(true.interval(name)[0], rel=0.05), name


def test_the_kept_numbers_are_those_of_the_fit():
    fit = fit_roofline(measured())
    kept = efficiency_of(get_gpu("A100"), "bf16")
    for name, known in (
        ("matrix units, Ampere", kept.matrix), (MEMORY, kept.memory), (LAUNCH, kept.launch),
    ):  # fmt: skip
        expected = pytest.approx((known.value, known.low, known.high), rel=0.01)
        assert fit.interval(name) == expected


def test_the_kept_rows_are_those_that_were_left_out():
    observations = [one for one in measured() if one.source != "foundry"]
    rows = pd.read_csv(HARDWARE / "roofline_left_out.csv")
    assert len(rows) == 2 * len(measured())
    fresh = pd.DataFrame(leave_out(observations))
    assert set(fresh["run"]) <= set(rows["run"])
    assert fresh["estimated_seconds"].gt(0).all()
