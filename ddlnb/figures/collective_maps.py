"""Collectives: which one is best where, and what a cut cable costs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.colours import ALGORITHM_COLOURS, OTHER_COLOUR, PALETTE, text_on
from ddlnb.figures.style import legend, note, styled
from ddlnb.units import size_in_words

if TYPE_CHECKING:
    import pandas as pd

STOPS_AT = 0.6  # where cuts that stop an all-reduce are drawn: below all slowdowns seen


@styled
def best_collectives(rows: pd.DataFrame) -> Figure:
    """The best all-reduce by network, number of hosts and message size, in one colour each.

    ``rows`` have the columns network, hosts, bytes, algorithm, seconds and best. The number in a
    field is the time of the second best algorithm over that of the best.
    """
    require(not rows.empty, "there are no rows to draw")
    names = list(dict.fromkeys(rows["algorithm"]))
    best = rows[rows["best"]].drop_duplicates(["network", "hosts", "bytes"])
    best = best.set_index(["network", "hosts", "bytes"])["algorithm"]
    hosts = sorted(rows["hosts"].unique())
    networks, sizes = list(dict.fromkeys(rows["network"])), sorted(rows["bytes"].unique())
    figure, axes = plt.subplots(
        1, len(hosts), figsize=(5.4 * len(hosts) + 1.5, 0.5 * len(networks) + 1.6), squeeze=False
    )
    colours = [ALGORITHM_COLOURS.get(name, OTHER_COLOUR) for name in names]
    for ax, count in zip(axes[0], hosts, strict=True):
        fields = [[names.index(best[one, count, size]) for size in sizes] for one in networks]
        ax.imshow(
            np.array(fields),
            cmap=ListedColormap(colours),
            vmin=-0.5,
            vmax=len(names) - 0.5,
            aspect="auto",
        )
        for y, network in enumerate(networks):
            for x, size in enumerate(sizes):
                lead = _lead(rows, network, count, size)
                dark = text_on(colours[fields[y][x]])
                ax.text(x, y, f"{lead:.1f}", ha="center", va="center", fontsize=7, color=dark)
        ax.set_xticks(range(len(sizes)), [size_in_words(size) for size in sizes], rotation=45)
        ax.set_yticks(range(len(networks)), networks if count == hosts[0] else [""] * len(networks))
        ax.set_title(f"{count} hosts")
        ax.set_xlabel("message size")
        ax.grid(False)
    shown = [name for name in names if name in set(best)]
    legend(figure, [Patch(color=colours[names.index(name)], label=name) for name in shown])
    note(figure, "source: simulated flows; numbers: time of the second best over that of the best")
    return figure


def _lead(rows: pd.DataFrame, network: str, hosts: int, size: int) -> float:
    of = (rows["network"] == network) & (rows["hosts"] == hosts) & (rows["bytes"] == size)
    first, second = sorted(rows.loc[of, "seconds"])[:2]
    return float(second / first)


@styled
def cut_slowdowns(costs: pd.DataFrame) -> Figure:
    """What each cut cable does to an all-reduce: how much slower it gets, or that it stops.

    ``costs`` have a row per network, algorithm and cable, with its kind and the slowdown, which is
    infinite where hosts lose each other. A dot is a cable; those at the bottom stop it.
    """
    require(not costs.empty, "there are no rows to draw")
    networks = list(dict.fromkeys(costs["network"]))
    names = list(dict.fromkeys(costs["algorithm"]))
    figure, axes = plt.subplots(
        1, len(networks), figsize=(2.2 * len(networks) + 1.5, 4.2), squeeze=False, sharey=True
    )
    random = np.random.default_rng(0)
    for ax, network in zip(axes[0], networks, strict=True):
        for x, name in enumerate(names):
            of = (costs["network"] == network) & (costs["algorithm"] == name)
            slow = costs.loc[of, "slowdown"].to_numpy()
            y = np.where(np.isfinite(slow), slow, STOPS_AT)
            places = x + random.uniform(-0.25, 0.25, len(y))
            colour = ALGORITHM_COLOURS.get(name, OTHER_COLOUR)
            ax.plot(places, y, "o", color=colour, markersize=3, alpha=0.6)
        ax.axhline(1, color="#999999", linewidth=0.8)
        ax.set_xticks(range(len(names)), names, rotation=60, ha="right")
        ax.set_title(network, fontsize=9)
        ax.set_xlabel("algorithm")
    top = float(costs.loc[np.isfinite(costs["slowdown"]), "slowdown"].max())
    ticks = [1.0, *(t for t in (1.5, 2.0, 2.5, 3.0) if t <= top + 0.5)]
    axes[0][0].set_yticks([STOPS_AT, *ticks], ["stops", *(f"{t:g} x" for t in ticks)])
    axes[0][0].set_ylabel("time, over that without a cut")
    note(figure, "source: simulated; a dot is a cable that is cut")
    return figure


@styled
def simulation_speed(table: pd.DataFrame) -> Figure:
    """What it takes to simulate a collective, by the number of its messages.

    ``table`` is that of `benchmarks.network_speed`: collective, network, messages, cpu_seconds.
    """
    require(not table.empty, "there are no rows to draw")
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
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("messages")
    ax.set_ylabel("CPU seconds")
    legend(figure)
    note(figure, "source: measured; compiled player, one thread, routes known")
    return figure
