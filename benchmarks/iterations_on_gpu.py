"""Forecast iterations of one GPU from its data sheet, then measure them, and print how far off.

    python -m benchmarks.iterations_on_gpu [--gpu H200]      # print the kept comparisons
    python -m benchmarks.iterations_on_gpu --gpu H200 --forecast  # before the first is measured
    python -m benchmarks.iterations_on_gpu --gpu H200 --measure   # on the GPU: keep the rows
    python -m benchmarks.iterations_on_gpu --work            # trace the measured cells, for the fit
    python -m benchmarks.iterations_on_gpu --refit           # estimate the measured cells today

An iteration is a forward and a backward pass, as PyTorch runs them without compiling; batches lie
in the GPU's memory, and there is no optimizer. ``fp32`` computes on the cores, ``tf32`` lets matrix
units round, ``bf16`` holds everything in 16 bits, ``amp`` is torch.autocast to bf16, which nothing
here forecasts: it stands beside the forecast of bf16, and its memory beside none. Three tables are
printed. ``blind`` rows were forecast before the first of them was measured, and stay as they are.
Of the H100 alone, whose rows the roofline is fitted to, ``fitted`` rows are today's estimates (it
has not seen amp), and ``left out`` rows are estimated by a fit that has not seen their model on
this GPU. Beside them stands the trivial forecast: the median share of the data sheet's FLOP/s in
the published runs.
"""

import functools
import math
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch

from benchmarks.command import command
from benchmarks.errors import error_table
from benchmarks.roofline_fit import measured as published_runs, total_work
from ddlnb.errors import require
from ddlnb.files import DATA, HARDWARE, write_atomically
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.simulator.draws import Z90
from ddlnb.units import MS
from ddlnb.workloads.memory import KeptModel, seen_on_meta
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

GPU = "H100"  # whose rows the roofline is fitted to
MEASURED_ON = {
    GPU: DATA / "measured" / "2026-11-22_h100",
    "H200": DATA / "measured" / "2026-11-23_h200",
}
MEASURED = MEASURED_ON[GPU]
FITTED = DATA / "forecasts" / "iterations_on_h100_fitted.csv"
LEFT_OUT = HARDWARE / "roofline_left_out.csv"
ROWS, WORK = "iterations.csv", "work.csv"
CELLS = {
    "resnet18": (256,), "resnet50": (64, 256), "resnet101": (128,), "resnet152": (128,),
    "vgg16": (128,), "vit-b": (128,), "vit-l": (64,), "bert-base": (64, 512),
    "bert-large": (8, 128), "gpt2": (8, 32), "gpt2-medium": (8,), "gpt2-large": (4,),
    "gpt2-xl": (2,), "t5": (8, 32), "lstm": (20, 256), "small-conv": (64,),
    "small-transformer": (16,), "llama3-8b": (1,),
}  # fmt: skip
FORECAST = ("fp32", "tf32", "bf16")
PRECISIONS = {**{one: one for one in FORECAST}, "amp": "bf16"}  # and whose forecast they have
TOGETHER = "all but amp"
ONLY_HALF = ("llama3-8b",)  # whose gradients in 32 bits do not fit
WARMUP, ITERATIONS = 5, 15
KEY = ["model", "batch", "precision"]
SHOWN = [
    *KEY, "seconds", "forecast_seconds", "error", "trivial_error", "inside", "memory_error",
]  # fmt: skip


def blind(gpu: str) -> Path:
    """Return where the cells are forecast that had not been measured."""
    return DATA / "forecasts" / f"iterations_on_{gpu.lower()}.csv"


def cells() -> list[tuple[str, int, str]]:
    """Return every model, batch and precision."""
    return [
        (model, batch, precision)
        for model, batches in CELLS.items()
        for batch, precision in product(batches, PRECISIONS)
        if precision == "bf16" or model not in ONLY_HALF
    ]


def measured_cells() -> list[tuple[str, int, str]]:
    """Return the cells that were measured."""
    known = pd.read_csv(MEASURED / ROWS).dropna(subset="seconds")
    return list(known[KEY].itertuples(index=False, name=None))


def traced_work() -> pd.DataFrame:
    """Return the traced work of the cells that were measured, in the forecast precisions."""
    rows = [
        dict(zip(KEY, cell, strict=True)) | total_work(_traced(*cell[:2]), cell[2])
        for cell in measured_cells()
        if cell[2] in FORECAST
    ]
    return pd.DataFrame(rows)


def estimates(gpu: str = GPU, asked: Iterable[tuple[str, int, str]] | None = None) -> pd.DataFrame:
    """Return a row per cell: seconds with their 90 % interval, and the bytes held.

    The cells are those that were measured on the H100 if no others are asked for.

    The trivial forecast takes the median utilisation of the fitted runs of the same kind.
    """
    kind, rows = get_gpu(gpu), []
    for model, batch, precision in measured_cells() if asked is None else asked:
        workload, forecast = _traced(model, batch), PRECISIONS[precision]
        found = estimate(workload, kind, forecast)
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
                "utilisation_1_seconds": workload.flops / kind.peak(forecast),
                "held_bytes": held_bytes(model, batch, precision),
            }
        )
    return pd.DataFrame(rows)


def held_bytes(model: str, batch: int, precision: str) -> float:
    """Return what training holds in data parallelism, NaN for torch.autocast."""
    if precision not in FORECAST:
        return math.nan
    is_half = precision == "bf16"  # of the parameters, too
    kept = _seen(model, is_half)
    states = 2 * kept.trained_bytes + kept.frozen_bytes
    return states / (1 + is_half) + kept.bytes_per_sample * batch


@functools.cache
def _seen(model: str, half: bool) -> KeptModel:
    return seen_on_meta(get_task(model), torch.bfloat16 if half else None)


@functools.cache
def _traced(model: str, batch: int) -> Workload:
    return trace(model, int(batch))


def measure_here(out: Path) -> None:
    """Measure the cells that a file lacks on this machine's GPU. A cell that fails says why."""
    known = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=KEY)
    done = set(known[KEY].itertuples(index=False, name=None))
    where = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for model, batch, precision in (cell for cell in cells() if cell not in done):
        try:
            found = _measured(get_task(model), batch, precision)
        except RuntimeError as error:  # out of memory, or an operation without this precision
            found = {"failed": str(error).splitlines()[0]}
        torch.cuda.empty_cache()
        row = {"model": model, "batch": batch, "precision": precision, **found, **where}
        known = pd.concat([known, pd.DataFrame([row])], ignore_index=True)
        write_atomically(out, known.to_csv(index=False, float_format="%.6g"))
        print(row, flush=True)


def _measured(task: Task, batch: int, precision: str) -> dict[str, object]:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    with torch.device("cuda"):
        module = task.build()
    module = module.to(torch.bfloat16) if precision == "bf16" else module
    half = torch.bfloat16 if precision == "bf16" else None
    samples = tuple(
        part.to("cuda", half if half and part.is_floating_point() else part.dtype)
        for part in task.batch(batch, 0)
    )
    torch.cuda.reset_peak_memory_stats()
    taken = [_iteration(task, module, samples, precision) for _ in range(WARMUP + ITERATIONS)]
    seconds = taken[WARMUP:]
    return {
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def _iteration(task: Task, module: torch.nn.Module, samples: Batch, precision: str) -> float:
    module.zero_grad(set_to_none=True)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
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
        memory_error=(rows["held_bytes"] / rows["peak_bytes"] - 1).where(
            rows["precision"] != "amp"
        ),
    )


def fitted_utilisation() -> dict[str, float]:
    """Return the median share of FLOP/s, by precision, in the published runs of the fit."""
    runs = [one for one in published_runs() if one.source != "iterations"]
    on_cores = [one.utilisation for one in runs if one.precision == "fp32"]
    on_units = [one.utilisation for one in runs if one.gpu.family == GPU]
    return {
        precision: float(np.median(on_cores if precision == "fp32" else on_units))
        for precision in set(PRECISIONS.values())
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by precision: cells, median error, share in the interval, of time and of memory.

    The last row is of all precisions that are forecast, which amp is not.
    """
    sizes = rows.assign(
        **{name: rows[name].abs() for name in ("error", "trivial_error", "memory_error")}
    )
    together = sizes[sizes["precision"] != "amp"].assign(precision=TOGETHER)
    kinds = {"median_error": ("error", "median"), "worst": ("error", "max")}
    found = pd.concat([sizes, together]).groupby("precision", sort=False).agg(
        cells=("error", "size"), **kinds, inside=("inside", "mean"),
        constant_utilisation=("trivial_error", "median"), memory=("memory_error", "median"),
    )  # fmt: skip
    return found.round(3)


def left_out() -> pd.DataFrame:
    """Return by precision how far off estimates are by fits that have not seen the model here."""
    rows = pd.read_csv(LEFT_OUT).query("left_out == 'model' and source == 'iterations'")
    trivial = {"constant_utilisation": "constant_utilisation_seconds"}
    return error_table(rows, ["precision"], "measured_seconds", "estimated_seconds", trivial)


def _keep(rows: pd.DataFrame, path: Path) -> None:
    write_atomically(path, rows.to_csv(index=False, float_format="%.6g"))


def main(
    *,
    gpu: Literal[*MEASURED_ON] = GPU,
    forecast: bool = False,
    measure: bool = False,
    work: bool = False,
    refit: bool = False,
    out: Path | None = None,
) -> None:
    """Forecast, measure, trace or estimate again if asked for, and print the comparisons.

    --out is the folder of measured rows.
    """
    blind_rows, out = blind(gpu), out or MEASURED_ON[gpu]
    if forecast:
        require(not blind_rows.exists(), f"{blind_rows} exists, and a blind forecast is made once")
        seen = MEASURED_ON[gpu] / ROWS
        require(not seen.exists(), f"{seen} exists: a forecast would not be blind any more")
        _keep(estimates(gpu, cells()), blind_rows)
    require(
        gpu == GPU or not (work or refit),
        f"--work and --refit are for the {GPU}, to whose rows the roofline is fitted; leave out "
        f"--gpu {gpu}",
    )
    if work:
        _keep(traced_work(), MEASURED / WORK)
    if refit:
        _keep(estimates(), FITTED)
    if measure:
        require(
            blind_rows.exists(), f"there is no {blind_rows} to compare with; --forecast makes it"
        )
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        require(gpu in here, f"this machine has {here}; name it by --gpu")
        measure_here(out / ROWS)
    if not (out / ROWS).exists():
        return
    measured = pd.read_csv(out / ROWS)
    rows = compared(pd.read_csv(blind_rows), measured)
    print(f"blind\n{rows[SHOWN].round(4).to_string(index=False)}")
    tables = {"blind": summary(rows)}
    if gpu == GPU:
        fitted = compared(pd.read_csv(FITTED), measured)
        tables |= {"fitted": summary(fitted), "left out": left_out()}
    for name, table in tables.items():
        print(f"\n{name}\n{table.to_string()}")


if __name__ == "__main__":
    command(main)
