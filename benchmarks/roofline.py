"""Fit what programs reach of data sheets, leave models and GPUs out, and print how far off it is.

python -m benchmarks.roofline            # print
python -m benchmarks.roofline --write    # also write data/hardware/roofline*
"""

import math
from collections.abc import Collection

import numpy as np
import pandas as pd

from benchmarks.command import command
from benchmarks.errors import error_table
from benchmarks.roofline_fit import (
    ERROR,
    FP8,
    GRAPH,
    HOST,
    IMAGES,
    MEMORY,
    MOVED,
    SHARED,
    SUMS,
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
    EAGER,
    OTHER_CONVOLUTIONS,
    RECURRENT,
    WINOGRAD_PRECISION,
    others_of,
)

ALL = 1.0  # what an eager program moves: to fuse adds no bytes, whatever the fit says
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
    pairs = zip(rows["left_out"], rows["kind"], strict=True)
    spread = [_spread(rows, left_out, [kind]) for left_out, kind in pairs]
    logarithm = np.log(rows["estimated_seconds"] / rows["measured_seconds"]).abs()
    return error_table(
        rows,
        ["left_out", "gpu", "kind"],
        "measured_seconds",
        "estimated_seconds",
        {"constant_utilisation": "constant_utilisation_seconds"},
        logarithm <= Z90 * np.array(spread),
        count="runs",
    ).reset_index()


def as_yaml(fit: Fit, observations: list[Measured], rows: pd.DataFrame) -> str:
    """Return the content of data/hardware/roofline.yaml."""
    counts = {kind: [one for one in observations if one.kind == kind] for kind in fit.names}
    images = [one for one in observations if one.convolves]
    others = [one for one in observations if not one.convolves]
    fast = [one for one in images if one.precision == WINOGRAD_PRECISION]
    halved = [one for one in images if one.halves_sums]
    families = {kind: sorted({one.gpu.family for one in counts[kind]}) for kind in counts}
    convolving = {kind for kind in rows["kind"] if others_of(kind) == OTHER_CONVOLUTIONS}
    eager = rows[rows["software"] == EAGER]
    models = {
        kind: {one.model for one in runs if one.software == EAGER} for kind, runs in counts.items()
    }
    several = [kind for kind, known in models.items() if len(known) > 1]
    lines = [
        "# Written by python -m benchmarks.roofline --write; `Efficiency` has the meanings.",
        "matrix:",
        *(
            f"  {name}: {_entry(fit, name, _said(counts[name]))}"
            for name in fit.names
            if name not in SHARED
        ),
        "memory:",
        f"  {CONVOLUTIONS}: {_entry(fit, IMAGES, _said(images))}",
        f"  others: {_entry(fit, MEMORY, _said(others))}",
        f"host: {_entry(fit, HOST, _said(observations), US, ' us')}",
        f"graph: {_entry(fit, GRAPH, 'assumed: graphs are handed over without Python', US, ' us')}",
        f"launch: {LAUNCH}",
        "# Shares of the bytes of operations without FLOPs that programs move; of eager ones all.",
        "moved:",
        *(
            f"  {_key(name)}: {_entry(fit, name, _said(_like(key, observations)), most=ALL)}"
            for key, name in MOVED.items()
        ),
        f"winograd: {_entry(fit, WINOGRAD, _said(fast))}",
        f"fp8: {_entry(fit, FP8, _said([one for one in observations if one.precision == FP8]))}",
        f"sums: {_entry(fit, SUMS, _said(halved))}",
        "# Families of GPUs that were measured.",
        "measured:",
        *(f"  {kind}: [{', '.join(names)}]" for kind, names in families.items() if names),
        "# Standard deviation of the logarithm of estimated over measured seconds of models that",
        "# were left out, so that 90 % intervals hold; for others, of left-out GPUs",
        "# (roofline_left_out.csv). Generations with convolutions of one model have that of all.",
        "spread:",
        *(f"  {kind}: {_spread(eager, 'model', [kind]):.3f}" for kind in several),
        f"  {OTHER_CONVOLUTIONS}: {_spread(eager, 'model', convolving):.3f}",
        f"  others: {_spread(eager, 'gpu', set(rows['kind'])):.3f}",
        "# Of programs that are not eager, of left-out GPUs.",
        *(
            f"  {_key(name)}: {_spread(_of(rows, *key), 'gpu', [*rows['kind']]):.3f}"
            for key, name in MOVED.items()
        ),
        f"  {RECURRENT}: {RECURRENT_SPREAD:.3f}  # assumed: within a factor of two",
    ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name.removeprefix("moved, ")


def _like(key: tuple[bool, str], observations: list[Measured]) -> list[Measured]:
    return [one for one in observations if (one.convolves, one.software) == key]


def _of(rows: pd.DataFrame, convolves: bool, software: str) -> pd.DataFrame:
    return rows[(rows["convolves"] == convolves) & (rows["software"] == software)]


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


def _entry(
    fit: Fit,
    name: str,
    source: str,
    factor: float = 1.0,
    unit: str = "",
    *,
    most: float = math.inf,
) -> str:
    ends = (min(number, most) for number in fit.interval(name))
    value, low, high = (f"{number / factor:.3g}{unit}" for number in ends)
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
