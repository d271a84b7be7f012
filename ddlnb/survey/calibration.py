"""The calibration of the survey's testbed: what is left over, and how well it predicts.

The fit itself is kept in data, with the predictions of what was left out of it; making either again
takes minutes (`ddlnb cluster fit survey --write`, `python -m benchmarks.held_out`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from ddlnb.calibration.observations import (
    IterationTime,
    Observation,
    predictions,
    row_of,
)
from ddlnb.calibration.validation import FITTED, TRIVIAL_FORECASTS, ablation
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import EFFECTS
from ddlnb.clusters.file import get_cluster as get_cluster
from ddlnb.errors import require
from ddlnb.figures.agreement import BAND, BAND_COLOUR, legend_band, spread_out
from ddlnb.figures.style import (
    DARK,
    MEASURED_COLOURS,
    METHOD_COLOURS,
    MODEL_COLOURS,
    NETWORK_COLOURS,
    OTHER_COLOUR,
    PALE,
    colour_of,
    legend,
    legend_line,
    legend_mark,
    legend_methods,
    note,
    ordered,
    say_source,
    styled,
)
from ddlnb.plans.methods import METHODS
from ddlnb.results.rows import GPUS_PER_NODE
from ddlnb.results.schema import read_frame
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.fig4_forecast import (
    BLIND,
    blind_rows as blind_rows,
    mean_errors as mean_errors,
    score_table,
    summary_table as summary_table,
)
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.published import FIG4_CELLS as FIG4_CELLS, fig4_cells as fig4_cells
from ddlnb.survey.testbed import (
    CLUSTERS as CLUSTERS,
    HELD_OUT,
    cell_observations,
    fig4_workload as fig4_workload,
    fitted_values,
    quoted_observations,
    survey_setup,
)
from ddlnb.units import listed

TAILS = (0.05, 0.95)  # of a 90 % interval


@cache
def observed() -> tuple[Observation, ...]:
    """Return what is fitted: single messages that the text quotes, and cells of Fig. 4."""
    return (*quoted_observations(survey_setup().clusters), *cell_observations())


@tabled(index=["effect", "of", "by"])
def parameter_table() -> Rows:
    """Return the value, the 90 % interval and the prior of every parameter, with units."""
    fitted, *drawn = fitted_values()
    low, high = np.quantile([one.values for one in drawn], TAILS, axis=0)
    for index, parameter in enumerate(fitted.parameters):
        show = EFFECTS[parameter.effect].unit.show
        yield {
            "effect": parameter.effect,
            "of": " ".join(parameter.of) or "all",
            "by": " ".join(parameter.methods) or "all",
            "value": show(fitted.values[index]),
            "90 % interval": f"{show(low[index])} to {show(high[index])}",
            "prior": show(parameter.prior),
        }


def residual_rows() -> pd.DataFrame:
    """Return a row per observation and its prediction, which `ddlnb.figures.residuals` draws."""
    (predicted,) = predictions([one.quantity for one in observed()], [fitted_values()[0]])
    pairs = zip(observed(), predicted.tolist(), strict=True)
    return pd.DataFrame([row_of(one, value, FITTED) for one, value in pairs])


def residual_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in % of the throughput that the fit gives cells, by method.

    A negative one means that the fit is too slow. Those with four GPUs are averages of the three
    rows that repeat one configuration.
    """
    cells = rows[rows["gpus"] > 1].astype({"gpus": int})
    cells = cells.assign(
        network=cells["network"].where(cells["gpus"] > 4, "in one node"),
        error=100 * (1 / (1 + cells["relative_error"]) - 1),
    )
    table = cells.pivot_table(
        index=["gpus", "model", "network"], columns="method", values="error", aggfunc="mean"
    )
    return table.round(1)


def held_out_table(path: Path = HELD_OUT) -> pd.DataFrame:
    """Return the errors of predicting what was left out, ours beside the trivial forecasts.

    There is a row for every label by which is left out and every forecast; ``predicted`` of
    ``rows`` cells could be predicted. The rows are kept by `python -m benchmarks.held_out`.
    """
    rows = read_frame(path)
    rows["error"] = 100 * rows["relative_error"].abs()
    inside = rows["observed"].between(rows["low"], rows["high"])
    rows["inside"] = (100.0 * inside).where(rows["low"].notna())
    label = rows["left_out"].str.split().str[0].rename("left out")
    grouped = rows.groupby([label, "forecast"], sort=False)
    table = grouped["error"].agg(
        rows="size", predicted="count", mean="mean", median="median", worst="max"
    )
    table["inside interval (%)"] = grouped["inside"].mean()
    return table.round(1).rename(
        columns={name: f"{name} error (%)" for name in ("mean", "median", "worst")}
    )


SERVED = "ByteScheduler-PS"
CREDITS = (4, 16)  # parts in flight
BEYOND = 2  # nodes at least, for servers take no part in one


def server_schedules() -> pd.DataFrame:
    """Return the errors of schedules that ByteScheduler-PS may have had, on its published cells.

    BytePS differs between it and WFBP-PS in a flag of the server's queue. A row for each schedule:
    that of WFBP-PS, and priorities on the workers with a credit of some parts; ``faster`` is how
    much faster than WFBP-PS it is in the median cell, the published ones first. Suspicious cells
    of either are left out.
    """
    cells = {one.labels: one for one in cell_observations()}
    known = {(one.model, one.network, one.method, one.gpus): cells[one] for one in cells}
    pairs = [
        (known[key], known[key[0], key[1], "WFBP-PS", key[3]])
        for key in known
        if key[2] == SERVED and (key[0], key[1], "WFBP-PS", key[3]) in known
    ]
    pairs = [(one, other) for one, other in pairs if _cell_of(one).cluster.nodes_in_use >= BEYOND]
    fitted, proper = fitted_values()[0], METHODS[SERVED]
    size = proper.partition_bytes or 0
    schedules = {"as WFBP-PS": None} | {f"priority, credit of {n} parts": n for n in CREDITS}
    observed_seconds = np.array([[one.value, other.value] for one, other in pairs])
    ratio = observed_seconds[:, 1] / observed_seconds[:, 0] - 1
    rows = [{"schedule": "published", "cells": len(pairs), "faster (%)": 100 * np.median(ratio)}]
    (plain,) = predictions([other.quantity for _, other in pairs], [fitted])
    for name, parts in schedules.items():
        method = proper if parts is None else replace(proper, credit_bytes=parts * size)
        quantities = [
            one.quantity if parts is None else IterationTime(replace(_cell_of(one), method=method))
            for one, _ in pairs
        ]
        (seconds,) = predictions(quantities, [fitted])
        errors = np.abs(seconds / observed_seconds[:, 0] - 1)
        rows.append(
            {
                "schedule": name,
                "cells": len(pairs),
                "faster (%)": 100 * np.median(plain / seconds - 1),
                "mean error (%)": 100 * errors.mean(),
                "median error (%)": 100 * np.median(errors),
            }
        )
    return pd.DataFrame(rows).set_index("schedule").round(1)


def _cell_of(observation: Observation) -> Cell:
    assert isinstance(observation.quantity, IterationTime)
    return observation.quantity.cell


def fit_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of the fit beside those of the trivial forecasts, which see every cell."""
    cells = [one for one in observed() if one.labels.gpus and one.labels.gpus > 1]
    errors = {FITTED: rows.loc[rows["gpus"] > 1, "relative_error"].to_numpy()} | {
        name: [forecast(one, observed()) / one.value - 1 for one in cells]
        for name, forecast in TRIVIAL_FORECASTS.items()
    }
    known = pd.DataFrame(errors).replace([np.inf, -np.inf], np.nan)
    table = (100 * known.abs()).agg(["count", "mean", "median"]).T.round(2)
    table.columns = ["cells", "mean error (%)", "median error (%)"]
    return table.assign(cells=known.count())


@tabled(index=["without"], digits=2)
def ablation_table() -> Rows:
    """Return the mean error without each effect, not refitted, the most important effect first.

    ``most of it`` is where the mean error of cells grows most, by method and network: what the
    effect explains.
    """
    labels = [one.labels for one in observed() if one.labels.method is not None]
    places = [
        f"{one.method}, {one.network if (one.gpus or 0) > GPUS_PER_NODE else 'one node'}"
        for one in labels
    ]
    for one in ablation(observed(), fitted_values()[0]):
        there = pd.Series(one.growths).groupby(places).mean()
        yield {
            "without": one.effect,
            "mean error (%)": 100 * one.error_without,
            "with it (%)": 100 * one.error,
            "growth (%)": 100 * one.growth,
            "most of it": there.idxmax(),
            "growth there (%)": 100 * there.max(),
        }


def fit_findings(rows: pd.DataFrame) -> Findings:
    """Return how close the fit is to the cells, and how close to those that it did not see."""
    errors = rows.loc[rows["gpus"] > 1, "relative_error"].abs()
    by_size = errors.groupby(rows["gpus"]).mean()
    sizes = ", ".join(f"{error:.1%} with {gpus:.0f} GPUs" for gpus, error in by_size.items())
    left_out = held_out_table()["mean error (%)"].unstack()
    ours, trivial = left_out[FITTED], left_out.drop(columns=FITTED).min(axis=1)
    return findings(
        f"{len(survey_setup().parameters)} parameters explain {len(errors)} cells with a mean "
        f"error of {errors.mean():.1%} and a median of {errors.median():.1%} ({sizes}).",
        *(
            f"Cells left out by {label} are predicted with a mean error of {ours[label]:.1f} %, "
            f"by the best trivial forecast with {trivial[label]:.1f} %."
            for label in ours.index
        ),
    )


LABELS = ("model", "network", "method", "gpus")
FARTHEST = 100.0  # times the value; an interval that goes farther ends in an arrow
KNOWN = {"model": MODEL_COLOURS, "network": NETWORK_COLOURS, "method": METHOD_COLOURS}


@styled
def parameter_intervals(clusters: Iterable[Cluster]) -> plt.Figure:
    """The 90 % interval of every fitted effect relative to its value, cluster by cluster.

    An effect that several clusters share is drawn once; its value stands at the right. Intervals
    that reach zero, or farther than FARTHEST times the value, end in an arrow.
    """
    listed = [cluster for cluster in clusters if cluster.fits]
    require(bool(listed), "there are no fitted effects to draw")
    colours = iter(MEASURED_COLOURS * len(listed))
    colour_of_cluster = {c.name: NETWORK_COLOURS.get(c.network) or next(colours) for c in listed}
    lines = {effect: _lines(effect, listed) for effect in EFFECTS}
    lines = {effect: found for effect, found in lines.items() if found}
    count = sum(len(found) + 1 for found in lines.values())
    figure, ax = plt.subplots(figsize=(10.5, 1.2 + 0.17 * count))
    y, middles, ends, shared = 0, [], [1 / 1.5, 1.5], False
    for effect, found in lines.items():
        middles.append(y + (len(found) - 1) / 2)
        for value, fit, names in found:
            shared = shared or len(names) > 1
            colour = DARK if len(names) > 1 else colour_of_cluster[names[0]]
            ends += _interval(ax, y, effect, value, fit, colour)
            y += 1
        ax.axhline(y, color=PALE, linewidth=0.8)
        y += 1
    ax.axvline(1, color="black", linewidth=1, zorder=1)
    least, most = min(ends) / 1.15, max(ends) * 1.15
    ax.set(xscale="log", xlim=(least, most))
    ax.set_yticks(middles, [effect.replace("_", " ") for effect in lines])
    ax.set(ylim=(y - 1, -1), xlabel="90 % interval, over the fitted value at the right")
    ax.grid(False, axis="y")
    look = {"linestyle": "-"}
    handles = [legend_mark(c, "o", name, **look) for name, c in colour_of_cluster.items()]
    if shared:
        handles.append(legend_mark(DARK, "o", "several clusters", **look))
    legend(figure, handles)
    return note(figure, "source: the clusters' files, where each effect says what it was fitted on")


def _lines(effect: str, clusters: Iterable[Cluster]) -> list[tuple[float, Fit, list[str]]]:
    """Return the different fits of an effect: value, fit, and the clusters that have them."""
    found: dict[tuple[float, Fit], list[str]] = {}
    for cluster in clusters:
        if effect in cluster.fits:
            key = getattr(cluster.effects, effect), cluster.fits[effect]
            found.setdefault(key, []).append(cluster.name)
    return [(value, fit, names) for (value, fit), names in found.items()]


def _interval(
    ax: plt.Axes, y: float, effect: str, value: float, fit: Fit, colour: str
) -> tuple[float, ...]:
    """Draw one interval, write its value, and return its ends."""
    show = EFFECTS[effect].unit.show
    relative = value > 0 and math.isfinite(value)
    text = show(value) if relative else f"{show(value)} ({show(fit.low)} to {show(fit.high)})"
    beside = ax.get_yaxis_transform()
    ax.text(1.01, y, text, transform=beside, va="center", fontsize=7.5, color=colour)
    if not relative:
        return ()
    low, high = fit.low / value, fit.high / value
    seen = max(low, 1 / FARTHEST), min(high, FARTHEST)
    ax.plot(seen, [y, y], color=colour, linewidth=1.6, zorder=2)
    ax.plot(1, y, color=colour, marker="o", markersize=5, zorder=3)
    for end, real, arrow in zip(seen, (low, high), "<>", strict=True):
        ax.plot(end, y, color=colour, marker="|" if end == real else arrow, markersize=7)
    return seen


@styled
def residuals(frame: pd.DataFrame) -> plt.Figure:
    """Relative errors of predictions by model, network, method and number of GPUs.

    ``frame`` has the columns observed, predicted and relative_error (predicted over observed, less
    1) and the LABELS, which may be empty. Colours are methods, a black line the median of a group.
    """
    if "forecast" in frame:
        forecasts = list(frame["forecast"].unique())
        require(len(forecasts) == 1, f"the rows are of forecasts {forecasts}; draw one at a time")
    known = frame[np.isfinite(frame["relative_error"])]
    require(not known.empty, "there are no rows to draw: none has a relative error")
    groups = {label: _groups(known, label) for label in LABELS}
    figure, axes = plt.subplots(
        1,
        len(LABELS),
        figsize=(13, 4.8),
        width_ratios=[1.2 + len(found) for found in groups.values()],
        sharey=True,
    )
    size = 26 if max(map(len, groups["model"].values())) < 30 else 12  # of all marks
    for ax, (label, found) in zip(axes, groups.items(), strict=True):
        ax.axhspan(-100 * BAND, 100 * BAND, color=BAND_COLOUR, zorder=0)
        ax.axhline(0, color="black", linewidth=1, zorder=1)
        for x, part in enumerate(found.values()):
            _strip(ax, x, part, size)
        ax.set_xticks(range(len(found)), list(found), rotation=40, ha="right", fontsize=8)
        ax.set(xlim=(-0.6, len(found) - 0.4), xlabel={"gpus": "GPUs"}.get(label, label))
        ax.grid(False, axis="x")
    axes[0].set_ylabel("predicted over observed, less 1 (%)")
    error = known["relative_error"].abs()
    left_out = len(frame) - len(known)
    figure.suptitle(
        f"{len(known)} observations: mean absolute error {100 * error.mean():.1f} %, median "
        f"{100 * error.median():.1f} %" + (f"; {left_out} not predicted" if left_out else "")
    )
    handles = legend_methods(name for name in groups["method"] if name in METHOD_COLOURS)
    if set(groups["method"]) - set(METHOD_COLOURS):
        handles.append(Patch(color=OTHER_COLOUR, label="other"))
    median = legend_line("black", "median", "-")
    median.set_linewidth(2)
    legend(figure, [*handles, median, legend_band()])
    remark = "observed as the source says, predicted by the simulator"
    return say_source(figure, frame if "source" in frame else "not in the rows", remark)


def _groups(rows: pd.DataFrame, label: str) -> dict[str, pd.DataFrame]:
    """Return rows by the words for their label, in the usual order; those without come last."""
    given = rows[rows[label].notna()]
    values = given[label].astype(int) if label == "gpus" else given[label]
    names = sorted(values.unique()) if label == "gpus" else ordered(values, KNOWN[label])
    found = {str(name): given[values == name] for name in names}
    rest = rows[rows[label].isna()]
    return {**found, "none": rest} if len(rest) else found


def _strip(ax: plt.Axes, x: int, rows: pd.DataFrame, size: int) -> None:
    """Draw one point per row, side by side, and the median."""
    rows = rows.sort_values("relative_error")
    errors = 100 * rows["relative_error"]
    offsets = x + spread_out(len(errors), 0.66)
    colours = [colour_of(str(method)) for method in rows["method"]]
    ax.scatter(offsets, errors, s=size, c=colours, edgecolors="black", linewidths=0.4, zorder=3)
    ax.plot([x - 0.42, x + 0.42], [errors.median()] * 2, color="black", linewidth=2, zorder=4)


def forecast_errors() -> Findings:
    """Return mean errors by number of GPUs: of the last blind forecast, and of today's fit.

    Suspicious cells are left out. Every sentence ends with the command that gives its numbers.
    """
    by_gpus = score_table(blind_rows(), "gpus").loc["without"]
    ours = by_gpus.xs(BLIND[-1].name, level="forecast")
    trivial = by_gpus["mean"].unstack("forecast")[list(TRIVIAL_FORECASTS)].min(axis=1)
    fit = residual_rows().query("gpus > 1")
    fitted = 100 * fit["relative_error"].abs().groupby(fit["gpus"]).mean()
    return findings(
        f"Blind forecasts of published cells were off by {_by_gpus(ours['mean'])} on average, the "
        f"best trivial forecast by {_by_gpus(trivial)}; of the cells, "
        f"{_by_gpus(ours['inside'], '.0f')} were within the 90 % intervals "
        f"(`python -m benchmarks.fig4_score`).",
        f"Today's fit, which has seen its cells, is off by {_by_gpus(fitted)} "
        f"(`ddlnb cluster fit survey`).",
    )


def _by_gpus(percent: pd.Series, digits: str = ".1f") -> str:
    """Return percentages in words; the index is the number of GPUs."""
    said = [f"{value:{digits}} % with {gpus:.0f} GPUs" for gpus, value in percent.items()]
    return listed(said)
