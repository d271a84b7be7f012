"""Fit what programs reach of data sheets, leave models and GPUs out, and print how far off it is.

python -m benchmarks.roofline            # print
python -m benchmarks.roofline --write    # also write data/hardware/roofline*
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pandas as pd

from benchmarks.command import command
from benchmarks.roofline_fit import (
    ERROR,
    HOST,
    IMAGES,
    MEMORY,
    SHARED,
    WINOGRAD,
    Fit,
    Measured,
    fit_roofline,
    leave_out,
    measured,
)
from ddlnb.files import HARDWARE, write_atomically
from ddlnb.simulator.draws import Z90
from ddlnb.units import US
from ddlnb.workloads.roofline import (
    CONVOLUTIONS,
    OTHER_CONVOLUTIONS,
    RECURRENT,
    WINOGRAD_PRECISION,
    others_of,
)

LEFT_OUT = HARDWARE / "roofline_left_out.csv"
# Of a kernel that cuDNN launches for a step of a recurrent layer.
LAUNCH = (
    '{value: 4 us, low: 2 us, high: 10 us, from: "assumed: short kernels in a row take about 4 us '
    "each (A. Gray, Getting started with CUDA graphs, NVIDIA 2019); no open run of a recurrent "
    'layer is here"}'
)


# Nobody measured one: reading the weights of every step again from the second cache, or from a
# memory that does not get them at its full rate, makes a factor of two.
RECURRENT_SPREAD = math.log(2) / Z90


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return errors by what was left out, GPU and kind, the share in intervals, the trivial one."""
    spread = [_spread(rows, what, [kind]) for what, kind in _pairs(rows)]
    logarithm = np.log(rows["estimated_seconds"] / rows["measured_seconds"]).abs()
    off = rows.assign(
        inside=logarithm <= Z90 * np.array(spread),
        ours=(rows["estimated_seconds"] / rows["measured_seconds"] - 1).abs(),
        trivial=(rows["constant_utilisation_seconds"] / rows["measured_seconds"] - 1).abs(),
    )
    found = off.groupby(["left_out", "gpu", "kind"], sort=False).agg(
        runs=("ours", "size"), median_error=("ours", "median"), worst=("ours", "max"),
        inside=("inside", "mean"),
        constant_utilisation=("trivial", "median"),
    )  # fmt: skip
    return found.round(3).reset_index()


def _pairs(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(rows["left_out"], rows["kind"], strict=True))


def as_yaml(fit: Fit, observations: list[Measured], rows: pd.DataFrame) -> str:
    """Return the content of data/hardware/roofline.yaml."""
    counts = {kind: [one for one in observations if one.kind == kind] for kind in fit.names}
    lines = ["# Written by python -m benchmarks.roofline --write; `Efficiency` has the meanings."]
    lines.append("matrix:")
    for name in fit.names:
        if name not in SHARED:
            lines.append(f"  {name}: {_entry(fit, name, _said(counts[name]))}")
    images = [one for one in observations if one.convolves]
    others = [one for one in observations if not one.convolves]
    lines.append("memory:")
    lines.append(f"  {CONVOLUTIONS}: {_entry(fit, IMAGES, _said(images))}")
    lines.append(f"  others: {_entry(fit, MEMORY, _said(others))}")
    lines.append(f"host: {_entry(fit, HOST, _said(observations), US, ' us')}")
    lines.append(f"launch: {LAUNCH}")
    fast = [one for one in images if one.precision == WINOGRAD_PRECISION]
    lines.append(f"winograd: {_entry(fit, WINOGRAD, _said(fast))}")
    lines.append("# Families of GPUs that were measured.")
    lines.append("measured:")
    for kind, found in counts.items():
        if found:
            lines.append(f"  {kind}: [{', '.join(sorted({one.gpu.family for one in found}))}]")
    lines += [
        "# Standard deviation of the logarithm of estimated over measured seconds of models that",
        "# were left out, so that 90 % intervals hold; for others, of left-out GPUs",
        "# (roofline_left_out.csv). Generations with convolutions of one model have that of all.",
        "spread:",
    ]
    for kind, found in counts.items():
        if len({one.model for one in found}) > 1:
            lines.append(f"  {kind}: {_spread(rows, 'model', [kind]):.3f}")
    convolving = {kind for kind in rows["kind"] if others_of(kind) == OTHER_CONVOLUTIONS}
    lines.append(f"  {OTHER_CONVOLUTIONS}: {_spread(rows, 'model', convolving):.3f}")
    lines.append(f"  others: {_spread(rows, 'gpu', set(rows['kind'])):.3f}")
    lines.append(f"  {RECURRENT}: {RECURRENT_SPREAD:.3f}  # assumed: within a factor of two")
    return "\n".join(lines) + "\n"


def _spread(rows: pd.DataFrame, left_out: str, kinds: Collection[str]) -> float:
    """Return a standard deviation of the logarithm of estimated over measured seconds.

    It is the root mean square, in which every GPU and source counts as much, or more where nine in
    ten runs would not be within the 90 % interval, and at least what a fit expects.
    """
    chosen = rows[(rows["left_out"] == left_out) & rows["kind"].isin(kinds)]
    off = np.log(chosen["estimated_seconds"] / chosen["measured_seconds"]).abs()
    mean = (off**2).groupby([chosen["gpu"], chosen["source"]]).mean().mean() ** 0.5
    return float(max(ERROR, mean, off.quantile(0.9) / Z90))


def _said(found: list[Measured]) -> str:
    if not found:
        return "the measured generations, which others are believed to be like"
    names = ", ".join(sorted({one.gpu.name for one in found}))
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    return f"{runs} on {names} (data/published, data/measured)"


def _entry(fit: Fit, name: str, source: str, factor: float = 1.0, unit: str = "") -> str:
    value, low, high = (f"{number / factor:.3g}{unit}" for number in fit.interval(name))
    return f'{{value: {value}, low: {low}, high: {high}, from: "{source}"}}'


def main(*, write: bool = False) -> None:
    """Fit, check and print; with --write the tables of data/hardware are made again."""
    observations = measured()
    fit, rows = fit_roofline(observations), pd.DataFrame(leave_out(observations))
    print(summary(rows).to_string(index=False))
    text = as_yaml(fit, observations, rows)
    print(text)
    if write:
        write_atomically(HARDWARE / "roofline.yaml", text)
        write_atomically(LEFT_OUT, rows.to_csv(index=False, float_format="%.6g"))


if __name__ == "__main__":
    command(main)
