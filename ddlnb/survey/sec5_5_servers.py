"""How many parameter servers a cluster needs (survey, section 5.5): swept, and by a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import matplotlib.pyplot as plt
import pandas as pd

from ddlnb.clusters.cluster import SERVER_PLACES, Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.figures.style import GREY, PALETTE, doubling_axis, legend, legend_line, note, styled
from ddlnb.networks.collectives.base import is_power_of_two
from ddlnb.plans.methods import SURVEYED
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.testbed import BATCHES, CLUSTERS, fig4_workload
from ddlnb.units import counted, listed as listed
from ddlnb.workloads.workload import Workload

PLACES = SERVER_PLACES
MATCHES = 0.99  # of the best all-to-all throughput: as good as equal


@tabled()
def sweep(
    models: Sequence[str] = tuple(BATCHES),
    clusters: Sequence[str] = tuple(CLUSTERS.values()),
    *,
    gpus: int = 32,
    servers: Sequence[int] = (1, 2, 4, 8, 16),
    places: Sequence[str] = PLACES,
) -> Rows:
    """Return the throughput of the best method by number of servers, and that of all-to-all.

    A row per model, cluster, place of the servers and number of them, with columns ``method``,
    ``throughput_samples_per_s``; rows of place "none" and no servers hold the best all-to-all
    method. The number that `rule` gives is among
    them. Servers beside workers are at most as many as nodes. Raises InputError for a cluster
    of one node, on which no server takes part.
    """
    for name in clusters:
        cluster = get_cluster(name, gpus)
        require(
            cluster.nodes_in_use > 1,
            f"{gpus} GPUs of cluster {name!r} are one node, where no server takes part; "
            f"take more GPUs",
        )
        for model in models:
            workload = fig4_workload(model)
            yield _best(workload, cluster, "A2A", 0, "none")
            swept = sorted({*servers, rule(cluster.nodes_in_use)})
            yield from (
                _best(workload, replace(cluster, server_place=place), "PS", count, place)
                for place in places
                for count in swept
                if place == "extra machines" or count <= cluster.nodes_in_use
            )


def _best(
    workload: Workload, cluster: Cluster, architecture: str, servers: int, place: str
) -> dict[str, object]:
    methods = [one for one in SURVEYED.values() if one.architecture == architecture]
    cells = [Cell(workload, cluster, one, servers or None) for one in methods]
    seconds = [found.iteration_seconds for found in steady_seconds(cells)]
    best = min(range(len(cells)), key=seconds.__getitem__)
    return {
        "model": workload.model,
        "cluster": cluster.name,
        "network": cluster.network,
        "gpus": cluster.workers,
        "nodes": cluster.nodes_in_use,
        "place": place,
        "servers": servers,
        "method": methods[best].name,
        "throughput_samples_per_s": cells[best].samples / seconds[best],
    }


def least_servers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the least number of servers that matches the best all-to-all method, per cluster.

    A row per model and network, a column per place: the number, or "more than N" where none of the
    sweep is enough. ``rule`` has the number that counting bytes gives.
    """
    alone = rows[rows["place"] == "none"].set_index(["model", "network"])
    goal = alone["throughput_samples_per_s"]
    swept = rows[rows["place"] != "none"]
    found = {}
    for cell, part in swept.groupby(["model", "network", "place"], sort=False):
        enough = part.loc[part["throughput_samples_per_s"] >= MATCHES * goal[cell[:2]], "servers"]
        found[cell] = str(enough.min()) if len(enough) else f"more than {part['servers'].max()}"
    table = pd.Series(found).unstack(sort=False).rename_axis(["model", "network"])
    nodes = swept.groupby(["model", "network"], sort=False)["nodes"].first()
    table.insert(1, "rule", nodes.map(rule))
    return table


def rule(nodes: int) -> int:
    """Return the number of servers whose links carry no more than a ring's do.

    All nodes push M bytes: k servers on machines of their own take n M / k each way, and a ring
    puts 2 (n-1) / n M on every link; so k is at least n^2 / (2 (n-1)), half of the nodes and a
    little more (survey, section 3.2; the cost table of `ddlnb.plans.alpha_beta`).

    >>> [rule(nodes) for nodes in (2, 4, 8, 32)]
    [2, 3, 5, 17]
    """
    require(nodes > 1, f"{nodes} node needs no servers; take at least 2 nodes")
    return math.ceil(Fraction(nodes * nodes, 2 * (nodes - 1)))


def rule_findings(rows: pd.DataFrame) -> Findings:
    """Return what the sweep says of the rule, in words.

    Where servers sum slower than links carry, the rule is too low; where all-to-all waits for
    latencies, it is too high.
    """
    table = least_servers(rows)
    place = "extra machines"
    require(place in table, "the sweep has no servers on extra machines")
    told = table[place]
    numbers = told[told.str.isdigit()].astype(int)
    above = (numbers > table.loc[numbers.index, "rule"]).sum()
    below = (numbers < table.loc[numbers.index, "rule"]).sum()
    spread = f"{numbers.min()} to {numbers.max()}" if len(numbers) else "none"
    return findings(
        f"Servers on machines of their own that match the best all-to-all method: {spread} over "
        f"{len(numbers)} of {len(told)} cells; the rule says {table['rule'].iloc[0]}. It is above "
        f"what is needed in {below} cells, below it in {above}, and in "
        f"{len(told) - len(numbers)} no number of the sweep is enough."
    )


LOOKS = {"extra machines": (PALETTE[1], "o", "-"), "workers' nodes": (PALETTE[2], "s", "--")}


@styled
def servers_needed(rows: pd.DataFrame) -> plt.Figure:
    """Throughput by number of parameter servers, over that of the best all-to-all method.

    ``rows`` are those of a sweep: model, network, place ("none" for all-to-all), servers,
    throughput_samples_per_s. A column of panels per network, a row per model; the dotted line
    at 1 is all-to-all.
    """
    models, networks = (list(dict.fromkeys(rows[name])) for name in ("model", "network"))
    figure, axes = plt.subplots(
        len(models),
        len(networks),
        figsize=(3.1 * len(networks) + 1, 2.2 * len(models) + 0.6),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    counts = sorted(int(n) for n in rows.loc[rows["servers"] > 0, "servers"].unique())
    for row, model in zip(axes, models, strict=True):
        for ax, network in zip(row, networks, strict=True):
            part = rows[(rows["model"] == model) & (rows["network"] == network)]
            goal = part.loc[part["place"] == "none", "throughput_samples_per_s"].iloc[0]
            ax.axhline(1, color=GREY, linewidth=1, linestyle=":")
            for place, (colour, marker, dash) in LOOKS.items():
                line = part[part["place"] == place]
                ax.plot(
                    line["servers"],
                    line["throughput_samples_per_s"] / goal,
                    color=colour,
                    marker=marker,
                    linestyle=dash,
                    markersize=4,
                    label=f"servers on {place}",
                )
            ax.set_title(f"{model}, {network}", fontsize=9)
            doubling_axis(ax, [n for n in counts if is_power_of_two(n)] or counts)
    axes[0][0].set_ylim(0, None)
    for ax in axes[-1]:
        ax.set_xlabel("parameter servers")
    for ax in axes[:, 0]:
        ax.set_ylabel("throughput over\nthe best all-to-all", fontsize=9)
    handles, _ = axes[0][0].get_legend_handles_labels()
    legend(figure, [*handles, legend_line(GREY, "the best all-to-all", ":")])
    gpus = int(rows["gpus"].iloc[0])
    return note(
        figure, f"source: simulated, {counted(gpus, 'GPU')}; the best method of each architecture"
    )
