"""Networks as graphs with the load of their links, and collectives as measured and as forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import FancyArrowPatch

from ddlnb.calibration.collective_tables import SECONDS, bus_factor
from ddlnb.calibration.collectives import FittedCollectives, forecast
from ddlnb.errors import require
from ddlnb.figures.style import (
    GREY,
    METHOD_COLOURS,
    POINT,
    doubling_axis,
    legend,
    legend_line,
    legend_mark,
    note,
    styled,
)
from ddlnb.networks.network import Network
from ddlnb.units import GB, US, counted, size_in_words

Point = tuple[float, float]
LOAD_COLOURS = "plasma_r"
MARKERS = {
    "gpu": ("s", "#009E73", "GPU"),
    "host": ("s", METHOD_COLOURS["WFBP-A2A"], "host"),
    "nic": ("^", METHOD_COLOURS["WFBP-PS"], "NIC"),
    "switch": ("o", METHOD_COLOURS["BSP-A2A"], "switch"),
}
PANEL = (4.2, 3.0)  # inches
MOST_COLUMNS = 3


@styled
def network_loads(loads: Mapping[str, tuple[Network, Sequence[float]]], source: str) -> plt.Figure:
    """The links of networks, coloured by the share of the time in which each was busy.

    ``loads`` has a network and the utilisation of its links, from 0 to 1, under the title of its
    panel; ``source`` says what was run. Raises InputError if there is nothing to draw.
    """
    columns = min(MOST_COLUMNS, len(loads))
    rows = -(-len(loads) // columns)
    size = (PANEL[0] * columns + 0.8, PANEL[1] * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    shades = ScalarMappable(Normalize(0, 1), LOAD_COLOURS)
    for ax, (title, (network, busy)) in zip(axes.flat, loads.items(), strict=False):
        ax.axis("off")
        ax.set_title(title, fontsize=9)
        draw_network(ax, network, list(shades.to_rgba(np.asarray(busy, float))))
    for ax in axes.flat[len(loads) :]:
        ax.axis("off")
    figure.colorbar(shades, ax=axes, label="busy share of time", shrink=0.8)
    kinds = {device.kind for network, _ in loads.values() for device in network.devices}
    handles = [legend_mark(c, m, name) for k, (m, c, name) in MARKERS.items() if k in kinds]
    legend(figure, handles, "upper right", columns=len(handles))
    return note(figure, f"source: {source}")


def draw_network(ax: plt.Axes, network: Network, colours: Sequence[Any] | None = None) -> None:
    """Draw devices and cables; with ``colours``, one for each link, directions are side by side.

    Without colours a cable is one grey line.
    """
    places = device_places(network)
    wraps = not network.switches
    for number, link in enumerate(network.links):
        if colours is None and number % 2:
            continue
        (x, y), (u, v) = places[link.start], places[link.end]
        is_far = wraps and (abs(x - u) > 1 or abs(y - v) > 1)  # closes a torus
        is_level = bool(network.switches) and y == v  # switches of one layer that are joined
        bend = 0.12 if is_far else 0.35 if is_level else 0.0
        ax.add_patch(
            FancyArrowPatch(
                (x, y),
                (u, v),
                arrowstyle="-",
                connectionstyle=f"arc3,rad={bend + (0.05 if colours else 0.0)}",
                color=GREY if colours is None else colours[number],
                linewidth=0.7 if colours is None else 1.4,
            )
        )
    for kind, (marker, colour, _) in MARKERS.items():
        points = [places[i] for i, device in enumerate(network.devices) if device.kind == kind]
        if points:
            ax.plot(*np.array(points).T, marker, color=colour, markersize=5)
    ax.margins(0.08, 0.2)


def device_places(network: Network) -> list[Point]:
    """Return where devices are drawn: endpoints below, switches above them, a torus as a grid."""
    if not network.switches and all(len(device.position) == 2 for device in network.devices):
        return [
            (float(device.position[1]), -float(device.position[0])) for device in network.devices
        ]
    cables = nx.Graph((link.start, link.end) for link in network.links)
    levels = nx.multi_source_dijkstra_path_length(cables, set(network.endpoints))
    places: list[Point] = [(0.0, 0.0)] * len(network.devices)
    for level in set(levels.values()):
        row = sorted(device for device, of in levels.items() if of == level)
        for order, device in enumerate(row):
            places[device] = ((order + 0.5) / len(row) * network.ranks, float(level))
    return places


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
