"""Where lossy methods pay: speed-ups over clusters and sizes, and digits as a workload of its own.

What `ddlnb.training.cost.time_to_target` finds, arranged: the quickest method of every cluster, verdicts as a
table, and a pure case in which iterations and seconds belong to the same model.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.errors import require_whole
from ddlnb.training.cost.verdict import verdicts
from ddlnb.training.tasks.digits import DIGITS
from ddlnb.units import bandwidth_from, seconds_from
from ddlnb.workloads.profiling import from_throughput, profile
from ddlnb.workloads.tasks import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["network", "task", "workers"]


def quickest(table: pd.DataFrame) -> pd.DataFrame:
    """The row of `time_to_target` with the fewest seconds, for every cluster and size.

    Columns: network, workers, method, seconds, speedup, speedup_low, speedup_high.
    """
    shown = ["method", "seconds", "speedup", "speedup_low", "speedup_high"]
    rows = table.sort_values("seconds", kind="stable").groupby(PLACE, sort=False).head(1)
    return rows.sort_values(["network", "workers"]).set_index(["network", "workers"])[shown]


def verdict_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row per verdict on a `time_to_target`: network, workers, method, choice, said.

    What is said begins with the place.
    """
    import pandas as pd

    networks = dict(zip(table["machine"], table["network"], strict=True))
    rows = []
    for one in verdicts(table):
        network = networks[one.machine]
        said = f"{network}, {one.workers} workers: {one}"
        rows.append((network, one.workers, one.method, one.choice, said))
    return pd.DataFrame(rows, columns=["network", "workers", "method", "choice", "said"])


def digits_workload(local_batch: int | None = None, iterations: int = 30) -> Workload:
    """The model of the digits task with seconds measured here, on one thread."""
    return profile(_digits_task(), local_batch, iterations=iterations, threads=1)


def made_up_digits(samples_per_second: float) -> Workload:
    """The model of the digits task on a device of this throughput, shared out by FLOPs."""
    traced = trace(_digits_task(), DIGITS.local_batch)
    return from_throughput(traced, samples_per_second, "made up")


def _digits_task() -> Task:
    return Task(
        DIGITS.name, _build, _batch, _loss, DIGITS.local_batch, "images", about=DIGITS.about
    )


def made_up_cluster(bandwidth: str, latency: str, workers: int = 32) -> Cluster:
    """Nodes of one worker each behind such links; nothing else takes time, and none is measured.

    >>> made_up_cluster("10 Mb/s", "1 ms").network
    '10 Mb/s, 1 ms'
    """
    require_whole(workers=workers)
    effects = Effects(
        between_latency=seconds_from(latency), between_bandwidth=bandwidth_from(bandwidth)
    )
    name = f"{bandwidth}, {latency}"
    return Cluster(f"made up: {name}", name, workers, 1, effects)


def _build() -> nn.Module:
    return DIGITS.build(0)


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    return DIGITS.loss(module, batch)


@cache
def _digits() -> tuple[torch.Tensor, ...]:
    return DIGITS.samples().tensors


def _batch(local_batch: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = _digits()
    chosen = torch.randint(len(images[0]), (local_batch,), generator=generator)
    return tuple(tensor[chosen] for tensor in images)
