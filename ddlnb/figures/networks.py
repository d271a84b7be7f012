"""Networks drawn as graphs, with what their links carry in colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import FancyArrowPatch

from ddlnb.figures.style import GREY, METHOD_COLOURS, legend, legend_mark, note, styled
from ddlnb.networks.network import Network

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
