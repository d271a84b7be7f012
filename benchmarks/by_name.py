"""Forecast the survey's testbed from the names of its hardware, and compare the published cells.

    python -m benchmarks.by_name            # print the kept table by network and method
    python -m benchmarks.by_name --write    # forecast again, in a minute, and keep the rows

The seconds of one GPU are those of its published rate, shared out by the data sheet. Beside the
cluster that its names make stand two trivial ones: linear scaling, and a ring at nominal rates
that waits for the whole gradient. What the catalogue knows of TCP and of nodes without NVLink came
from this testbed, as no other open table has it: of these effects the comparison shows that they
are not lost between a fit and a name, and, with more GPUs than the 8 it came from, that they do not
grow. Cells of ByteScheduler-A2A ran with a scheduler
in Python that the catalogue does not know.
"""

from dataclasses import replace

import pandas as pd

from benchmarks.command import command
from benchmarks.errors import error_table
from ddlnb.clusters.named import cluster_of
from ddlnb.files import DATA, write_atomically
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.plans.alpha_beta import AlphaBeta, ring_all_reduce
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.survey.published import fig4_cells
from ddlnb.survey.testbed import BATCHES, CLUSTERS, GPUS, cell_as_run, fig4_workload
from ddlnb.workloads.roofline import estimate

KEPT = DATA / "forecasts" / "by_name.csv"
KEY = ["model", "local_batch", "network", "method", "gpus"]
RATE = "throughput_samples_per_s"
GPU, PER_NODE = "RTX2080Ti", 4


def by_name(draws: int = 200) -> pd.DataFrame:
    """Return a row per cell of several GPUs: published, forecast, interval, trivial."""
    published = fig4_cells()
    rates = published[published["method"] == "single"].set_index("model")[RATE]
    workloads = {
        model: estimate(fig4_workload(model), GPU, "fp32", samples_per_second=rates[model])
        for model in BATCHES
    }
    found = []
    for network in CLUSTERS:
        cluster = replace(cluster_of(GPU, 8, PER_NODE, network), placement="hashed")
        cells = [
            cell_as_run(workload, cluster.with_workers(gpus), method)
            for workload in workloads.values()
            for gpus in GPUS
            for method in METHODS
        ]
        found.append(forecast_cells(cells, draws=draws))
    rows = pd.concat(found)[[*KEY, RATE, "low", "high"]]
    joined = rows.merge(published[[*KEY, RATE]], on=KEY, how="left", suffixes=("", "_published"))
    joined["linear"] = joined["gpus"] * joined["model"].map(rates)
    joined["nominal_ring"] = [
        _nominal(row.network, row.gpus, workloads[row.model]) for row in joined.itertuples()
    ]
    return joined


def _nominal(network: str, gpus: int, workload) -> float:  # type: ignore[no-untyped-def]
    inside = get_gpu(GPU).inside_bandwidth
    rate = inside if gpus <= PER_NODE else min(inside, get_interconnect(network).line_rate)
    waiting = ring_all_reduce(AlphaBeta(0.0, 1 / rate), gpus).seconds(workload.gradient_bytes)
    return gpus * workload.local_batch / (workload.compute_seconds + waiting)


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return cells, median and worst error, share in the interval, and the trivial errors."""
    rows = rows.dropna(subset=f"{RATE}_published")
    return error_table(
        rows,
        by,
        f"{RATE}_published",
        RATE,
        {"linear_scaling": "linear", "nominal_ring": "nominal_ring"},
        rows[f"{RATE}_published"].between(rows["low"], rows["high"]),
        share="in_interval",
    )


def main(*, write: bool = False) -> None:
    """Print the tables. With --write the cells are forecast again, and their rows kept."""
    if write:
        write_atomically(KEPT, by_name().to_csv(index=False, float_format="%.6g"))
    rows = pd.read_csv(KEPT)
    for by in (["network", "gpus"], ["method"], ["model"], []):
        print(summary(rows, by).to_string(), end="\n\n")


if __name__ == "__main__":
    command(main)
