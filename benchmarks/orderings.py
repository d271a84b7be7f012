"""Which method learns better than which, on the digits task, with seeds and intervals.

    python -m benchmarks.orderings [--out FOLDER] [--steps 200] [--workers 8 16] [--seeds 5]

Every method is tuned by the same rule (`ddlnb.training.runs.compare`) on all cores; runs are kept
in the folder, and a second call of the same code completes them. ``--kept FILE`` judges kept curves
only. Prints the loss that every method reached, at which rate, and the verdicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ddlnb.files import BUILD
from ddlnb.results.statistics import Verdict
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import judged, methods_of, summary

REACHED = ["method", "workers", "learning_rate", "test_loss", "test_loss_half_width"]
REACHED += ["diverged", "seeds"]
COLUMNS = ["better", "worse", "workers", "difference", "half_width", "verdict", "p_holm"]
COLUMNS += ["better_diverged", "worse_diverged"]


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing and print the verdicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=BUILD / "orderings")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kept", type=Path, help="curves.csv of an earlier run; nothing runs")
    asked = parser.parse_args(words)
    if asked.kept:
        curves = pd.read_csv(asked.kept)
    else:
        curves = compare(
            "digits",
            methods_of(),
            seeds=asked.seeds,
            workers=asked.workers,
            steps=asked.steps,
            evaluate_every=max(1, asked.steps // 10),
            tune=True,
            folder=asked.out,
            progress=True,
        ).curves
    print(summary(curves)[REACHED].round(4).to_string(index=False), end="\n\n")
    table = judged(curves)
    print(table[COLUMNS].round(4).to_string(index=False))
    for workers, rows in table.groupby("workers"):
        print(f"{workers} workers:", rows["verdict"].map(str).value_counts().to_dict())
    decided = table["verdict"] != Verdict.UNDECIDED
    print(
        f"Of {decided.sum()} verdicts among {len(table)} comparisons, each at 95 %, "
        f"{(decided & (table['p_holm'] <= 0.05)).sum()} hold at 95 % for all together (Holm)."
    )


if __name__ == "__main__":
    main()
