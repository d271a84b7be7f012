"""The figure of time to target over cluster sizes: speed-ups over the quickest lossless method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.learning import BAND, DASHES, PALETTE
from ddlnb.figures.style import say_source, short, styled

if TYPE_CHECKING:
    import pandas as pd


@styled
def target_speedups(table: pd.DataFrame) -> Figure:
    """Speed-ups to the target against the workers: a panel per network, a line per lossy method.

    ``table`` is that of `ddlnb.training.cost.time_to_target.time_to_target`, for several numbers of workers.
    Bands are 95 % intervals over seeds; where a run never reaches the target there is no point.
    Below the dashed line the lossless method is quicker.
    """
    lossy = table[~table["is_dense"].astype(bool)]
    require(not lossy.empty, "there are no lossy methods to draw")
    networks = list(dict.fromkeys(lossy["network"]))
    methods = list(dict.fromkeys(lossy["method"]))
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=(1.0 + 3.2 * len(networks), 3.6 + 0.2 * len(methods)),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    counts = sorted(lossy["workers"].unique())
    for ax, network in zip(axes[0], networks, strict=True):
        for number, method in enumerate(methods):
            rows = lossy[(lossy["network"] == network) & (lossy["method"] == method)]
            rows = rows.sort_values("workers")
            speedups = rows["speedup"].where(rows["speedup"] > 0, math.nan)
            colour = PALETTE[(number + 1) % len(PALETTE)]
            dash = DASHES[(number + 1) // len(PALETTE) % len(DASHES)]
            ax.plot(
                rows["workers"],
                speedups,
                dash,
                color=colour,
                marker="o",
                markersize=4,
                label=short(method),
            )
            ax.fill_between(
                rows["workers"],
                rows["speedup_low"].astype(float),
                rows["speedup_high"].astype(float),
                color=colour,
                alpha=BAND,
                linewidth=0,
            )
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        ax.set_xscale("log", base=2)
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.minorticks_off()
        ax.set(title=network, xlabel="workers")
    axes[0][0].set_ylabel("speed-up to the target over the dense best")
    axes[0][0].set_ylim(bottom=0)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    first = table.iloc[0]
    only = table.head(1)[["source"]].assign(source="iterations measured, seconds simulated")
    said = sorted({source.partition("compression ")[2] for source in lossy["source"]})
    what = f"{first['model']}, iterations of {first['task']} to a test loss of {first['target']:g}"
    say_source(figure, only, f"{what}\nseconds of compression: {' and '.join(filter(None, said))}")
    return figure
