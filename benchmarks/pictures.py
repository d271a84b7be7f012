"""What benchmarks draw: forecasts beside emulated links, speed, baselines, and networks that drift.

Throughput, measured: by method and workers (Fig. 4), by engine, and over the baselines.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import (
    DARK,
    GREY,
    METHOD_COLOURS,
    PALETTE,
    POINT,
    colour_of,
    facets,
    in_order,
    legend,
    legend_mark,
    names_down,
    note,
    say_source,
    short,
    styled,
)
from ddlnb.units import MS, counted

COMPRESSED, RELAXED = METHOD_COLOURS["ByteScheduler-A2A"], METHOD_COLOURS["WFBP-A2A"]


@styled
def lossy_against_emulated(rows: pd.DataFrame) -> Figure:
    """Milliseconds of an iteration on emulated links, forecast and measured: a panel per network.

    ``rows`` are those of `benchmarks.lossy_emulated`: a dot is a measured repetition, a ring the
    forecast. Raises InputError if there are none.
    """
    methods = list(rows["method"].unique()) if len(rows) else []
    height = 1.3 + 0.26 * len(methods)
    figure, panels = facets(rows, "network", width=(2.4, 2.6), height=height, sharey=True)
    ring: dict[str, Any] = {"markersize": 9, "fillstyle": "none", "markeredgewidth": 1.5}
    for ax, _, part in panels:
        lines = part["method"].map(methods.index)
        ax.plot(part["iteration_seconds"] / MS, lines, ".", color=DARK, label="measured")
        one = part.drop_duplicates("method")
        lines = one["method"].map(methods.index)
        ax.plot(one["forecast"] / MS, lines, "o", color=COMPRESSED, label="forecast", **ring)
        ax.set(xlabel="ms per iteration", xlim=(0, None))
    names_down(panels[0][0], [short(method) for method in methods])
    legend(figure, where="upper left", columns=2)
    say_source(figure, rows, f"{rows['model'].iloc[0]}, {counted(rows['workers'].iloc[0], 'node')}")
    return figure


@styled
def simulation_speed(table: pd.DataFrame) -> Figure:
    """What it takes to simulate a collective, by the number of its messages.

    ``table`` is that of `benchmarks.network_speed`: collective, network, messages, cpu_seconds.
    """
    figure, ax = plt.subplots(figsize=(7, 4))
    for number, (name, rows) in enumerate(table.groupby("collective", sort=False)):
        ax.plot(
            rows["messages"],
            rows["cpu_seconds"],
            marker="o",
            linestyle="none",
            color=PALETTE[number % len(PALETTE)],
            label=name,
        )
    ax.set(xscale="log", yscale="log", xlabel="messages", ylabel="CPU seconds")
    legend(figure)
    note(figure, "source: measured; compiled player, one thread, routes known")
    return figure


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
    )
    methods = [name for name in in_order(done["method"]) if name not in {*baselines, "single"}]
    for ax, baseline in zip(axes[0], present, strict=True):
        for line, (_, cell) in enumerate(cells):
            rate = cell.set_index("method")[RATE]
            for method in [name for name in methods if name in rate.index]:
                ratio = rate[method] / rate[baseline]
                ax.plot(ratio, line, marker="o", color=colour_of(method), **POINT)
        ax.axvline(1, color="black", linestyle="--", linewidth=1)
        ax.set_xlabel(f"throughput over {baseline} with its defaults")
    names_down(axes[0][0], [f"{network}, {model}, {gpus}" for (network, model, gpus), _ in cells])
    legend(figure, [legend_mark(colour_of(name), "o", name, **POINT) for name in methods])
    say_source(figure, done, "medians of alternating runs")
    return figure


COLOURS = {
    "kept": METHOD_COLOURS["ByteScheduler-A2A"],
    "made anew": METHOD_COLOURS["WFBP-A2A"],
    "oracle": GREY,
}


@styled
def drift_iterations(rows: pd.DataFrame) -> Figure:
    """Milliseconds of every iteration while the network becomes slower, by what plans do then.

    ``rows`` have the columns drift, contender, repetition, iteration, seconds, change and takeover:
    before which iteration the network changed, and a new plan took over (NaN where none did). A
    line is the median over repetitions, the band from the least to the most; a panel is a drift.
    """
    figure, panels = facets(rows, "drift", width=(1.5, 4.2), height=3.6)
    for ax, _, part in panels:
        for contender, own in part.groupby("contender", sort=False):
            each = 1e3 * own.groupby("iteration")["seconds"].agg(["median", "min", "max"])
            colour = COLOURS.get(str(contender), DARK)
            ax.plot(each.index, each["median"], color=colour, label=str(contender))
            ax.fill_between(
                each.index, each["min"], each["max"], color=colour, alpha=0.2, linewidth=0
            )
        ax.axvline(part["change"].iloc[0] - 0.5, color=DARK, linewidth=0.9, linestyle=":")
        for taken in part["takeover"].dropna().unique():
            ax.axvline(taken - 0.5, color=COLOURS["made anew"], linewidth=0.9, linestyle="--")
        ax.set(xlabel="iteration", ylim=(0, None))
    panels[0][0].set_ylabel("iteration (ms)")
    legend(figure)
    note(figure, "source: emulated; dotted: the network changes; dashed: a new plan takes over")
    return figure
