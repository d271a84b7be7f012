"""Our methods against DistributedDataParallel: alternating runs, ratios within each repetition.

    python -m benchmarks.against_ddp [--workers 4] [--repetitions 7] ...

A ratio compares two runs of the same repetition, so that a drift of the machine cancels; the table
shows its median and quartiles over repetitions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pandas as pd

from ddlnb.engines.measure import measure
from ddlnb.launch.ranks import Ranks
from ddlnb.results.rows import ResultsFile
from ddlnb.workloads.resolve import get_task


def main() -> None:
    """Print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--models", nargs="+", default=["small-conv", "small-transformer"])
    parser.add_argument("--methods", nargs="+", default=["all"])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--batch-factor", type=int, default=1, help="times the model's own batch")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    methods = "all" if options.methods == ["all"] else options.methods
    with Ranks(options.workers + options.servers) as ranks, tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            out = Path(folder) / f"{model}.csv"
            measure(
                model,
                methods,
                workers=options.workers,
                servers=options.servers,
                local_batch=options.batch_factor * get_task(model).local_batch,
                iterations=options.iterations,
                repetitions=options.repetitions,
                out=out,
                ranks=ranks,
                progress=sys.stderr.isatty(),
            )
            runs = ResultsFile(out).runs
            batch, machine = runs["local_batch"].iloc[0], runs["machine"].iloc[0]
            print(f"\n{model}, batch {batch}, {options.workers} workers on {machine}")
            print(against(runs, "DDP").to_string(float_format=lambda value: f"{value:.3f}"))


def against(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return median and quartiles of every method's throughput over the baseline's."""
    wide = runs.pivot_table(index="repetition", columns="method", values="throughput_samples_per_s")
    ratios = wide.div(wide[baseline], axis=0).drop(columns=[baseline, "single"], errors="ignore")
    table = ratios.quantile([0.5, 0.25, 0.75]).T
    table.columns = [f"ratio to {baseline}", "lower quartile", "upper quartile"]
    return table.assign(samples_per_s=wide.median()).sort_values(table.columns[0])


if __name__ == "__main__":
    main()
