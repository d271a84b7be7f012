"""The intensity figure: one model, many ways to count its work (survey, sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import BAR_GROUP, OTHER_COLOUR, PUBLISHED_HATCH, on_bar, ordered, styled

if TYPE_CHECKING:
    from ddlnb.studies.sec2_intensity import IntensityRow

MODEL_COLOURS = {"resnet50": "#0072B2", "bert-base": "#E69F00", "bert-large": "#009E73"}


@styled
def intensity_bars(rows: Iterable[IntensityRow]) -> Figure:
    """Model intensity under every counting convention, and as published (dashed, hatched)."""
    listed = list(rows)
    require(bool(listed), "there are no rows to draw")
    conventions = list(dict.fromkeys(row.convention for row in listed))
    models = ordered([row.model for row in listed], MODEL_COLOURS)
    published = {row.model: row.published for row in listed}
    found = {(row.convention, row.model): row.intensity for row in listed}
    figure, ax = plt.subplots(figsize=(10.5, 4.4), layout="constrained")
    width = BAR_GROUP / len(models)
    for index, model in enumerate(models):
        colour = MODEL_COLOURS.get(model, OTHER_COLOUR)
        offset = (index - (len(models) - 1) / 2) * width
        for group, convention in enumerate([*conventions, None]):
            value = published[model] if convention is None else found.get((convention, model))
            if value is None:
                continue
            quoted = convention is None
            ax.bar(
                group + offset,
                value,
                width * 0.94,
                color=colour,
                alpha=0.55 if quoted else 1.0,
                hatch=PUBLISHED_HATCH if quoted else None,
                edgecolor="white",
                linewidth=0,
            )
            on_bar(ax, group + offset, value, f"{value:.0f}")
        ax.axhline(published[model], color=colour, linestyle="--", linewidth=1, zorder=1)
    labels = [name.replace(", ", ",\n").replace("+ ", "+\n") for name in conventions]
    labels = [label.replace("own ", "own\n") for label in labels]
    ax.set_xticks(range(len(conventions) + 1), [*labels, "published\n(survey, s. 1-2)"], fontsize=8)
    ax.set_ylabel("model intensity (FLOP per parameter and sample)")
    ax.set_xlabel("how C is counted")
    ax.set_ylim(0, 1.14 * max([*found.values(), *published.values()]))
    ax.set_title("ResNet-50 is above both BERTs however one counts; absolute numbers depend on it")
    ax.grid(False, axis="x")
    handles = [Patch(color=MODEL_COLOURS.get(m, OTHER_COLOUR), label=m) for m in models]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    figure.supxlabel(
        "source: computed from the layers; hatched and dashed: published",
        fontsize=8,
        x=0.99,
        ha="right",
    )
    return figure
