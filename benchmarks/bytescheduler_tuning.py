"""How far ByteScheduler's tuned sizes are from the best pair of a fine grid, on the survey's cells.

    python -m benchmarks.bytescheduler_tuning [--model resnet50 --model bert-base] [--csv FILE]

The grid has other sizes than the search, half as far apart, and reaches further down.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from ddlnb.clusters.cluster import Cluster
from ddlnb.plans.methods import METHODS, Method
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on, sized_on
from ddlnb.survey.testbed import BATCHES, CLUSTERS, GPUS, fig4_cluster, fig4_workload
from ddlnb.units import KIB, MS
from ddlnb.workloads.workload import Workload

TUNING = [method for method in METHODS.values() if method.tunes]
PARTITIONS = [round(256 * KIB * 2 ** (half / 2)) for half in range(19)]  # to 128 MiB
CREDITS = [2 ** (half / 2) for half in range(15)]  # to 128 partitions


def with_default_sizes(method: Method) -> Method:
    """Return the method with the sizes of its row, which it has without a cluster."""
    return method.tuned(partition=method.partition_bytes, credit=method.credit_bytes)


def grid() -> Iterator[dict[str, int]]:
    """Yield every pair of a partition and a credit."""
    for partition, credit in product(PARTITIONS, CREDITS):
        yield {"partition": partition, "credit": round(partition * credit)}


def seconds(workload: Workload, cluster: Cluster, method: Method) -> float:
    """Return the seconds of a steady iteration."""
    plan = plan_on(cluster, workload, method)
    return play(lower(workload, cluster, plan, keep=False)).iteration_seconds


def tuned_cells(
    models: Sequence[str] = tuple(BATCHES),
    networks: Sequence[str] = tuple(CLUSTERS),
    gpus: Sequence[int] = GPUS,
) -> pd.DataFrame:
    """Return the milliseconds of every cell: default sizes, tuned, and the best of the grid."""
    rows = []
    for model, network, count, method in product(models, networks, gpus, TUNING):
        workload, cluster = fig4_workload(model), fig4_cluster(network, count)
        tuned = sized_on(cluster, workload, method)
        methods = {"default": with_default_sizes(method), "tuned": tuned}
        found = {name: seconds(workload, cluster, one) for name, one in methods.items()}
        found["grid"] = min(seconds(workload, cluster, method.tuned(**one)) for one in grid())
        rows.append(
            {"model": model, "network": network, "gpus": count, "method": method.name}
            | {name: taken / MS for name, taken in found.items()}
            | {"off": found["tuned"] / found["grid"] - 1, "settings": tuned.sizes}
        )
    return pd.DataFrame(rows)


def main(*, model: Sequence[str] = (), csv: Path | None = None) -> None:
    """Print every cell, by default of all models; about ten minutes. --csv also writes the rows."""
    rows = tuned_cells(model or tuple(BATCHES))
    if csv:
        rows.to_csv(csv, index=False, float_format="%.6g")
    print(rows.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    print(
        f"\n{len(rows)} cells: tuned over default {(rows['tuned'] / rows['default']).min():.2f} to "
        f"{(rows['tuned'] / rows['default']).max():.2f}; off the grid {rows['off'].mean():.2%} on "
        f"average, {rows['off'].max():.2%} at most"
    )


if __name__ == "__main__":
    command(main)
