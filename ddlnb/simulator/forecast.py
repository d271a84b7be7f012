"""Forecasts: how fast every method trains on a cluster, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require, require_whole
from ddlnb.files import provenance
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.progress import Show
from ddlnb.registry import several
from ddlnb.simulator.draws import DRAWS, is_certain, play_cells, require_draws
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.workloads.task import Task


def forecast(
    model: str | Task | Workload,
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    *,
    local_batch: int | None = None,
    gpus: int | Sequence[int] | None = None,
    servers: int | None = None,
    sequence: int | None = None,
    throughput: float | None = None,
    precision: str = "",
    gradients: str = "",
    accumulate: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a tidy row per method and number of GPUs: throughput, seconds of a steady iteration.

    ``throughput_samples_per_s`` is that of all GPUs; ``iteration_seconds`` and
    ``exposed_communication_seconds`` are those of one iteration. ``low`` and ``high`` hold 90 % of
    the draws of the throughput: every draw takes other effects from the intervals of the cluster,
    another speed from the spread of the workload, and its model error. Effects without an interval
    get a wide one (`Cluster.intervals`). There are none with ``draws=0``, and where nothing is
    uncertain. ``speedup`` is over one worker, ``chance_best`` the share of draws in which the
    method is the fastest of those asked for; "all" are those that the cluster can run, and "DDP",
    PyTorch's own, may stand beside it. ``gpus`` defaults to all of the cluster.

    ``model`` is a Task, a Workload, or what `ddlnb forecast --model` takes: a name, ``my.py:task``,
    a Hugging Face configuration. A task is traced. Its seconds come from ``throughput`` (samples
    per second of one GPU), from a kept profile, or from the data sheet of the cluster's GPU at
    this ``precision`` (`estimate`), and ``attrs["seconds"]`` of the rows says from which.
    ``sequence`` are the tokens of a sample, ``gradients`` the type that gradients are sent in
    ("fp16"), and ``accumulate`` the batches between two exchanges. Raises InputError for what does
    not fit together, ModelError for what cannot be traced, and for fewer than LEAST_DRAWS draws.

    >>> import ddlnb
    >>> rows = ddlnb.forecast("resnet50", "survey-10GbE", "MG-WFBP", gpus=[8, 16], draws=0)
    >>> rows[["method", "gpus"]].values.tolist()
    [['MG-WFBP', 8], ['MG-WFBP', 16]]
    >>> bool(rows["speedup"].is_monotonic_increasing)
    True
    """
    require_draws(draws)
    pairs = sound_pairs(cluster, methods, gpus, servers)
    workload = workload_on(
        model,
        get_cluster(cluster),
        local_batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
    ).accumulated(accumulate)
    workload = workload.sent_as(gradients) if gradients else workload
    cells = [Cell(workload, one, method, servers) for one, method in pairs]
    rows = forecast_cells(cells, draws=draws, seed=seed)
    rows.attrs["seconds"] = workload.source
    return rows


def sound_pairs(
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    gpus: int | Sequence[int] | None = None,
    servers: int | None = None,
) -> list[tuple[Cluster, Method]]:
    """Return every method on the cluster with each number of GPUs in use.

    Raises InputError for all that can be wrong about them, before any work is done.
    """
    cluster = get_cluster(cluster)
    counts = [cluster.workers] if gpus is None else several(gpus)
    require(bool(counts), "gpus is empty; give at least one number of GPUs")
    chosen = named_methods(methods, cluster)
    require(bool(chosen), "methods is empty; give at least one, or 'all'")
    if servers is not None:
        require_whole(servers=servers)
    pairs = [(cluster.with_workers(count), method) for count in counts for method in chosen]
    for one, method in pairs:
        if method.architecture == "PS":
            one.require_servers(method.name)
    return pairs


def named_methods(methods: str | Method | Sequence[str | Method], cluster: Cluster) -> list[Method]:
    """Return the methods of these names, each once; "all" are those that the cluster can run."""
    chosen: dict[Method, None] = {}
    for one in several(methods):
        chosen |= dict.fromkeys(methods_on(cluster) if one == "all" else [get_method(one)])
    return list(chosen)


def methods_on(cluster: Cluster) -> list[Method]:
    """Return the methods that the cluster can run: without servers, none that needs them.

    >>> import ddlnb
    >>> [method.name for method in methods_on(ddlnb.get_cluster("v100-nvlink"))]
    ['BSP-A2A', 'WFBP-A2A', 'MG-WFBP', 'ByteScheduler-A2A', 'DeAR']
    """
    return [one for one in METHODS.values() if cluster.takes_servers or one.architecture != "PS"]


def forecast_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> pd.DataFrame:
    """The rows of `forecast` for any cells; arguments are those of `play_cells`."""
    import pandas as pd

    played = play_cells(cells, draws=draws, seed=seed, progress=progress, drawn=drawn)
    single = [single_seconds(cell) for cell in cells]
    rows = []
    for number, cell in enumerate(cells):
        samples = cell.samples
        rows.append(
            {
                **_labels(cell),
                "throughput_samples_per_s": samples / played.seconds[number],
                "low": samples / played.quantile(number, 0.95),
                "high": samples / played.quantile(number, 0.05),
                "iteration_seconds": played.seconds[number],
                "exposed_communication_seconds": played.exposed[number],
                "speedup": cell.cluster.workers * single[number] / played.seconds[number],
                "std": np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    frame["chance_best"] = _chance_best(frame, played.drawn)
    return frame.assign(**{key: value for key, value in provenance().items() if key != "machine"})


def single_seconds(cell: Cell) -> float:
    """Return the seconds of an iteration of one worker alone: computation and update."""
    alone = cell.cluster.with_workers(1).with_effects(message_compute=0.0)
    plan = METHODS["BSP-A2A"].plan(cell.workload)
    return lower(cell.workload, alone, plan).compute_seconds


def _labels(cell: Cell) -> dict[str, object]:
    plan, cluster, method = cell.plan, cell.cluster, cell.method
    sizes = {"partition": method.partition_bytes, "credit": method.credit_bytes}
    return {
        "model": cell.workload.model,
        "structure": cell.workload.structure,
        "local_batch": cell.workload.local_batch,
        "network": cluster.network,
        "method": method.name,
        "gpus": cluster.workers,
        "engine": "simulator",
        "source": "simulated",
        "servers": plan.servers,
        "settings": " ".join(f"{key}={size}B" for key, size in sizes.items() if size),
        "machine": cluster.label,
        "messages": len(plan.messages),
        "plan": plan.digest,
    }


def _chance_best(frame: pd.DataFrame, drawn: np.ndarray) -> np.ndarray:
    chance = np.full(len(frame), math.nan)
    if not len(drawn) or all(is_certain(column) for column in drawn.T):
        return chance
    keys = ["model", "local_batch", "network", "machine", "gpus"]
    for _, rows in frame.groupby(keys, sort=False):
        at = rows.index.to_numpy()
        best = drawn[:, at].argmin(axis=1)
        chance[at] = np.bincount(best, minlength=len(at)) / len(drawn)
    return chance
