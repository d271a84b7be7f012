"""Model and data parallelism as a schematic (survey, Fig. 1). Nothing in it is measured."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ddlnb.figures.colours import METHOD_COLOURS
from ddlnb.figures.style import note, styled


@styled
def parallelism_schematic(layers: int = 4) -> Figure:
    """Draw model parallelism next to data parallelism, two workers each, as in Fig. 1."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    first, second = METHOD_COLOURS["WFBP-PS"], METHOD_COLOURS["BSP-A2A"]
    for ax in axes:
        ax.set_xlim(0, 10)
        ax.set_ylim(-0.6, layers + 0.35)
        ax.axis("off")
    half = layers // 2
    left, right = axes
    left.set_title("Model parallelism: layers are split")
    for layer in range(layers):
        worker = 0 if layer < half else 1
        _box(left, 1 + 5 * worker, layer, f"layer {layer + 1}", (first, second)[worker])
    _arrow(left, (4, half - 0.55), (6, half + 0.35), "activations", 0.42)
    _arrow(left, (6, half + 0.05), (4, half - 0.85), "their gradients", -0.75)
    _caption(left, 2.5, "worker 0\nthe whole batch")
    _caption(left, 7.5, "worker 1\nthe whole batch")
    right.set_title("Data parallelism: the batch is split")
    for worker in range(2):
        for layer in range(layers):
            _box(right, 1 + 5 * worker, layer, f"layer {layer + 1}", (first, second)[worker])
        _caption(right, 2.5 + 5 * worker, f"worker {worker}\n{('first', 'second')[worker]} half")
    for layer in range(layers):
        label = "average of\ngradients" if layer == layers - 1 else ""
        _arrow(right, (4, layer + 0.3), (6, layer + 0.3), label, 0.12, both=True)
    note(figure, "schematic, nothing measured")
    return figure


def _box(ax: Axes, x: float, layer: int, text: str, colour: str) -> None:
    style = "round,pad=0.02,rounding_size=0.12"
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


def _caption(ax: Axes, x: float, text: str) -> None:
    ax.text(x, -0.12, text, ha="center", va="top", fontsize=9)
