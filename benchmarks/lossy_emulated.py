"""Forecasts of lossy methods against runs on emulated links: the error of every cell.

    python -m benchmarks.lossy_emulated [--out FOLDER] [--networks ...] [--method ...] [--kept]

For each network a twin is calibrated by lossless runs of made-up models, its iterations with each
method are forecast, and measured. Everything is kept in the folder; a second call completes it.
A figure of it is drawn into build/lossy_emulated.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ddlnb.figures import lossy_against_emulated
from ddlnb.paths import BUILD
from ddlnb.studies.emulated_lossy import (
    METHODS,
    PROFILES,
    lossy_errors,
    lossy_on_emulated,
    order_kept,
)


def main() -> None:
    """Run what is missing; print every cell, and how large errors are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=BUILD / "lossy-emulated")
    parser.add_argument("--networks", nargs="+", default=list(PROFILES))
    parser.add_argument("--method", action="append")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="run nothing, print what is kept")
    asked = parser.parse_args()
    rows = lossy_on_emulated(
        asked.out,
        asked.networks,
        asked.method or METHODS,
        workers=asked.workers,
        repetitions=asked.repetitions,
        only_kept=asked.kept,
        progress=True,
    )
    errors = lossy_errors(rows)
    BUILD.mkdir(parents=True, exist_ok=True)
    lossy_against_emulated(rows).savefig(BUILD / "lossy_emulated.png", dpi=110)
    print(f"{rows['workers'].iloc[0]} workers, emulated on {rows['machine'].iloc[0]}")
    print(errors.round(3).to_string(index=False))
    size = errors["error"].abs()
    print(
        f"forecast against emulated: median error {size.median():.1%}, within 10 %: "
        f"{(size <= 0.1).sum()} of {len(size)}, within 25 %: {(size <= 0.25).sum()}, largest "
        f"{size.max():.1%}; {order_kept(errors):.1%} of pairs in the right order"
    )


if __name__ == "__main__":
    main()
