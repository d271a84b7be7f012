"""How well the survey's testbed is predicted where it was not fitted, and by trivial forecasts.

    python -m benchmarks.held_out [--by gpus --by model ...] [--csv FILE] [--kept]

One value of the label is left out at a time: all of the figure's other cells are fitted, a minute
each, and those left out are predicted. With ``--kept`` the table of an earlier run is shown.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from ddlnb.calibration.validation import TRIVIAL_FORECASTS, cross_validate
from ddlnb.files import write_atomically
from ddlnb.survey.testbed import HELD_OUT, cell_observations, quoted_observations, survey_setup

LABELS = ("gpus", "model", "network", "method")


def held_out(by: list[str]) -> pd.DataFrame:
    """Return a row per cell left out and forecast."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations()]
    rows = [
        asdict(row)
        for label in by
        for row in cross_validate(
            observations,
            setup.parameters,
            label,
            trivial=TRIVIAL_FORECASTS,
            robust=True,
            progress=True,
        )
        if row.method is not None  # a cell
    ]
    return pd.DataFrame(rows)


def main() -> None:
    """Print mean and median errors, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--by", action="append", choices=LABELS, help="label to leave out by")
    parser.add_argument("--csv", type=Path, default=HELD_OUT, help="where the rows are kept")
    parser.add_argument("--kept", action="store_true", help="show the rows that are there")
    asked = parser.parse_args()
    if not asked.kept:
        rows = held_out(asked.by or list(LABELS))
        write_atomically(asked.csv, rows.to_csv(index=False, float_format="%.6g"))
    from ddlnb.survey.calibration import held_out_table

    print(held_out_table(asked.csv).to_string())


if __name__ == "__main__":
    main()
