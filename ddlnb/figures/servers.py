"""Parameter servers: throughput against their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import GREY, PALETTE
from ddlnb.figures.style import doubling_axis, legend, legend_line, note, styled
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

LOOKS = {"extra machines": (PALETTE[1], "o", "-"), "workers' nodes": (PALETTE[2], "s", "--")}


@styled
def servers_needed(rows: pd.DataFrame) -> Figure:
    """Throughput by number of parameter servers, over that of the best all-to-all method.

    ``rows`` are those of a sweep: model, network, place ("none" for all-to-all), servers,
    throughput_samples_per_s. A column of panels per network, a row per model; the dotted line
    at 1 is all-to-all.
    """
    require(not rows.empty, "there are no rows to draw")
    models, networks = (list(dict.fromkeys(rows[name])) for name in ("model", "network"))
    figure, axes = plt.subplots(
        len(models),
        len(networks),
        figsize=(3.1 * len(networks) + 1, 2.2 * len(models) + 0.6),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    counts = sorted(int(n) for n in rows.loc[rows["servers"] > 0, "servers"].unique())
    for row, model in zip(axes, models, strict=True):
        for ax, network in zip(row, networks, strict=True):
            part = rows[(rows["model"] == model) & (rows["network"] == network)]
            goal = part.loc[part["place"] == "none", "throughput_samples_per_s"].iloc[0]
            ax.axhline(1, color=GREY, linewidth=1, linestyle=":")
            for place, (colour, marker, dash) in LOOKS.items():
                line = part[part["place"] == place]
                ax.plot(
                    line["servers"],
                    line["throughput_samples_per_s"] / goal,
                    color=colour,
                    marker=marker,
                    linestyle=dash,
                    markersize=4,
                    label=f"servers on {place}",
                )
            ax.set_title(f"{model}, {network}", fontsize=9)
            doubling_axis(ax, counts, str)
    axes[0][0].set_ylim(0, None)
    for ax in axes[-1]:
        ax.set_xlabel("parameter servers")
    for ax in axes[:, 0]:
        ax.set_ylabel("throughput over\nthe best all-to-all", fontsize=9)
    handles, _ = axes[0][0].get_legend_handles_labels()
    legend(figure, [*handles, legend_line(GREY, "the best all-to-all", ":")])
    gpus = int(rows["gpus"].iloc[0])
    note(figure, f"source: simulated, {counted(gpus, 'GPU')}; the best method of each architecture")
    return figure
