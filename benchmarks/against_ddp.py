"""Our methods against DistributedDataParallel: alternating runs, ratios within each repetition.

    python -m benchmarks.against_ddp [--workers 4] [--repetitions 7] ...

A ratio compares two runs of the same repetition, so that a drift of the machine cancels; the table
shows its median and quartiles over repetitions.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from ddlnb.engines.measure import measure
from ddlnb.launch.ranks import Ranks
from ddlnb.results.rows import ResultsFile
from ddlnb.workloads.resolve import get_task


def against(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return median and quartiles of every method's throughput over the baseline's."""
    wide = runs.pivot_table(index="repetition", columns="method", values="throughput_samples_per_s")
    ratios = wide.div(wide[baseline], axis=0).drop(columns=[baseline, "single"], errors="ignore")
    table = ratios.quantile([0.5, 0.25, 0.75]).T
    table.columns = [f"ratio to {baseline}", "lower quartile", "upper quartile"]
    return table.assign(samples_per_s=wide.median()).sort_values(table.columns[0])


def main(
    *,
    models: Sequence[str] = ("small-conv", "small-transformer"),
    methods: Sequence[str] = ("all",),
    workers: int = 4,
    servers: int = 1,
    batch_factor: int = 1,
    iterations: int = 20,
    repetitions: int = 7,
) -> None:
    """Print one table per model. A batch is --batch-factor times as large as the model's own."""
    with Ranks(workers + servers) as ranks, tempfile.TemporaryDirectory() as folder:
        for model in models:
            out = Path(folder) / f"{model}.csv"
            measure(
                model,
                "all" if list(methods) == ["all"] else methods,
                workers=workers,
                servers=servers,
                local_batch=batch_factor * get_task(model).local_batch,
                iterations=iterations,
                repetitions=repetitions,
                out=out,
                ranks=ranks,
                progress=sys.stderr.isatty(),
            )
            runs = ResultsFile(out).runs
            batch, machine = runs["local_batch"].iloc[0], runs["machine"].iloc[0]
            print(f"\n{model}, batch {batch}, {workers} workers on {machine}")
            print(against(runs, "DDP").to_string(float_format=lambda value: f"{value:.3f}"))


if __name__ == "__main__":
    command(main)
