"""Our methods against the defaults of DDP and Horovod on emulated links, measured and forecast.

    python -m benchmarks.emulated [--out FOLDER] [--networks ...] [--workers 4 8]

For each network a simulated twin is calibrated by a micro-benchmark alone, then all contenders run
in turn on replayed models, every repetition beginning with another one. Everything is kept in the
folder; a second call completes what is missing, prints the tables and draws the figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ddlnb.figures import over_baselines
from ddlnb.paths import BUILD
from ddlnb.studies.fig4_emulated import NETWORKS, against, agreement, run, summary


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing and print ratios and errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=BUILD / "emulated")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--workers", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="run nothing, print what is kept")
    asked = parser.parse_args(words)
    rows = run(
        asked.out,
        networks=asked.networks,
        workers=asked.workers,
        iterations=asked.iterations,
        repetitions=asked.repetitions,
        only_kept=asked.kept,
        progress=True,
    )
    ratios, errors = against(rows), agreement(rows)
    pictures = BUILD / "emulated"
    pictures.mkdir(parents=True, exist_ok=True)
    over_baselines(rows).savefig(pictures / "over_baselines.png", dpi=110)
    print(ratios.round(3).to_string(index=False))
    print(errors.round(3).to_string(index=False))
    print(summary(ratios, errors))


if __name__ == "__main__":
    main()
