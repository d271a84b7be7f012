"""What ranks measure before a plan is made: layer times, and the time of an all-reduce."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from ddlnb.engines.network import process_group
from ddlnb.models import Task
from ddlnb.place import Place
from ddlnb.profiling import profile
from ddlnb.workload import Workload


def profile_rank(place: Place, task: Task, local_batch: int, iterations: int) -> Workload:
    """The workload as this rank measures it while all ranks of the run compute.

    Profiling under the load of the real run is what makes its layer times those of the real run.
    """
    return profile(task, local_batch, iterations=iterations)


def time_all_reduce(
    place: Place, sizes: tuple[int, ...], repetitions: int, backend: str = "gloo"
) -> list[tuple[int, float]]:
    """(bytes, seconds) of this rank's all-reduces, one pair per size, medians of repetitions."""
    found = []
    with process_group(place, place.store(), place.count, backend):
        for size in sizes:
            tensor = torch.zeros(max(1, size // 4))
            seconds = []
            for _ in range(repetitions + 1):
                start = time.perf_counter()
                dist.all_reduce(tensor)
                seconds.append(time.perf_counter() - start)
            found.append((size, statistics.median(seconds[1:])))
    return found
