"""Published runs of compressors as questions, and how far off their forecasts are.

The runs are those of GRACE (H. Xu et al., ICDCS 2021): data/published/grace_throughput.csv. What a
user would know is told: the rates of one GPU and of dense training on the same network. A forecast
is the dense rate times the ratio of two iterations, both forecast from hardware names, and the
seconds of a compressor are those of a data sheet (`sheet_profile`). How many times slower the
program's operations are than a sheet says is one factor, fitted to the other compressors and
tasks. The batch is not published: it is the power of two by which dense runs are forecast best.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.named import cluster_of
from ddlnb.compression.base import Compressor, OnGpu, Passes
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.profile import FREE, sheet_profile
from ddlnb.compression.qsgd import QSGD
from ddlnb.files import PUBLISHED
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.workloads.workload import Gradient, Layer, Workload

Numbers = NDArray[Any]
SOURCE, GPU = "grace", "V100-SXM2-16GB"
# Trained elements and tensors of a task's model, by its architecture. The others' are not stated.
TASKS = {
    "resnet50": (25_557_032, 161),
    "vgg19": (143_667_240, 38),
    "LSTM": (19_775_200, 7),  # Zaremba et al. 2014, medium: 2 x 650 units, 10,000 words
    "ncf": (31_832_577, 12),  # MLPerf's: 138,493 users, 26,744 films
    "resnet20_v2": (270_000, 59),
    "densenet40_k12": (1_000_000, 119),
}
DENSE = "WFBP-A2A"  # Horovod sends each tensor as it becomes ready
BACKWARD = 2 / 3  # of the seconds of an iteration
BATCHES = tuple(2**power for power in range(19))
PLAYED = (0.0, 1.0, 8.0, 64.0)  # factors of a sheet's seconds; between them iterations are lines
FACTORS = 2.0 ** np.arange(-1, 6.1, 0.25)
INSIDE = 0.9  # of the left-out runs of other compressors and tasks


@dataclass(frozen=True)
class EightBits(QSGD):
    """8 bits of an element's exponent and fraction: it looks for the nearest of 128 numbers."""

    name = "8bit"
    on_gpu = OnGpu(Passes(24, 120), Passes(4, 34))  # seven halvings of the range of numbers


@dataclass(frozen=True)
class Sketch(QSGD):
    """Quantiles of the elements, and which of 256 intervals each is in."""

    name = "sketch"
    on_gpu = OnGpu(Passes(24, 130), Passes(3, 25))  # a sort, means of intervals, a search


def compressor_of(method: str, ratio: float) -> Compressor | None:
    """Return what a method of GRACE is here; None where it has no counterpart."""
    known: dict[str, Compressor | str] = {
        "8bit": EightBits(), "sketch": Sketch(), "qsgd": "qsgd(127)", "randomk": "random-k",
        "topk": "top-k", "dgc": "dgc", "signsgd": "signsgd", "efsignsgd": "ef-sign",
        "onebit": "ef-sign", "terngrad": "terngrad",
    }  # fmt: skip
    named = known.get(method)
    return get_compressor(f"{named}({ratio})" if named and ratio == ratio else named)


def published() -> pd.DataFrame:
    """Return the runs on several V100 of tasks and methods that are known here, with dense rates.

    Columns group (the compressor), task, workers, network, measured, ``trivial`` (the dense rate of
    as many workers on the same network, mean of the runs), one (that of one GPU).
    """
    rows = pd.read_csv(PUBLISHED / "grace_throughput.csv")
    rows["measured"] = rows["throughput"].fillna(rows["logged_total"])
    rows = rows[rows["model"].isin(list(TASKS)) & (rows["env"] == "mcnodes")]
    rows = rows[(rows["mode"] == "throughput") & (rows["backend"] == "mpi")]
    dense = rows[rows["method"] == "none"]
    alone = dense[dense["workers"] == 1].groupby("model")["measured"].mean()
    where = ["model", "workers", "bw"]
    known = dense.groupby(where)["measured"].mean().rename("trivial")
    rows = rows.join(known, on=where).join(alone.rename("one"), on="model")
    rows = rows[rows["workers"] > 1].dropna(subset=["trivial", "one"])
    names = {"model": "task", "method": "group", "bw": "network"}
    return rows.drop(columns="task").rename(columns=names)


def workload_of(task: str, batch: int, rate: float) -> Workload:
    """Return a model of equal tensors that one GPU trains at samples/s."""
    elements, tensors = TASKS[task]
    seconds, each = batch / rate, round(elements / tensors)
    layers = [Layer(f"layer {i}", seconds * (1 - BACKWARD) / tensors) for i in range(tensors)]
    ready = [
        Gradient(f"tensor {i}", f"layer {i}", each, backward_seconds=seconds * BACKWARD / tensors)
        for i in reversed(range(tensors))
    ]
    return Workload(f"grace {task}", batch, tuple(layers), tuple(ready), "the rate of one GPU")


def forecasts() -> pd.DataFrame:
    """Return a tidy row per run, forecast once without its compressor and once without its task.

    Columns source, run, measured, forecast, low, high, trivial (the dense rate), left_out. The
    factor of a sheet's seconds and the interval are those that the other runs show.
    """
    rows = published()
    batches = {
        str(task): _batch(str(task), told)
        for task, told in rows[rows["group"] == "none"].groupby("task")
    }
    rows = rows[rows["group"] != "none"].assign(
        made=lambda all: [
            compressor_of(*pair) for pair in zip(all["group"], all["ratio"], strict=True)
        ]
    )
    rows = rows.dropna(subset="made")
    played = np.array(
        [
            _ratios(
                workload_of(row.task, batches[row.task], row.one),
                _cluster(row.workers, row.network),
                row.made,
                feedback=bool(row.memory_error_feedback),
            )
            for row in rows.itertuples()
        ]
    )
    measured = (rows["measured"] / rows["trivial"]).to_numpy()
    found = []
    for by in ("group", "task"):
        groups = rows[by].to_numpy()
        for left_out in dict.fromkeys(groups):
            own = groups == left_out
            known = played[~own], measured[~own], groups[~own]
            rates = rows["trivial"][own] * _at(played[own], _fitted_factor(*known))
            low, high = _interval(*known)
            found.append(
                pd.DataFrame(
                    {
                        "source": f"{SOURCE}, {'compressor' if by == 'group' else by} left out",
                        "run": [_run(row) for row in rows[own].itertuples()],
                        "measured": rows["measured"][own],
                        "forecast": rates,
                        "low": rates * low,
                        "high": rates * high,
                        "trivial": rows["trivial"][own],
                        "left_out": left_out,
                    }
                )
            )
    return pd.concat(found, ignore_index=True)


def _run(row: Any) -> str:
    return f"{row.made}, {row.task}, {row.workers} GPUs, {row.network}"


def _cluster(workers: int, network: str) -> Cluster:
    on = cluster_of(GPU, int(workers), 1, f"{network.removesuffix('g')}GbE")
    return replace(on, all_reduce="ring")  # the runs are those of MPI, not of NCCL


def _batch(task: str, dense: pd.DataFrame) -> int:
    """Return the power of two by which dense runs are forecast best."""
    off = []
    for batch in BATCHES:
        forecast = [
            row.workers * batch / _dense(workload_of(task, batch, row.one), row)
            for row in dense.itertuples()
        ]
        off.append(np.abs(np.log(forecast / dense["measured"])).mean())
    return BATCHES[int(np.argmin(off))]


def _dense(workload: Workload, row: Any) -> float:
    cluster = _cluster(row.workers, row.network)
    return iteration_cost(workload, cluster, DENSE).iteration_seconds


@functools.cache
def _ratios(
    workload: Workload, cluster: Cluster, compressor: Compressor, *, feedback: bool
) -> list[float]:
    """Return seconds of an iteration by dense ones, at each of PLAYED."""
    bsp, keeps = training_method("bsp").synchronisation, compressor.feedback != "refused"
    method = TrainingMethod(bsp, compressor, feedback and keeps)
    profiles = [FREE if factor == 0 else sheet_profile(GPU, factor) for factor in PLAYED]
    dense = iteration_cost(workload, cluster, DENSE).iteration_seconds
    return [
        iteration_cost(workload, cluster, method, compression=profile, base=DENSE).iteration_seconds
        / dense
        for profile in profiles
    ]


def _at(played: Numbers, factor: float) -> Numbers:
    """Return rates by dense ones at a factor."""
    return 1 / np.array([np.interp(factor, PLAYED, seconds) for seconds in played])


def _fitted_factor(played: Numbers, measured: Numbers, groups: Numbers) -> float:
    """Return the factor with the least mean error of groups, which count alike."""
    off = [np.abs(np.log(_at(played, factor) / measured)) for factor in FACTORS]
    means = [[one[groups == group].mean() for group in set(groups)] for one in off]
    return float(FACTORS[int(np.argmin(np.mean(means, axis=1)))])


def _interval(played: Numbers, measured: Numbers, groups: Numbers) -> Numbers:
    """Return ends of what is measured by forecast, of groups that are left out in turn."""
    off = []
    for group in dict.fromkeys(groups):
        own = groups == group
        factor = _fitted_factor(played[~own], measured[~own], groups[~own])
        off.append(measured[own] / _at(played[own], factor))
    return np.quantile(np.concatenate(off), [(1 - INSIDE) / 2, (1 + INSIDE) / 2])
