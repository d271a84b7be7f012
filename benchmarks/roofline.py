"""Fit what programs reach of data sheets, leave models and GPUs out, and print how far off it is.

python -m benchmarks.roofline            # print
python -m benchmarks.roofline --write    # also write data/hardware/roofline*
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from ddlnb.calibration.roofline import (
    ERROR,
    LAUNCH,
    MEMORY,
    Fit,
    Measured,
    fit_roofline,
    leave_out,
    measured,
)
from ddlnb.files import write_atomically
from ddlnb.paths import HARDWARE
from ddlnb.units import US

LEFT_OUT = HARDWARE / "roofline_left_out.csv"


def main() -> None:
    """Fit, check, print and perhaps write."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true")
    write = arguments.parse_args().write
    observations = measured()
    fit, rows = fit_roofline(observations), pd.DataFrame(leave_out(observations))
    print(summary(rows).to_string(index=False))
    text = as_yaml(fit, observations, rows)
    print(text)
    if write:
        write_atomically(HARDWARE / "roofline.yaml", text)
        write_atomically(LEFT_OUT, rows.to_csv(index=False, float_format="%.6g"))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by what was left out and GPU: runs, median and largest error, the trivial one's."""
    off = rows.assign(
        ours=(rows["estimated_seconds"] / rows["measured_seconds"] - 1).abs(),
        trivial=(rows["constant_utilisation_seconds"] / rows["measured_seconds"] - 1).abs(),
    )
    found = off.groupby(["left_out", "gpu"], sort=False).agg(
        runs=("ours", "size"), median_error=("ours", "median"), worst=("ours", "max"),
        constant_utilisation=("trivial", "median"),
    )  # fmt: skip
    return found.round(3).reset_index()


def as_yaml(fit: Fit, observations: list[Measured], rows: pd.DataFrame) -> str:
    """Return the content of data/hardware/roofline.yaml."""
    counts = {kind: [one for one in observations if one.kind == kind] for kind in fit.names}
    lines = ["# Written by python -m benchmarks.roofline --write; `Efficiency` has the meanings."]
    lines.append("matrix:")
    for name in fit.names:
        if name not in (MEMORY, LAUNCH):
            lines.append(f"  {name}: {_entry(fit, name, _said(counts[name]))}")
    lines.append(f"memory: {_entry(fit, MEMORY, _said(observations))}")
    lines.append(f"launch: {_entry(fit, LAUNCH, _said(observations), US, ' us')}")
    lines.append("# Families of GPUs that were measured.")
    lines.append("measured:")
    for kind, found in counts.items():
        if found:
            lines.append(f"  {kind}: [{', '.join(sorted({one.gpu.family for one in found}))}]")
    lines += [
        "# Root mean square of the logarithm of estimated over measured seconds of models that",
        "# were left out, at least the error that a fit expects; for others, of left-out GPUs",
        "# (roofline_left_out.csv). Convolutions on matrix units were not measured: a guess.",
        "spread:",
    ]
    for kind, found in counts.items():
        if found:
            gpus = {one.gpu.name for one in found}
            lines.append(f"  {kind}: {max(ERROR, _off(rows, 'model', gpus)):.3f}")
    lines.append(f"  others: {_off(rows, 'gpu', set(rows['gpu'])):.3f}")
    lines.append("  convolutions: 0.35")
    return "\n".join(lines) + "\n"


def _off(rows: pd.DataFrame, left_out: str, gpus: set[str]) -> float:
    """Return the root mean square of logarithms of errors, every GPU counting as much."""
    chosen = rows[(rows["left_out"] == left_out) & rows["gpu"].isin(gpus)]
    squared = np.log(chosen["estimated_seconds"] / chosen["measured_seconds"]) ** 2
    return float(squared.groupby(chosen["gpu"]).mean().mean() ** 0.5)


def _said(found: list[Measured]) -> str:
    if not found:
        return "matrix units of the measured generations, of which others are believed to be like"
    names = ", ".join(sorted({one.gpu.name for one in found}))
    return f"{len(found)} runs on {names} (data/published)"


def _entry(fit: Fit, name: str, source: str, factor: float = 1.0, unit: str = "") -> str:
    value, low, high = (f"{number / factor:.3g}{unit}" for number in fit.interval(name))
    return f'{{value: {value}, low: {low}, high: {high}, from: "{source}"}}'


if __name__ == "__main__":
    main()
