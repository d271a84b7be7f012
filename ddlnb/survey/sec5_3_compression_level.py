"""Section 5.3: how much to compress, with one density for all layers or one for each.

Is there a best density of top-k between the extremes?

Time to a target loss is iterations, measured on a small task, times seconds of one, simulated for
the same model on a made-up device: another one compresses by another factor, and needs other
iterations. Fewer entries make iterations quicker and more numerous. Seconds of an iteration alone
are simulated for any built-in model on any cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddlnb.calibration.statistics import Verdict, ratio_interval
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.profile import FREE
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError, require
from ddlnb.figures.learning import ADAPTIVE, BOTH, FIXED, SOURCE, draw_time, target_label, target_of
from ddlnb.figures.style import (
    DARK,
    GREY,
    facets,
    legend,
    legend_line,
    names_down,
    say_source,
    styled,
)
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.survey.sec5_1_adaptive_periods import over_fixed
from ddlnb.survey.time_to_target import (
    digits_behind_links,
    made_up_cluster as made_up_cluster,
    made_up_digits as made_up_digits,
    require_one_model,
)
from ddlnb.training.cost.estimate import best_lossless, iteration_cost
from ddlnb.training.cost.layer_densities import DENSITIES, HIDDEN, density_table, layer_densities
from ddlnb.training.cost.time_to_target import iterations_to_target, time_to_target
from ddlnb.training.method import training_method
from ddlnb.training.runs.compare import compare
from ddlnb.units import MS
from ddlnb.workloads.workload import Workload

INTERIOR, AT_LEAST, AT_MOST, OPEN = (
    "interior",
    "at the least density",
    "at the largest density",
    "undecided",
)


def level_methods(densities: Sequence[float]) -> list[str]:
    """Return dense BSP, and top-k with error feedback of every density. Raises InputError.

    >>> level_methods([0.1, 0.01, 0.001])[1]
    'bsp + top-k(0.001) + feedback'
    """
    require(len(set(densities)) > 2, f"densities {list(densities)} have no interior; take three")
    return ["bsp", *(f"bsp + top-k({one}) + feedback" for one in sorted(set(densities)))]


@tabled()
def level_verdicts(table: pd.DataFrame, curves: pd.DataFrame, target: float) -> Rows:
    """Return a row per machine: the density with the least time, and where in the sweep it is.

    Both ends of the sweep are compared with the best density, seed by seed. The minimum is
    INTERIOR if the best is no end and the intervals of the ratios of both ends to it are above 1;
    AT_LEAST or AT_MOST if the best is that end and the interval of its neighbour is above 1; else
    OPEN. ``least_over_best`` and
    ``largest_over_best`` are ratios of mean seconds. ``beats_dense`` says whether the best is
    quicker than the best lossless method. Raises InputError for curves of several tasks or numbers
    of workers.
    """
    for name in ("task", "workers"):
        values = list(curves[name].unique())
        require(len(values) == 1, f"levels are of one {name}, and the curves have {values}")
    needed = iterations_to_target(curves, target)
    for machine, part in table.groupby("machine", sort=False):
        sparse = part[part["kind"] == "fixed"].sort_values("density")
        dense = float(part.loc[part["kind"] == "dense", "seconds"].iloc[0])
        seconds = [_seconds_of(row, needed) for row in sparse.to_dict("records")]
        means = [float(taken[:, 1].mean()) for taken in seconds]
        require(
            min(means) < math.inf,
            f"no density reaches a loss of {target:g} in all runs; take more steps",
        )
        best = int(np.argmin(means))
        yield {
            "machine": machine,
            "network": part["network"].iloc[0],
            "best_density": float(sparse["density"].iloc[best]),
            "seconds": means[best],
            "least_over_best": means[0] / means[best],
            "largest_over_best": means[-1] / means[best],
            "dense_over_best": dense / means[best],
            "beats_dense": means[best] < dense,
            "verdict": _where(seconds, best),
        }


def _seconds_of(row: Mapping[str, Any], needed: pd.DataFrame) -> np.ndarray:
    """Return the seconds of the runs of a row's method to the target, (seeds, 2), by seed."""
    runs = needed[needed["method"] == row["method"]].sort_values("seed")
    return runs[["since", "iterations"]].to_numpy() * row["iteration_seconds"]


def _where(seconds: Sequence[np.ndarray], best: int) -> str:
    last = len(seconds) - 1
    ends = {0: (AT_LEAST, [1]), last: (AT_MOST, [last - 1])}
    word, longer = ends.get(best, (INTERIOR, [0, last]))
    return word if all(_surely_longer(seconds[at], seconds[best]) for at in longer) else OPEN


def _surely_longer(one: np.ndarray, other: np.ndarray) -> bool:
    if np.isinf(one).all():
        return True
    finite = bool(np.isfinite(one).all())
    return finite and ratio_interval(one, other).above(1) is Verdict.HOLDS


def _density(method: str) -> float:
    compressor = training_method(method).compressor
    if not isinstance(compressor, TopK):
        raise InputError(f"{method} is not top-k; make curves of level_methods")
    return compressor.density


LONGER = (HIDDEN, 0.1)  # of the computation: all hidden, and a tenth exposed


def by_layer(chosen: LayerTopK) -> str:
    """Return the method that trains with these densities."""
    return f"bsp + {chosen} + feedback"


def layer_methods(workload: Workload, clusters: Sequence[str | Cluster], workers: int) -> list[str]:
    """Return what has to be trained: the methods chosen for these clusters, each once."""
    there = [get_cluster(cluster, workers) for cluster in clusters]
    methods = [_method_by_layer(workload, *on) for on in product(there, LONGER)]
    return list(dict.fromkeys(methods))


def _method_by_layer(workload: Workload, cluster: Cluster, longer: float) -> str:
    return by_layer(layer_densities(workload, cluster, longer=longer))


@tabled()
def hidden_table(
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int | None = None,
) -> Rows:
    """Return a row per cluster: an iteration with densities by layer, and with the best for all.

    ``sent`` is the share of entries that travel by layer, with densities from ``least`` to
    ``largest``; ``fixed`` is the largest one of DENSITIES that for all layers is hidden as well.
    Seconds are those of an iteration: ``seconds`` by layer, ``fixed_seconds``, ``dense_seconds`` of
    the best lossless method on the workers' machines, and ``computing`` alone.
    """
    for name in clusters:
        cluster = get_cluster(name, workers)
        chosen = layer_densities(workload, cluster)
        cost = iteration_cost(workload, cluster, by_layer(chosen), compression=FREE)
        fixed = {
            density: iteration_cost(
                workload, cluster, by_layer(alike(density, chosen)), compression=FREE
            ).iteration_seconds
            for density in sorted(DENSITIES)
        }
        allowed = fixed[min(fixed)] + HIDDEN * cost.compute_seconds
        within = [density for density, seconds in fixed.items() if seconds <= allowed]
        best = max(within)
        tensors = density_table(workload, chosen)
        yield {
            "network": cluster.network,
            "workers": cluster.workers,
            "sent": float(np.average(tensors["density"], weights=tensors["elements"])),
            "least": tensors["density"].min(),
            "largest": tensors["density"].max(),
            "fixed": best,
            "seconds": cost.iteration_seconds,
            "fixed_seconds": fixed[best],
            "dense_seconds": best_lossless(workload, cluster, most_machines=0).iteration_seconds,
            "computing": cost.compute_seconds,
            "machine": cluster.name,
            "model": workload.model,
            "source": "simulated",
        }


def alike(density: float, chosen: LayerTopK) -> LayerTopK:
    """Return one density for all layers; at 1 nothing is compressed, as by layer."""
    return LayerTopK((density,) * len(chosen.densities))


def layer_times(
    curves: pd.DataFrame,
    target: float,
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int,
) -> pd.DataFrame:
    """Return `time_to_target` of fixed densities, and of those by layer of each cluster.

    ``kind`` is "dense", "fixed" or "by layer", ``label`` says which, and ``density`` is that of all
    layers: 1 if dense, NaN by layer. ``over_fixed`` is the mean
    ratio of the time of the best fixed density, chosen after the fact, to this one's, run by run,
    with the ends of its interval; ``verdict`` is FASTER or SLOWER where all of that is beyond 1 by
    more than MARGIN, else OPEN.
    Raises InputError if no fixed density reaches the target in all runs, for curves that lack
    `layer_methods`, and for those of another model than the workload.
    """
    require_one_model(curves, workload)
    needed = iterations_to_target(curves, target)
    tables = []
    for name in clusters:
        cluster = get_cluster(name, workers)
        longest = {  # in reverse: where two allow the same densities, the first one is told
            str(training_method(_method_by_layer(workload, cluster, longer))): longer
            for longer in reversed(LONGER)
        }
        missing = sorted(set(longest) - set(curves["method"]))
        require(not missing, f"curves lack {missing}; train layer_methods, too")
        choices = {method: _choice(method, longest) for method in curves["method"].unique()}
        here = curves[curves["method"].map(choices).notna()]
        table = time_to_target(here, target, workload, [cluster], FREE)
        table["kind"], table["label"] = zip(*table["method"].map(choices), strict=True)
        fixed = table[table["kind"] == "fixed"]
        table["density"] = fixed["method"].map(_density)
        table.loc[table["kind"] == "dense", "density"] = 1.0
        best = fixed.loc[fixed["seconds"].idxmin()]
        require(
            math.isfinite(best["seconds"]),
            f"no fixed density reaches a loss of {target:g} in all runs; take more steps",
        )
        seconds = [_seconds_of(row, needed) for row in table.to_dict("records")]
        beside = [
            over_fixed(seconds[best.name], taken, not np.isfinite(taken).all()) for taken in seconds
        ]
        tables.append(table.join(pd.DataFrame(beside, index=table.index)))
    require(bool(tables), "there are no clusters to compare on")
    return pd.concat(tables, ignore_index=True)


def _choice(method: str, longest: Mapping[str, float]) -> tuple[str, str] | None:
    """Return kind and label of a method, None for one that was chosen for another cluster."""
    compressor = training_method(method).compressor
    if compressor is None:
        return "dense", "best lossless"
    if not isinstance(compressor, LayerTopK):
        return "fixed", f"k/D = {_density(method):g}"
    if method not in longest:
        return None
    return "by layer", f"by layer, up to {100 * longest[method]:g} % longer"


def train_levels(
    densities: Sequence[float], *, workers: int, seeds: int, steps: int, tune: bool = False
) -> pd.DataFrame:
    """Train digits with every density of top-k, and with those by layer for the made-up links."""
    methods = [*level_methods(densities), *layer_methods(*digits_behind_links(), workers)]
    return compare(
        "digits", methods, workers=workers, seeds=seeds, steps=steps, tune=tune, evaluate_every=1
    ).curves


def digits_times(curves: pd.DataFrame, target: float, workers: int) -> pd.DataFrame:
    """Return `layer_times` of digits behind the made-up links."""
    return layer_times(curves, target, *digits_behind_links(), workers)


def level_findings(verdicts: pd.DataFrame) -> Findings:
    """Return the best density of every network, and whether it is a reason to compress."""
    rows = verdicts.to_dict("records")
    return findings(
        *(
            f"{row['network']}: the best density is {row['best_density']:g} ({row['verdict']}); "
            f"the best lossless method takes {row['dense_over_best']:.2f} times as long."
            for row in rows
        ),
        items=[
            item_verdict(
                "A62",
                # Where the best level is an end of the sweep, a better one may lie beyond it.
                [Verdict.HOLDS if row["verdict"] == INTERIOR else Verdict.UNDECIDED],
                "measured, simulated",
                f"{row['network']}: the best density is {row['best_density']:g}, {row['verdict']}",
            )
            for row in rows
        ],
    )


def hidden_findings(hidden: pd.DataFrame) -> Findings:
    """Return how much more a density by layer sends in the time of the best fixed density."""
    return findings(
        *(
            f"{row['network']}: by layer {row['sent']:.0%} of the entries travel in "
            f"{row['seconds'] / MS:.0f} ms, where {row['fixed']:.1%} do if all layers have one "
            f"density; the best lossless method takes {row['dense_seconds'] / MS:.0f} ms."
            for row in hidden.to_dict("records")
        )
    )


def layer_findings(times: pd.DataFrame) -> Findings:
    """Return how choosing by layer compares with the best fixed density of the sweep."""
    layered = times[times["kind"] == "by layer"]
    return findings(
        *(
            f"{row['network']}, {row['label']}: {row['iterations']:.0f} iterations, "
            f"{row['over_fixed']:.2f} times the speed of the best fixed density "
            f"({row['verdict'] or 'the best itself'})."
            for row in layered.to_dict("records")
        )
    )


FACTORS = {
    "seconds": ("time to target", DARK, "-"),
    "iteration_seconds": ("seconds of an iteration", "#0072B2", "--"),
    "iterations": ("iterations to target", "#D55E00", ":"),
}


KIND_COLOURS = {"dense": GREY, "fixed": FIXED, "by layer": ADAPTIVE}


@styled
def level_curves(table: pd.DataFrame) -> Figure:
    """Time to target against the density, and its two factors: a panel per network.

    ``table`` is from `layer_times`. Everything is in units of the best lossless method, which needs
    the iterations of dense BSP. A density that misses the target in some run has no time and no
    iterations.
    """
    figure, panels = facets(table, "machine", width=(1.2, 3.8), height=3.9, **BOTH)
    for ax, _, part in panels:
        dense = part[part["kind"] == "dense"].iloc[0]
        sparse = part[part["kind"] == "fixed"].sort_values("density")
        for column, (label, colour, style) in FACTORS.items():
            values = (sparse[column] / dense[column]).where(lambda ratio: ratio < math.inf)
            look: dict[str, Any] = {"color": colour, "linestyle": style, "label": label}
            ax.plot(sparse["density"], values, marker="o", markersize=4, **look)
        ax.axhline(1, color=GREY, linewidth=0.8)
        ax.set(title=part["network"].iloc[0], xlabel="density k/D", xscale="log", yscale="log")
    panels[0][0].set_ylabel("times the best lossless method")
    legend(figure, where="upper center", columns=3)
    return say_source(figure, SOURCE, target_of(table))


@styled
def layer_bars(times: pd.DataFrame) -> Figure:
    """Milliseconds to the target by densities, fixed and by layer: a panel per network.

    ``times`` are `layer_times`. Bars are parted: the first part is what an iteration computes,
    times the iterations. Whiskers are 95 % intervals over seeds. Grey: the time of the best fixed
    density.
    """
    figure, panels = facets(times, "machine", width=(1.5, 4.2), height=3.9)
    for ax, _, part in panels:
        for number, row in enumerate(part.to_dict("records")):
            hidden = row["compute_seconds"] / row["iteration_seconds"]
            draw_time(ax, number, row, KIND_COLOURS[row["kind"]], unit=MS, hidden=hidden)
        best = part.loc[part["kind"] == "fixed", "seconds"].min() / MS
        ax.axvline(best, color=GREY, linestyle="--", linewidth=1)
        names_down(ax, list(part["label"]), ruled=True)
        ax.set(title=part["network"].iloc[0], xlabel=target_label("ms", times), xlim=(0, None))
    legend(figure, [legend_line(GREY, "the best fixed density", "--")], "upper right")
    return say_source(figure, SOURCE, f"{target_of(times)}; pale: communication that nothing hides")
