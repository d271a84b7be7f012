"""A batch and layers shared among ranks slowed on purpose, forecast before it is executed.

python -m benchmarks.unlike_ranks --out FOLDER [--kept] [--rounds 3]

Two ranks are 2.5 times as fast as two others, as an A100 is beside a V100 by data sheet in fp16
(312 and 125 TFLOP/s). Exchanges are measured, ways are forecast, then executed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ddlnb.files import provenance
from ddlnb.launch.ranks import Ranks
from ddlnb.parallelism.executed.slowed import SPEEDS, unlike_rows


def measured(rounds: int) -> pd.DataFrame:
    """Return the rows of so many rounds on the same ranks."""
    with Ranks(len(SPEEDS)) as ranks:
        tables = [
            unlike_rows(ranks).assign(round=number, **provenance()) for number in range(rounds)
        ]
    return pd.concat(tables, ignore_index=True)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return medians by way, in the order of the rows."""
    columns = ["trivial_seconds", "forecast_seconds", "seconds", "off", "gradient_error"]
    return rows.groupby(["way", "shares"], sort=False)[columns].median().reset_index()


def sentence(rows: pd.DataFrame) -> str:
    """Return how far off forecasts are, beside the trivial one."""
    off = (rows["forecast_seconds"] / rows["seconds"] - 1).abs()
    trivial = (rows["trivial_seconds"] / rows["seconds"] - 1).abs()
    return (
        f"{len(rows)} runs: forecasts are off by {off.median():.1%} in the median, {off.max():.1%} "
        f"at most; adding up speeds by {trivial.median():.1%}, {trivial.max():.1%}."
    )


def main() -> None:
    """Measure into a folder, or print what is kept there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--kept", action="store_true", help="print what was measured there")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    file = options.out / "unlike_ranks.csv"
    if not options.kept:
        options.out.mkdir(parents=True, exist_ok=True)
        measured(options.rounds).to_csv(file, index=False)
    rows = pd.read_csv(file)
    print(summary(rows).round({"off": 3}).to_string(index=False))
    print(sentence(rows))


if __name__ == "__main__":
    main()
