"""Forecast iterations of one GPU from its data sheet, then measure them, and print how far off.

    python -m benchmarks.iterations_on_gpu                   # print the kept comparison
    python -m benchmarks.iterations_on_gpu --forecast        # forecast, and keep the rows
    python -m benchmarks.iterations_on_gpu --measure         # on the GPU: measure, keep the rows

An iteration is a forward and a backward pass, as PyTorch runs them without compiling; batches lie
in the GPU's memory, and there is no optimizer. ``fp32`` computes on the cores, ``tf32`` lets matrix
units round, ``bf16`` holds everything in 16 bits, ``amp`` is torch.autocast to bf16, whose forecast
is that of bf16. Rows were forecast before the first of them was measured. Beside them stands the
trivial forecast: the median share of the data sheet's FLOP/s in what the roofline was fitted to.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ddlnb.files import write_atomically
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.paths import DATA
from ddlnb.simulator.forecast import Z90
from ddlnb.units import MS
from ddlnb.workloads.catalogue import get_task
from ddlnb.workloads.footprint import footprint
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.tasks import Batch, Task
from ddlnb.workloads.tracing import trace

GPU = "H100"
FORECAST = DATA / "forecasts" / "iterations_on_h100.csv"
MEASURED = DATA / "measured" / "2026-11-22_h100"
ROWS = "iterations.csv"
CELLS = {
    "resnet18": (256,), "resnet50": (64, 256), "resnet101": (128,), "resnet152": (128,),
    "vgg16": (128,), "vit-b": (128,), "vit-l": (64,), "bert-base": (64, 512),
    "bert-large": (8, 128), "gpt2": (8, 32), "gpt2-medium": (8,), "gpt2-large": (4,),
    "gpt2-xl": (2,), "t5": (8, 32), "lstm": (20, 256), "small-conv": (64,),
    "small-transformer": (16,), "llama3-8b": (1,),
}  # fmt: skip
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "amp": "bf16"}  # and their forecasts
ONLY_HALF = ("llama3-8b",)  # whose gradients in 32 bits do not fit
WARMUP, ITERATIONS = 5, 15
KEY = ["model", "batch", "precision"]


def cells() -> Iterator[tuple[str, int, str]]:
    """Return every model, batch and precision."""
    for model, batches in CELLS.items():
        for batch in batches:
            for precision in PRECISIONS:
                if precision == "bf16" or model not in ONLY_HALF:
                    yield model, batch, precision


def forecasts(gpu: str = GPU) -> pd.DataFrame:
    """Return a row per cell: seconds with their 90 % interval, and the bytes that training holds.

    The trivial forecast takes the median utilisation of the fitted runs of the same kind.
    """
    kind = get_gpu(gpu)
    traced, rows = {}, []
    for model, batch, precision in cells():
        task = get_task(model)
        if (model, batch) not in traced:
            traced[model, batch] = trace(task, batch), footprint(task, "sgd").bytes_at(batch)
        workload, held = traced[model, batch]
        asked = PRECISIONS[precision]
        found = estimate(workload, kind, asked)
        reach = math.exp(Z90 * found.spread)
        rows.append(
            {
                "model": model,
                "batch": batch,
                "precision": precision,
                "gpu": kind.name,
                "forecast_seconds": found.compute_seconds,
                "low_seconds": found.compute_seconds / reach,
                "high_seconds": found.compute_seconds * reach,
                "utilisation_1_seconds": workload.flops / kind.peak(asked),
                "held_bytes": held / (2 if precision == "bf16" else 1),
            }
        )
    return pd.DataFrame(rows)


def measure_here(out: Path) -> None:
    """Measure the cells that a file lacks on this machine's GPU. A cell that fails says why."""
    known = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=KEY)
    done = set(known[KEY].itertuples(index=False, name=None))
    where = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for model, batch, precision in cells():
        if (model, batch, precision) in done:
            continue
        row: dict[str, object] = {"model": model, "batch": batch, "precision": precision}
        try:
            row |= _measured(get_task(model), batch, precision)
        except RuntimeError as error:  # out of memory, or an operation without this precision
            row["failed"] = str(error).splitlines()[0]
        torch.cuda.empty_cache()
        known = pd.concat([known, pd.DataFrame([{**row, **where}])], ignore_index=True)
        write_atomically(out, known.to_csv(index=False, float_format="%.6g"))
        print(row, flush=True)


def _measured(task: Task, batch: int, precision: str) -> dict[str, object]:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    with torch.device("cuda"):
        module = task.build()
    if precision == "bf16":
        module = module.to(torch.bfloat16)
    samples = tuple(_on_gpu(part, precision) for part in task.batch(batch, 0))
    torch.cuda.reset_peak_memory_stats()
    taken = [_iteration(task, module, samples, precision) for _ in range(WARMUP + ITERATIONS)]
    seconds = taken[WARMUP:]
    return {
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def _on_gpu(part: torch.Tensor, precision: str) -> torch.Tensor:
    half = precision == "bf16" and part.is_floating_point()
    return part.to("cuda", torch.bfloat16 if half else part.dtype)


def _iteration(task: Task, module: torch.nn.Module, samples: Batch, precision: str) -> float:
    module.zero_grad(set_to_none=True)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    mixed: AbstractContextManager[Any] = nullcontext()
    if precision == "amp":
        mixed = torch.autocast("cuda", torch.bfloat16)
    torch.cuda.synchronize()
    start.record()
    with mixed:
        loss = task.loss(module, samples)
    loss.backward()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop) * MS)


def compared(forecast: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that were measured, with the errors of the forecasts."""
    rows = forecast.drop(columns="gpu").merge(measured.dropna(subset="seconds"), on=KEY)
    usual = fitted_utilisation()
    trivial = rows["utilisation_1_seconds"] / rows["precision"].map(PRECISIONS).map(usual)
    return rows.assign(
        error=rows["forecast_seconds"] / rows["seconds"] - 1,
        inside=rows["seconds"].between(rows["low_seconds"], rows["high_seconds"]),
        trivial_error=trivial / rows["seconds"] - 1,
        memory_error=rows["held_bytes"] / rows["peak_bytes"] - 1,
    )


def fitted_utilisation() -> dict[str, float]:
    """Return the median share of FLOP/s, by precision, in the published runs of the fit."""
    from ddlnb.calibration.roofline import measured as published

    runs = published()
    usual = {}
    for precision in set(PRECISIONS.values()):
        on_cores = precision == "fp32"
        same = [one for one in runs if (one.kind == "cores" if on_cores else one.gpu.family == GPU)]
        usual[precision] = float(np.median([one.utilisation for one in same]))
    return usual


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by precision: cells, median error, share in the interval, of time and of memory."""
    sizes = rows.assign(
        **{name: rows[name].abs() for name in ("error", "trivial_error", "memory_error")}
    )
    kinds = {"median_error": ("error", "median"), "worst": ("error", "max")}
    found = sizes.groupby("precision", sort=False).agg(
        cells=("error", "size"), **kinds, inside=("inside", "mean"),
        constant_utilisation=("trivial_error", "median"), memory=("memory_error", "median"),
    )  # fmt: skip
    return found.round(3)


def main() -> None:
    """Forecast, measure, or print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--forecast", action="store_true", help="forecast again, keep the rows")
    parser.add_argument("--measure", action="store_true", help="measure on this machine's GPU")
    parser.add_argument("--out", type=Path, default=MEASURED, help="the folder of measured rows")
    given = parser.parse_args()
    if given.forecast:
        write_atomically(FORECAST, forecasts().to_csv(index=False, float_format="%.6g"))
    if given.measure:
        measure_here(given.out / ROWS)
    if (given.out / ROWS).exists():
        rows = compared(pd.read_csv(FORECAST), pd.read_csv(given.out / ROWS))
        shown = rows[
            [
                *KEY,
                "seconds",
                "forecast_seconds",
                "error",
                "trivial_error",
                "inside",
                "memory_error",
            ]
        ]
        print(shown.round(4).to_string(index=False))
        print(summary(rows).to_string())


if __name__ == "__main__":
    main()
