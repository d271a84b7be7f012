"""The README quotes how far forecasts of this machine are off: when it is quiet, and under load."""

import pytest

from benchmarks.simulated_here import BUSY, KEPT, kept_errors
from ddlnb.calibration.calibrated_model import saved_loads
from ddlnb.files import ROOT

README = " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", [KEPT, BUSY], ids=["quiet", "busy"])
def test_the_errors_that_are_quoted_are_those_of_the_kept_runs(folder):
    errors = kept_errors(folder)
    quoted = f"{100 * errors['error'].abs().median():.1f} %"
    assert quoted in README
    assert errors["inside"].mean() > 0.8


def test_the_load_that_is_quoted_is_the_one_that_was_seen():
    ((_, load),) = [kept for kept in saved_loads(BUSY) if kept[0] == "compared.csv"]
    assert load.is_busy
    assert load.during == pytest.approx(4 / 5, abs=0.03)
    assert "other work on four fifths of the cores" in README
