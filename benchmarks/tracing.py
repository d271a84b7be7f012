"""How long it takes to trace a model, and how much memory: `python -m benchmarks.tracing [MODEL]`.

Each model is traced at a batch of one in a process of its own, forked from this one when all that
is imported is in memory; the peak is that of the process, less what it starts with.
"""

import multiprocessing
import resource
import time
from collections.abc import Sequence

import pandas as pd

from benchmarks.command import command
from ddlnb.files import processor
from ddlnb.units import KIB, MB
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.resolve import get_task, resolve
from ddlnb.workloads.task import build_on_meta
from ddlnb.workloads.tracing import trace


def traced(name: str) -> dict[str, object]:
    """Trace a model and return its size, and the seconds and bytes that it took."""
    task = resolve(name)
    before, start = _peak(), time.perf_counter()
    workload = trace(task)  # type: ignore[arg-type]
    return {
        "model": name,
        "parameters": workload.parameters,
        "GB of parameters": workload.gradient_bytes / 1000 / MB,
        "seconds": time.perf_counter() - start,
        "MB of memory": (_peak() - before) / MB,
        "source": workload.source,
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def main(names: Sequence[str] = tuple(TASKS)) -> None:
    """Print a row for each model."""
    build_on_meta(get_task("gpt2"))  # imports transformers
    trace("small-conv")
    rows = []
    for name in names:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            rows.append(pool.apply(traced, (name,)))
    print(f"{processor()}, one process at a time")
    print(pd.DataFrame(rows).to_string(index=False, float_format=lambda value: f"{value:.2f}"))


if __name__ == "__main__":
    command(main)
