"""Model intensity and the communication-to-computation ratio (survey, sections 1 and 2).

Intensity is I = C / D: C is the work on one sample, forward and backward, D the number of
parameters. The survey does not say how it counted C, so the audit computes I under every plain
convention and shows the published value in a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from ddlnb.figures.style import (
    BAR_GROUP,
    MODEL_COLOURS,
    OTHER_COLOUR,
    bar,
    legend,
    note,
    on_bar,
    ordered,
    styled,
)
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import quoted
from ddlnb.workloads.workload import FLOPS_PER_MAC, Workload, c2c, intensity

AUDITED_MODELS = ("resnet50", "bert-base", "bert-large")
AGREES_WITHIN = 0.05  # Relative difference up to which two intensities count as equal.
ENCODER = "bert.encoder."
QUOTED_BATCH = 8  # The survey quotes the FLOPs of a BERT-Large iteration at this batch (A11).
GIGA = 1e9


def audit(workloads: Iterable[Workload] | None = None) -> pd.DataFrame:
    """Return the intensity by model and convention, each beside the published one.

    Without workloads, the survey's three models are traced now (a few seconds). The last row
    divides the FLOPs that the survey itself quotes for an iteration of BERT-Large. Columns: model,
    convention, intensity, published, relative_error (to the published one), verdict.
    """
    if workloads is None:
        from ddlnb.workloads.tracing import trace

        workloads = [trace(model) for model in AUDITED_MODELS]
    counted = [
        (workload.model, convention, count(workload))
        for workload in workloads
        for convention, count in CONVENTIONS.items()
        if convention != ENCODER_ONLY or _forward_macs(workload, ENCODER)
    ]
    flops = quoted("A11", "work of one bert-large iteration at batch 8") * GIGA
    own = flops / QUOTED_BATCH / quoted("A10", "parameters of bert-large")
    counted.append(("bert-large", "the survey's own FLOPs", own))
    rows = pd.DataFrame(counted, columns=["model", "convention", "intensity"])
    rows["published"] = [quoted("A06", f"intensity of {model}") for model in rows["model"]]
    rows["relative_error"] = error = rows["intensity"] / rows["published"] - 1
    off = np.where(error > 0, "too high", "too low")
    return rows.assign(verdict=np.where(error.abs() <= AGREES_WITHIN, "agrees", off))


def ordering_holds(rows: pd.DataFrame) -> dict[str, bool]:
    """Return by convention that covers all three models whether the survey's ordering comes out.

    The ordering: ResNet-50 well above both BERT models (at least 1.5 times), and these two alike.
    """
    wide = rows.pivot(index="convention", columns="model", values="intensity")[[*AUDITED_MODELS]]
    return {
        str(convention): resnet >= 1.5 * max(base, large) and abs(large / base - 1) <= AGREES_WITHIN
        for convention, resnet, base, large in wide.dropna().itertuples()
    }


def intensity_findings(rows: pd.DataFrame) -> Findings:
    """Say which conventions give the published intensities, and whether the order comes out."""
    agreeing = rows.loc[rows["verdict"] == "agrees", "convention"].value_counts()
    counted = rows[(rows["convention"] == AS_COUNTED) & (rows["model"] != "resnet50")]
    berts = [f"{row.intensity:.0f} for {row.model}" for row in counted.itertuples()]
    own, order = rows.iloc[-1], ordering_holds(rows)
    return findings(
        f"{len(agreeing)} conventions agree with a published value, and "
        f"{(agreeing == 3).sum() or 'none'} with all three: {AS_COUNTED} agrees for resnet50 and "
        f"gives {' and '.join(berts)}.",
        f"The FLOPs that the survey quotes for one iteration of {own['model']} (A11) make an "
        f"intensity of {own['intensity']:.0f}, where the survey prints {own['published']:.0f} "
        f"(A06).",
        f"The order, ResNet-50 well above two BERT models that are alike, comes out under "
        f"{sum(order.values())} of the {len(order)} conventions that cover all three models.",
    )


def _forward_macs(workload: Workload, only: str = "") -> float:
    """Return the multiply-adds of the forward pass, of layers whose names begin like this."""
    layers = (layer for layer in workload.layers if layer.name.startswith(only))
    return sum(layer.forward_flops for layer in layers) / FLOPS_PER_MAC


def _times_forward(workload: Workload, times: int, only: str = "") -> float:
    work = times * _forward_macs(workload, only)
    return work / workload.local_batch / workload.parameters


AS_COUNTED = "forward + backward, FMA = 1"
ENCODER_ONLY = "3x forward, FMA = 2, encoder only"
CONVENTIONS: dict[str, Callable[[Workload], float]] = {
    AS_COUNTED: intensity,
    "forward + backward, FMA = 2": partial(intensity, flops_per_fma=2),
    "3x forward, FMA = 1": partial(_times_forward, times=3),
    "4x forward, FMA = 1": partial(_times_forward, times=4),
    ENCODER_ONLY: partial(_times_forward, times=3 * FLOPS_PER_MAC, only=ENCODER),
}


def c2c_table(rows: pd.DataFrame, batches: Mapping[str, int]) -> pd.DataFrame:
    """Return the C2C of each model at its local batch, by the published intensity and by ours.

    Ours counts forward and backward with FMA = 1. The ratios are to the first model.
    """
    counted = rows[rows["convention"] == AS_COUNTED].set_index("model")
    frame = pd.DataFrame({"local batch": pd.Series(batches, name="model")})
    for source, column in (("published", "published"), ("ours", "intensity")):
        ratio = [c2c(counted.loc[model, column], batch) for model, batch in batches.items()]
        frame[f"C2C, {source}"] = ratio
        frame[f"relative, {source}"] = frame[f"C2C, {source}"] / ratio[0]
    return frame.rename_axis("model").round(6)


PUBLISHED = "published\n(survey, s. 1-2)"


@styled
def intensity_bars(rows: pd.DataFrame) -> plt.Figure:
    """Model intensity under every counting convention, and as published (dashed, hatched)."""
    published = dict(zip(rows["model"], rows["published"], strict=True))
    names = zip(rows["convention"], rows["model"], strict=True)
    values = dict(zip(names, rows["intensity"], strict=True))
    values |= {(PUBLISHED, model): value for model, value in published.items()}
    conventions = [*rows["convention"].unique(), PUBLISHED]
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
    ax.set(
        ylabel="model intensity (FLOP per parameter and sample)",
        xlabel="how C is counted",
        ylim=(0, 1.14 * max(values.values())),
        title="ResNet-50 is above both BERTs however one counts; absolute numbers depend on it",
    )
    ax.grid(False, axis="x")
    legend(figure, [Patch(color=colour, label=model) for model, colour in colours.items()])
    return note(figure, "source: computed from the layers; hatched and dashed: published")
