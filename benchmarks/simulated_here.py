"""Forecasts of this machine's twin beside measurements, from a folder that keeps both.

    python -m benchmarks.simulated_here [data/measured/2026-11-21_two-cores_loopback]

Runs nothing: it fits the twin to the kept micro-benchmark and forecasts the kept runs. To measure
this machine: ddlnb cluster fit here, and the notebook simulated_here.
"""

from pathlib import Path

import pandas as pd

from benchmarks.command import command
from ddlnb.calibration.calibrated_model import calibrate_here, load_sentence, read_micro_benchmark
from ddlnb.files import DATA
from ddlnb.survey.simulated_here import forecast_errors, saved_comparison

KEPT = DATA / "measured" / "2026-11-21_two-cores_loopback"
BUSY = DATA / "measured" / "2026-11-22_two-cores_busy"


def kept_errors(folder: str | Path) -> pd.DataFrame:
    """Return the `forecast_errors` of the runs that a folder keeps, by a twin fitted to it."""
    _, clusters = calibrate_here(read_micro_benchmark(folder))
    return forecast_errors(saved_comparison(clusters, folder, draws=50))


def main(folder: Path = KEPT) -> None:
    """Print the table and its summary."""
    errors = kept_errors(folder)
    print(errors.round(3).to_string(index=False))
    size = errors["error"].abs()
    print(f"\n{load_sentence(folder)}")
    print(
        f"{len(errors)} cells: median error {size.median():.1%}, within 15 %: "
        f"{(size <= 0.15).sum()}, largest {size.max():.1%}; median noise of one run "
        f"{errors['noise'].median():.1%}; inside the 90 % interval: {errors['inside'].mean():.0%}"
    )


if __name__ == "__main__":
    command(main)
