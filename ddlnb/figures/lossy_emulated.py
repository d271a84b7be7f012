"""Lossy methods on emulated links: what was forecast beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import METHOD_COLOURS, say_source, short, styled
from ddlnb.units import MS

if TYPE_CHECKING:
    import pandas as pd

MEASURED, FORECAST = METHOD_COLOURS["DDP"], METHOD_COLOURS["ByteScheduler-A2A"]


@styled
def lossy_against_emulated(rows: pd.DataFrame) -> Figure:
    """Milliseconds of an iteration: a panel per network, a line per method.

    ``rows`` are those of `benchmarks.lossy_emulated`: a dot is a measured repetition, a ring the
    forecast. Raises InputError if there are none.
    """
    require(len(rows) > 0, "there are no runs to draw")
    networks = list(dict.fromkeys(rows["network"]))
    methods = list(dict.fromkeys(rows["method"]))
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=(2.4 + 2.6 * len(networks), 1.3 + 0.26 * len(methods)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax, network in zip(axes[0], networks, strict=True):
        part = rows[rows["network"] == network]
        heights = part["method"].map(methods.index)
        ax.plot(part["iteration_seconds"] / MS, heights, ".", color=MEASURED, label="measured")
        told = part.drop_duplicates("method")
        at = told["method"].map(methods.index)
        ax.plot(
            told["forecast"] / MS,
            at,
            "o",
            color=FORECAST,
            markersize=9,
            fillstyle="none",
            markeredgewidth=1.5,
            label="forecast",
        )
        ax.set(title=network, xlabel="ms per iteration", xlim=(0, None))
    axes[0][0].set_yticks(range(len(methods)), [short(method) for method in methods])
    axes[0][0].invert_yaxis()
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False)
    say_source(figure, rows, f"{rows['model'].iloc[0]}, {rows['workers'].iloc[0]} nodes")
    return figure
