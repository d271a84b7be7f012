"""Notebook sec5_4_schedule: one schedule that merges, partitions and orders as it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddlnb.calibration.statistics import Verdict
from ddlnb.clusters.file import get_cluster
from ddlnb.figures.style import DARK, GREY, METHOD_COLOURS, facets, legend, note, on_bar, styled
from ddlnb.plans.methods import SURVEYED
from ddlnb.plans.plan import Plan
from ddlnb.registry import several
from ddlnb.replanning.replanner import measured_cluster as measured_cluster
from ddlnb.results.timeline import Timeline
from ddlnb.search.bound import lower_bound as lower_bound
from ddlnb.search.search import SearchResult, search_plan
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.simulate import simulate
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled
from ddlnb.units import MS, counted

Cell = tuple[str, str]  # a model and a cluster
EQUAL = 0.005  # relative: plans this close to the best of the seven are no faster


def searches(
    models: Sequence[str], clusters: Sequence[str], gpus: int, most_plans: int
) -> dict[Cell, SearchResult]:
    """Return the searched plan of every model on every cluster; the search is the same each time.

    Seconds of a model come from a kept profile, or from the data sheet of the cluster's GPU.
    """
    found = {}
    for model, name in product(several(models), several(clusters)):
        cluster = get_cluster(name, gpus)
        workload = workload_on(model, cluster)
        found[model, name] = search_plan(workload, cluster, most_plans=most_plans)
    return found


@tabled()
def search_table(found: Mapping[Cell, SearchResult]) -> Rows:
    """Return a row per cell: the best of the seven, the searched plan, the bound, in milliseconds.

    ``faster`` is how many times as fast the searched plan is as the best of the seven, ``above``
    its distance to the lower bound, and ``plan`` what it does.
    """
    for (model, cluster), one in found.items():
        seven = {name: seconds for name, seconds in one.fixed.items() if name in SURVEYED}
        best = min(seven, key=lambda name: seven[name])
        yield {
            "model": model,
            "network": get_cluster(cluster).network,
            "best of the seven": best,
            "best_ms": seven[best] / MS,
            "searched_ms": one.iteration_seconds / MS,
            "bound_ms": one.lower_bound_seconds / MS,
            "faster": seven[best] / one.iteration_seconds,
            "above": one.gap,
            "limit": one.bound.limit,
            "plan": in_words(one.plan),
        }


def in_words(plan: Plan) -> str:
    """Return what a plan does: messages, halves, order, gate.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> in_words(ddlnb.get_method("WFBP-A2A").plan(workload))
    '28 messages by all-reduce, as ready, forward waits for all layers'
    """
    how = {
        "all_reduce": "all-reduce",
        "split_all_reduce": "all-reduce in halves",
        "push_pull": "push and pull",
    }[plan.exchange]
    order = "as ready" if plan.order.value == "as listed" else plan.order.value
    messages = counted(len(plan.messages), "message")
    return f"{messages} by {how}, {order}, forward waits for {plan.gate.value}"


def beside(
    found: Mapping[Cell, SearchResult], model: str, cluster: str, gpus: int, methods: Sequence[str]
) -> dict[str, Timeline]:
    """Return the timelines of these methods and of the searched plan, in one cell."""
    on = get_cluster(cluster, gpus)
    workload = workload_on(model, on)
    plans = {**{name: name for name in several(methods)}, "searched": found[model, cluster].method}
    return {name: simulate(workload, on, method, iterations=4) for name, method in plans.items()}


def search_findings(rows: pd.DataFrame) -> Findings:
    """Return in how many cells the searched plan is faster, by how much, and what the bound says.

    The verdict on A63 holds if the searched plan is faster than all of the seven in some cells and
    slower in none.
    """
    faster = rows["faster"] > 1 + EQUAL
    mean = float(np.exp(np.log(rows["faster"]).mean()))
    top = rows.loc[rows["faster"].idxmax()]
    near = rows["above"] <= 0.01
    holds = faster.any() and (rows["faster"] >= 1 - 1e-9).all()
    verdict = Verdict.HOLDS if holds else Verdict.CONTRADICTED
    said = f"faster in {faster.sum()} of {len(rows)} cells"
    return findings(
        f"The searched plan is faster than the best of the seven in {faster.sum()} of {len(rows)} "
        f"cells, slower in none: {mean:.3f} times as fast in the geometric mean, at most "
        f"{top['faster']:.2f} times ({top['model']} on {top['network']}).",
        f"In {near.sum()} cells it is within 1% of the lower bound, so that no plan of this space "
        f"would gain more; in the others it is {rows.loc[~near, 'above'].min():.0%} to "
        f"{rows.loc[~near, 'above'].max():.0%} above it."
        if not near.all()
        else f"In all {len(rows)} cells it is within 1% of the lower bound.",
        items=[item_verdict("A63", [verdict], "simulated", said)],
    )


BARS = (  # column, colour, label
    ("best_ms", GREY, "best of the seven"),
    ("searched_ms", METHOD_COLOURS["MG-WFBP"], "searched plan"),
)
WIDTH = 0.38  # of the distance between two cells
ROOM = 1.6  # of the highest bar, for the longest name above it


@styled
def search_gains(rows: pd.DataFrame) -> Figure:
    """An iteration by the best of the seven methods and by the searched plan, over its lower bound.

    ``rows`` are those of `ddlnb.survey.sec5_4_schedule.search_table`, one panel for a network. A
    bar of height one is at the bound, which no plan undercuts.
    """
    figure, panels = facets(rows, "network", width=(2, 3.2), height=3.8, sharey=True)
    for ax, _, here in panels:
        places = np.arange(len(here))
        for side, (column, colour, label) in zip((-0.5, 0.5), BARS, strict=True):
            over = here[column] / here["bound_ms"]
            ax.bar(places + side * WIDTH, over, WIDTH, color=colour, label=label)
        for place, row in zip(places, here.to_dict("records"), strict=True):
            height, name = row["best_ms"] / row["bound_ms"], row["best of the seven"]
            on_bar(ax, place - WIDTH / 2, height, name).set_fontsize(7)
        ax.axhline(1.0, color=DARK, linewidth=0.8, linestyle=":")
        ax.set_xticks(places, here["model"], rotation=20, ha="right")
        ax.set_xlabel("model")
    panels[0][0].set(
        ylabel="iteration over its lower bound",
        ylim=(0, ROOM * float((rows["best_ms"] / rows["bound_ms"]).max())),
    )
    legend(figure)
    return note(figure, "source: simulated; dotted: the lower bound of all plans")
