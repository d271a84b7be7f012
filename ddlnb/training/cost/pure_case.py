"""Cases in which iterations and seconds belong to one model: digits, behind made-up links."""

from __future__ import annotations

from functools import partial

import torch

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.errors import require_whole
from ddlnb.training.tasks.built_in import DIGITS
from ddlnb.units import bandwidth_from, seconds_from
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.roofline import from_throughput
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload


def digits_workload(iterations: int = 30) -> Workload:
    """Return the model of the digits task with seconds measured here, on one thread."""
    return profile(_digits_task(), iterations=iterations, threads=1)


def made_up_digits(samples_per_second: float) -> Workload:
    """Return the model of the digits task on a device of this throughput, shared out by FLOPs."""
    traced = trace(_digits_task(), DIGITS.local_batch)
    return from_throughput(traced, samples_per_second, "made up")


def _digits_task() -> Task:
    return Task(
        DIGITS.name,
        partial(DIGITS.build, 0),
        _batch,
        DIGITS.loss,
        DIGITS.local_batch,
        "images",
        about=DIGITS.about,
    )


def made_up_cluster(bandwidth: str, latency: str, workers: int = 32) -> Cluster:
    """Return nodes of one worker each behind such links; nothing else takes time or is measured.

    >>> made_up_cluster("10 Mb/s", "1 ms").network
    '10 Mb/s, 1 ms'
    """
    require_whole(workers=workers)
    effects = Effects(
        between_latency=seconds_from(latency), between_bandwidth=bandwidth_from(bandwidth)
    )
    name = f"{bandwidth}, {latency}"
    return Cluster(f"made up: {name}", name, workers, 1, effects)


def _batch(local_batch: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    samples = DIGITS.samples()
    chosen = torch.randint(len(samples.labels), (local_batch,), generator=generator)
    return tuple(tensor[chosen] for tensor in samples.tensors)
