"""Model and data parallelism as a schematic (survey, Fig. 1). Nothing in it is measured."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ddlnb.figures.colours import METHOD_COLOURS
from ddlnb.figures.style import note, styled

WORKERS = (METHOD_COLOURS["WFBP-PS"], METHOD_COLOURS["BSP-A2A"])  # a colour for each
LEFT = (1, 6)  # edges of what the two workers have


@styled
def parallelism_schematic(layers: int = 4) -> Figure:
    """The two ways of Fig. 1, and a pipeline of layers beside them, with two workers each."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4))
    for ax in axes:
        ax.set_xlim(0, 10)
        ax.set_ylim(-0.6, layers + 0.35)
        ax.axis("off")
    _split_neurons(axes[0], layers)
    _split_batch(axes[1], layers)
    _split_layers(axes[2], layers)
    note(figure, "schematic, nothing measured")
    return figure


def _split_neurons(ax: Axes, layers: int) -> None:
    ax.set_title("Fig. 1 (a), model parallelism:\nthe neurons of each layer are split")
    for worker, half in enumerate(("first", "second")):
        for layer in range(layers):
            _box(ax, worker, layer, f"layer {layer + 1},\n{half} half")
        _caption(ax, worker, "the whole batch")
    for layer in range(layers):
        label = "outputs up,\ngradients\ndown" if layer == layers - 2 else ""
        _arrow(ax, (4, layer + 0.8), (6, layer + 0.8), label, -0.72, both=True)


def _split_batch(ax: Axes, layers: int) -> None:
    ax.set_title("Fig. 1 (b), data parallelism:\nthe batch is split")
    for worker, half in enumerate(("first", "second")):
        for layer in range(layers):
            _box(ax, worker, layer, f"layer {layer + 1}")
        _caption(ax, worker, f"{half} half of the batch")
    for layer in range(layers):
        label = "average of\ngradients" if layer == layers - 1 else ""
        _arrow(ax, (4, layer + 0.3), (6, layer + 0.3), label, 0.12, both=True)


def _split_layers(ax: Axes, layers: int) -> None:
    ax.set_title("A pipeline of layers:\nthe layers are split")
    half = layers // 2
    for layer in range(layers):
        _box(ax, int(layer >= half), layer, f"layer {layer + 1}")
    _arrow(ax, (4, half - 0.55), (6, half + 0.35), "activations", 0.42)
    _arrow(ax, (6, half + 0.05), (4, half - 0.85), "their gradients", -0.75)
    for worker in range(2):
        _caption(ax, worker, "the whole batch")


def _box(ax: Axes, worker: int, layer: int, text: str) -> None:
    x, style = LEFT[worker], "round,pad=0.02,rounding_size=0.12"
    colour = WORKERS[worker]
    ax.add_patch(FancyBboxPatch((x, layer), 3, 0.62, boxstyle=style, facecolor=colour, alpha=0.75))
    ax.text(x + 1.5, layer + 0.31, text, ha="center", va="center", fontsize=10)


def _arrow(
    ax: Axes,
    tail: tuple[float, float],
    head: tuple[float, float],
    text: str,
    lift: float,
    *,
    both: bool = False,
) -> None:
    style = "<|-|>" if both else "-|>"
    ax.add_patch(FancyArrowPatch(tail, head, arrowstyle=style, mutation_scale=14, color="#333333"))
    middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2 + lift)
    ax.text(*middle, text, ha="center", va="bottom", fontsize=8)


def _caption(ax: Axes, worker: int, text: str) -> None:
    x = LEFT[worker] + 1.5
    ax.text(x, -0.12, f"worker {worker}\n{text}", ha="center", va="top", fontsize=9)
