"""Measured collectives, the model fitted to them, and its forecasts of more nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.calibration.collective_tables import SECONDS, bus_factor
from ddlnb.calibration.collectives import FittedCollectives, forecast
from ddlnb.errors import require
from ddlnb.figures.style import POINT, doubling_axis, legend_line, legend_mark, note, styled
from ddlnb.units import GB, US, counted, size_in_words

FEWEST = 5  # sizes of a block that is worth a panel
COLUMNS = 3
TELLING = ("library", "settings", "source", "block")  # what tells apart blocks on like machines
COLOURS = plt.get_cmap("viridis")
TICKS = (1 << 10, 1 << 15, 1 << 20, 1 << 25, 1 << 30)


@styled
def collective_rates(
    rows: pd.DataFrame, fitted: FittedCollectives, more_nodes: Sequence[int] = (4, 16, 64)
) -> plt.Figure:
    """Bus bandwidth against the size of the message: measured, fitted, and forecast for more nodes.

    ``rows`` are those of `read_collectives`; drawn is every block with at least five sizes. Bands
    are 90 % intervals. Raises InputError if there is no such block.
    """
    parts = [part for _, part in rows.groupby("block", sort=False) if _is_worth_it(part)]
    require(bool(parts), f"no block has {FEWEST} sizes to draw; import a log with more of them")
    columns = min(COLUMNS, len(parts))
    shape = (ceil(len(parts) / columns), columns)
    size = (2.0 + 4.0 * columns, 0.5 + 3.4 * shape[0])
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, sharex=True)
    shown = sorted({*map(int, rows["nodes"]), *more_nodes})
    spaced = np.linspace(0.0, 0.9, len(shown))
    colours = {n: COLOURS(at) for n, at in zip(shown, spaced, strict=True)}
    for ax, part, title in zip(axes.flat, parts, _titles(parts), strict=False):
        _panel(ax, part, fitted, colours, more_nodes)
        ax.set_title(title)
    for ax in list(axes.flat)[len(parts) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("bus bandwidth (GB/s)")
    for ax in list(axes.flat)[: len(parts)][-columns:]:  # below which there is no other panel
        ax.set_xlabel("size of the message")
    handles: list[Any] = [
        legend_line(colour, counted(nodes, "node"), "-") for nodes, colour in colours.items()
    ]
    marks = legend_mark("white", "o", "measured", markeredgecolor="black")
    figure.legend(handles=[*handles, marks], loc="outside right upper")
    return note(
        figure,
        "points: measured, by the source of each panel | lines and bands: forecast, 90 % interval",
    )


def _is_worth_it(part: pd.DataFrame) -> bool:
    return part["size_bytes"].nunique() >= FEWEST


def _titles(parts: Sequence[pd.DataFrame]) -> list[str]:
    """Return what was run on what, and what else tells apart panels that would be called alike."""
    firsts = [part.iloc[0] for part in parts]
    titles = [_machines(first) for first in firsts]
    for title in {one for one in titles if titles.count(one) > 1}:
        alike = [index for index, one in enumerate(titles) if one == title]
        values = [[str(firsts[i].get(column, "")) for i in alike] for column in TELLING]
        told = next((one for one in values if len(set(one)) == len(one)), values[-1])
        for index, value in zip(alike, told, strict=True):
            titles[index] = f"{title}, {value}"
    return titles


def _machines(first: pd.Series) -> str:
    network = "network not stated" if first["network"] == "not stated" else first["network"]
    return f"{first['collective'].replace('_', '-')}, {first['gpu']}\n{network}"


def _panel(
    ax: plt.Axes,
    part: pd.DataFrame,
    fitted: FittedCollectives,
    colours: dict[int, Any],
    more_nodes: Sequence[int],
) -> None:
    most = int(part["nodes"].max())
    beyond = [nodes for nodes in more_nodes if nodes > most] if most > 1 else []
    for nodes in [*sorted(part["nodes"].unique()), *beyond]:
        like = part[part["nodes"] == min(nodes, most)].drop_duplicates("size_bytes")
        asked = like.sort_values("size_bytes").assign(nodes=int(nodes))
        asked["ranks"] = asked["nodes"] * asked["gpus_per_node"]
        times = forecast(fitted, asked)
        sent = _sent(asked)
        sizes = asked["size_bytes"].to_numpy(float)
        middle, low, high = (sent / (times[name] * US) / GB for name in ("time_us", "high", "low"))
        ax.plot(sizes, middle, color=colours[int(nodes)], linewidth=1.2)
        ax.fill_between(sizes, low, high, color=colours[int(nodes)], alpha=0.15, linewidth=0)
    for nodes, group in part.groupby("nodes"):
        rates = _sent(group) / group[SECONDS].to_numpy(float) / GB
        sizes = group["size_bytes"].to_numpy(float)
        ax.plot(sizes, rates, marker="o", color=colours[int(nodes)], markersize=4, **POINT)
    doubling_axis(ax, TICKS, size_in_words)
    ax.tick_params(labelbottom=True)


def _sent(rows: pd.DataFrame) -> np.ndarray:
    pairs = zip(rows["collective"], rows["ranks"], strict=True)
    return rows["size_bytes"].to_numpy(float) * [bus_factor(*pair) for pair in pairs]
