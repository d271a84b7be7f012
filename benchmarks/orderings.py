"""Which method learns better than which, on the digits task, with seeds and intervals.

    python -m benchmarks.orderings [--out FOLDER] [--steps 200] [--workers 8 16] [--seeds 5]

Every method is tuned by the same rule (`ddlnb.training.runs.compare`) on all cores; runs are kept
in the folder, and a second call of the same code completes them. All train on one clock, on which
workers straggle as `STRAGGLER` says: servers take updates as they come. ``--kept FILE`` judges kept
curves only. Prints the loss that every method reached, at which rate, and the verdicts.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from ddlnb.calibration.statistics import Verdict
from ddlnb.files import BUILD
from ddlnb.training.executors.clock import Clock, get_straggler
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import judged, methods_of, summary

STRAGGLER = "log-normal(0.5)"
REACHED = ["method", "workers", "learning_rate", "test_loss", "test_loss_half_width"]
REACHED += ["diverged", "seeds"]
COLUMNS = ["better", "worse", "workers", "difference", "half_width", "verdict", "p_holm"]
COLUMNS += ["better_diverged", "worse_diverged"]


def main(
    *,
    out: Path = BUILD / "orderings",
    steps: int = 200,
    workers: Sequence[int] = (8, 16),
    seeds: int = 5,
    kept: Path | None = None,
) -> None:
    """Run what is missing and print the verdicts; of --kept, a curves.csv, without any run."""
    if kept:
        curves = pd.read_csv(kept)
    else:
        curves = compare(
            "digits",
            methods_of(),
            seeds=seeds,
            workers=workers,
            steps=steps,
            evaluate_every=max(1, steps // 10),
            tune=True,
            folder=out,
            progress=True,
            clock=Clock(get_straggler(STRAGGLER)),
        ).curves
    print(summary(curves)[REACHED].round(4).to_string(index=False), end="\n\n")
    table = judged(curves)
    print(table[COLUMNS].round(4).to_string(index=False))
    for many, rows in table.groupby("workers"):
        print(f"{many} workers:", rows["verdict"].map(str).value_counts().to_dict())
    decided = table["verdict"] != Verdict.UNDECIDED
    print(
        f"Of {decided.sum()} verdicts among {len(table)} comparisons, each at 95 %, "
        f"{(decided & (table['p_holm'] <= 0.05)).sum()} hold at 95 % for all together (Holm)."
    )


if __name__ == "__main__":
    command(main)
