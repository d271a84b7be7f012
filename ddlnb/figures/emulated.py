"""The emulated benchmark's figure: our methods over a baseline's default, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import colour_of, in_order, say_source, styled

if TYPE_CHECKING:
    import pandas as pd

RATE = "throughput_samples_per_s"


@styled
def over_baselines(rows: pd.DataFrame, baselines: Sequence[str] = ("DDP", "horovod")) -> Figure:
    """Throughput of every method over each baseline's, one line per network, model and workers.

    The dashed line is the baseline itself; points to its right are faster.
    """
    done = rows[rows["source"] == "emulated"]
    present = [name for name in baselines if name in set(done["method"])]
    require(bool(present), f"the rows hold none of the baselines {', '.join(baselines)}")
    cells = list(done.groupby(["network", "model", "gpus"], sort=False))
    figure, axes = plt.subplots(
        1,
        len(present),
        figsize=(6 * len(present), 1.2 + 0.32 * len(cells)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    names = [f"{network}, {model}, {gpus}" for (network, model, gpus), _ in cells]
    methods = [name for name in in_order(done["method"]) if name not in {*baselines, "single"}]
    for ax, baseline in zip(axes[0], present, strict=True):
        for place, (_, cell) in enumerate(cells):
            rate = cell.set_index("method")[RATE]
            for method in methods:
                if method in rate.index:
                    ax.plot(
                        rate[method] / rate[baseline],
                        place,
                        marker="o",
                        color=colour_of(method),
                        markeredgecolor="black",
                        markeredgewidth=0.4,
                        linestyle="none",
                        label=method,
                    )
        ax.axvline(1, color="black", linestyle="--", linewidth=1)
        ax.set_xlabel(f"throughput over {baseline} with its defaults")
        ax.set_yticks(range(len(cells)), names)
        ax.set_ylim(len(cells) - 0.5, -0.5)
    handles, labels = axes[0][0].get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(
        [shown[m] for m in methods if m in shown],
        [m for m in methods if m in shown],
        loc="outside right upper",
        frameon=False,
    )
    say_source(figure, done, "medians of alternating runs")
    return figure
