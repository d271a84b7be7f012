"""Model intensity and the communication-to-computation ratio (survey, sections 1 and 2).

Intensity is I = C / D: C is the work on one sample, forward and backward, D the number of
parameters. The survey does not say how it counted C, so the audit computes I under every plain
convention and shows the published value in a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
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


@dataclass(frozen=True)
class IntensityRow:
    """One model under one counting convention; ``relative_error`` is to the published value."""

    model: str
    convention: str
    intensity: float
    published: float
    relative_error: float
    verdict: str


def audit(workloads: Iterable[Workload] | None = None) -> list[IntensityRow]:
    """Return the intensity by model and convention, each beside the published one.

    Without workloads, the survey's three models are traced now (a few seconds). The last row
    divides the FLOPs that the survey itself quotes for an iteration of BERT-Large.
    """
    if workloads is None:
        from ddlnb.workloads.tracing import trace

        workloads = [trace(model) for model in AUDITED_MODELS]
    rows = [
        _row(workload.model, convention, count(workload))
        for workload in workloads
        for convention, count in CONVENTIONS.items()
        if convention != ENCODER_ONLY or _forward_macs(workload, ENCODER)
    ]
    flops = quoted("A11", "work of one bert-large iteration at batch 8") * GIGA
    quoted_parameters = quoted("A10", "parameters of bert-large")
    return [
        *rows,
        _row("bert-large", "the survey's own FLOPs", flops / QUOTED_BATCH / quoted_parameters),
    ]


def ordering_holds(rows: Iterable[IntensityRow]) -> dict[str, bool]:
    """Return by convention that covers all three models whether the survey's ordering comes out.

    The ordering: ResNet-50 well above both BERT models (at least 1.5 times), and these two alike.
    """
    by_convention: dict[str, dict[str, float]] = {}
    for row in rows:
        by_convention.setdefault(row.convention, {})[row.model] = row.intensity
    return {
        convention: resnet >= 1.5 * max(base, large) and abs(large / base - 1) <= AGREES_WITHIN
        for convention, values in by_convention.items()
        if len(values) == len(AUDITED_MODELS)
        for resnet, base, large in [[values[model] for model in AUDITED_MODELS]]
    }


def intensity_findings(rows: Sequence[IntensityRow]) -> Findings:
    """Say which conventions give the published intensities, and whether the order comes out."""
    agreeing = {row.convention for row in rows if row.verdict == "agrees"}
    all_three = [
        name
        for name in CONVENTIONS
        if sum(row.convention == name and row.verdict == "agrees" for row in rows) == 3
    ]
    berts = [
        f"{row.intensity:.0f} for {row.model}"
        for row in rows
        if row.convention == AS_COUNTED and row.model != "resnet50"
    ]
    own = rows[-1]
    order = ordering_holds(rows)
    return findings(
        f"{len(agreeing)} conventions agree with a published value, and "
        f"{len(all_three) or 'none'} with all three: {AS_COUNTED} agrees for resnet50 and gives "
        f"{' and '.join(berts)}.",
        f"The FLOPs that the survey quotes for one iteration of {own.model} (A11) make an "
        f"intensity of {own.intensity:.0f}, where the survey prints {own.published:.0f} (A06).",
        f"The order, ResNet-50 well above two BERT models that are alike, comes out under "
        f"{sum(order.values())} of the {len(order)} conventions that cover all three models.",
    )


def _row(model: str, convention: str, value: float) -> IntensityRow:
    published = _published(model)
    error = value / published - 1
    return IntensityRow(model, convention, value, published, error, _verdict(error))


def _published(model: str) -> float:
    return quoted("A06", f"intensity of {model}")


def _verdict(relative_error: float) -> str:
    if abs(relative_error) <= AGREES_WITHIN:
        return "agrees"
    return "too high" if relative_error > 0 else "too low"


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


def intensity_table(rows: Iterable[IntensityRow]) -> pd.DataFrame:
    """Return the audit by model and convention, the published intensity beside ours."""
    frame = pd.DataFrame([asdict(row) for row in rows])
    frame["off by (%)"] = (100 * frame.pop("relative_error")).round(1)
    table = frame.round({"intensity": 0}).set_index(["model", "convention"])
    return table[["intensity", "published", "off by (%)", "verdict"]]


def c2c_table(rows: Iterable[IntensityRow], batches: Mapping[str, int]) -> pd.DataFrame:
    """Return the C2C of each model at its local batch, by the published intensity and by ours.

    Ours counts forward and backward with FMA = 1. The ratios are to the first model.
    """
    ours = {row.model: row.intensity for row in rows if row.convention == AS_COUNTED}
    frame = pd.DataFrame({"local batch": pd.Series(batches, name="model")})
    for source, value in (("published", _published), ("ours", ours.__getitem__)):
        ratio = [c2c(value(model), batch) for model, batch in batches.items()]
        frame[f"C2C, {source}"] = pd.Series(ratio, frame.index)
        frame[f"relative, {source}"] = frame[f"C2C, {source}"] / ratio[0]
    return frame.rename_axis("model").round(6)


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
    ax.set(
        ylabel="model intensity (FLOP per parameter and sample)",
        xlabel="how C is counted",
        ylim=(0, 1.14 * max(values.values())),
        title="ResNet-50 is above both BERTs however one counts; absolute numbers depend on it",
    )
    ax.grid(False, axis="x")
    legend(figure, [Patch(color=colour, label=model) for model, colour in colours.items()])
    note(figure, "source: computed from the layers; hatched and dashed: published")
    return figure
