"""Model intensity: one model, many ways to count its work (survey, sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.colours import MODEL_COLOURS, OTHER_COLOUR
from ddlnb.figures.style import BAR_GROUP, bar, legend, note, on_bar, ordered, styled

if TYPE_CHECKING:
    from ddlnb.survey.sec2_intensity import IntensityRow

PUBLISHED = "published\n(survey, s. 1-2)"


@styled
def intensity_bars(rows: Iterable[IntensityRow]) -> Figure:
    """Model intensity under every counting convention, and as published (dashed, hatched)."""
    rows = list(rows)
    require(bool(rows), "there are no rows to draw")
    published = {row.model: row.published for row in rows}
    values = {(row.convention, row.model): row.intensity for row in rows}
    values |= {(PUBLISHED, model): value for model, value in published.items()}
    conventions = list(dict.fromkeys(convention for convention, _ in values))
    models = ordered(published, MODEL_COLOURS)
    colours = {model: MODEL_COLOURS.get(model, OTHER_COLOUR) for model in models}
    figure, ax = plt.subplots(figsize=(10.5, 4.4))
    width = BAR_GROUP / len(models)
    for (convention, model), value in values.items():
        slot = models.index(model) - (len(models) - 1) / 2
        x = conventions.index(convention) + slot * width
        bar(ax, x, value, width, colours[model], published=convention == PUBLISHED)
        on_bar(ax, x, value, f"{value:.0f}")
    for model, value in published.items():
        ax.axhline(value, color=colours[model], linestyle="--", linewidth=1, zorder=1)
    labels = [name.replace(", ", ",\n").replace("+ ", "+\n") for name in conventions[:-1]]
    labels = [label.replace("own ", "own\n") for label in labels]
    ax.set_xticks(range(len(conventions)), [*labels, PUBLISHED], fontsize=8)
    ax.set_ylabel("model intensity (FLOP per parameter and sample)")
    ax.set_xlabel("how C is counted")
    ax.set_ylim(0, 1.14 * max(values.values()))
    ax.set_title("ResNet-50 is above both BERTs however one counts; absolute numbers depend on it")
    ax.grid(False, axis="x")
    legend(figure, [Patch(color=colour, label=model) for model, colour in colours.items()])
    note(figure, "source: computed from the layers; hatched and dashed: published")
    return figure
