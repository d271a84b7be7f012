"""Parameter servers compared with all-to-all, and what an all-reduce is made of (3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.optimize import nnls

from ddlnb.collective_transport.transport import time_collectives
from ddlnb.emulation.network import lacking
from ddlnb.emulation.verify_links import PAYLOAD_SHARE
from ddlnb.engines.measure import measure
from ddlnb.errors import require, require_whole
from ddlnb.figures.style import (
    ALGORITHM_COLOURS,
    ARCHITECTURE_COLOURS,
    GREY,
    doubling_axis,
    legend,
    legend_line,
    say_source,
    styled,
)
from ddlnb.files import machine
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.topology import Link, get_link
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta, push_pull, ring_all_reduce
from ddlnb.survey.items import Rows, tabled
from ddlnb.units import KIB, MS, size_in_words
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Gradient, Layer, Workload


def emulated_ranks(count: int, network: str | Link, module: str) -> Ranks | None:
    """Return ranks on nodes of an emulated network, None where `lacking` says why not.

    They have imported the module, whose functions they will run.
    """
    return (
        None if lacking() else Ranks(count, launcher="emulated", network=network, imports=(module,))
    )


def asked_link(network: str | Link) -> AlphaBeta:
    """Return the latency and the payload rate of one message that the network promises."""
    link = get_link(network)
    return AlphaBeta(link.latency, 1 / (PAYLOAD_SHARE * link.bandwidth))


METHODS = {"PS": "WFBP-PS", "A2A": "WFBP-A2A"}
CELL = ["architecture", "workers", "servers"]
COLUMNS = [*CELL, "repetition", "iteration_seconds", "network", "machine", "source"]


def made_up_workload(
    layers: int = 8,
    layer_bytes: int = 64 * KIB,
    *,
    forward_seconds: float = 20e-3,
    backward_seconds: float = 40e-3,
) -> Workload:
    """Return equal layers with a gradient each, so that the servers have equal shares."""
    require_whole(layers=layers, layer_bytes=layer_bytes)
    names = [f"layer{index}" for index in range(layers)]
    return Workload(
        "made-up",
        1,
        tuple(Layer(name, forward_seconds=forward_seconds / layers) for name in names),
        tuple(
            Gradient(
                f"{name}.weight",
                name,
                max(1, layer_bytes // 4),
                backward_seconds=backward_seconds / layers,
            )
            for name in reversed(names)
        ),
        "made up",
    )


def measure_architectures(
    workload: Workload,
    workers: Sequence[int],
    servers: Sequence[int],
    ranks: Ranks | None,
    *,
    iterations: int = 3,
    repetitions: int = 3,
) -> pd.DataFrame:
    """Return the seconds of an iteration with servers and without, one row per repetition.

    One server and none with each number of workers; the other numbers of servers with the most
    workers. Without ranks the table is empty.
    """
    if ranks is None:
        return pd.DataFrame(columns=COLUMNS)
    found = []
    # Repetitions are of all cells, so that a drift hits all alike.
    for repetition, (count, methods, behind) in product(
        range(repetitions), _runs(workers, servers)
    ):
        rows = measure(
            replayed(workload),
            methods,
            workers=count,
            servers=behind,
            baselines=False,
            iterations=iterations,
            warmup=1,
            repetitions=1,
            ranks=ranks,
        )
        found.append(rows.assign(workers=count, repetition=repetition))
    names = {method: name for name, method in METHODS.items()}
    table = pd.concat(found, ignore_index=True)
    return table.assign(architecture=table["method"].map(names))[COLUMNS]


@tabled(source="formula")
def architecture_formulas(
    workload: Workload, workers: Sequence[int], servers: Sequence[int], network: str | Link
) -> Rows:
    """Return the same cells by formula, from what the network promises; nothing is fitted.

    ``link_seconds`` is the survey's bandwidth term (section 3.2): max(M, n M / k) b with k servers,
    2 (n-1) / n M b without. ``iteration_seconds`` lets the gradients leave one after the other as
    soon as they are there, as WFBP does, with latencies, forward and backward pass.
    """
    link = asked_link(network)
    for count, methods, behind in _runs(workers, servers):
        ring = ring_all_reduce(link, count)
        found = {
            "PS": (
                behind,
                push_pull(link, count, behind),
                wait_free_push_pull(workload, link, count, behind),
            ),
            "A2A": (0, ring, wait_free(workload, ring)),
        }
        yield from (
            {
                "architecture": name,
                "workers": count,
                "servers": used,
                "link_seconds": cost.seconds_per_byte * workload.gradient_bytes,
                "iteration_seconds": seconds,
                "network": str(network),
            }
            for name, (used, cost, seconds) in found.items()
            if METHODS[name] in methods
        )


def wait_free(workload: Workload, cost: AlphaBeta) -> float:
    """Return the seconds of an iteration whose messages, one per gradient, follow one another.

    >>> one = made_up_workload(1, 1000, forward_seconds=1.0, backward_seconds=2.0)
    >>> wait_free(one, AlphaBeta(0.5, 1e-3))
    4.5
    """
    end = 0.0
    for gradient, ready in zip(workload.gradients, workload.ready_seconds, strict=True):
        end = max(end, ready) + cost.seconds(gradient.bytes)
    return workload.forward_seconds + end


def wait_free_push_pull(workload: Workload, link: AlphaBeta, workers: int, servers: int) -> float:
    """Return the seconds of an iteration with k servers, which get the gradients in turn.

    A server's link lets in n times a gradient and, when the last worker's share is there, lets out
    n sums. The next gradient comes in meanwhile; a gradient's own push and pull cannot overlap, so
    L messages of a server take as long as L + 1.

    >>> one = made_up_workload(1, 1000, forward_seconds=1.0, backward_seconds=2.0)
    >>> wait_free_push_pull(one, AlphaBeta(0.5, 1e-3), workers=2, servers=1)
    8.0
    """
    came, went = [0.0] * servers, [0.0] * servers
    for index, gradient in enumerate(workload.gradients):
        server, ready = index % servers, workload.ready_seconds[index]
        crossing = workers * link.seconds_per_byte * gradient.bytes
        came[server] = max(came[server], ready) + crossing
        went[server] = max(went[server], came[server]) + crossing
    return workload.forward_seconds + max(went) + 2 * link.latency_seconds


def architecture_table(rows: pd.DataFrame, formulas: pd.DataFrame) -> pd.DataFrame:
    """Return milliseconds by cell: by formula, and the median, least and most that was measured.

    The last column is the median over the formula. Measured columns are empty where nothing was.
    """
    cells = rows.astype({"iteration_seconds": float}).groupby(CELL)["iteration_seconds"]
    formula = formulas.set_index(CELL)[["link_seconds", "iteration_seconds"]]
    table = formula.join(cells.agg(["median", "min", "max"]).reindex(formula.index)) / MS
    table.columns = [
        *("busiest link, formula (ms)", "iteration, formula (ms)"),
        *("median (ms)", "least (ms)", "most (ms)"),
    ]
    over = table["median (ms)"] / table["iteration, formula (ms)"]
    return table.assign(**{"median / formula": over}).round(2)


def _runs(
    workers: Sequence[int], servers: Sequence[int]
) -> Sequence[tuple[int, Sequence[str], int]]:
    """Return the workers, methods and servers of every run."""
    both, servers_alone = list(METHODS.values()), [METHODS["PS"]]
    runs = [(count, both, 1) for count in workers]
    return runs + [(max(workers), servers_alone, count) for count in servers if count != 1]


ALL_REDUCES = (
    *("ring", "tree", "double-tree", "recursive-doubling", "halving-doubling"),
    "direct",
)
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
KEYS = ["algorithm", "workers", "bytes"]
ALL_REDUCE_COLUMNS = [*KEYS, "repetition", "seconds", "network", "machine", "source"]
# In these a rank sends one message at a time. Those that leave together, in the direct all-reduce
# and in the double tree, overlap as far as the senders' cores allow: they count as one latency at
# best, which is the number in the formula.
FITTED = ("ring", "tree", "recursive-doubling", "halving-doubling")
ONE = AlphaBeta(1.0, 1.0)  # A formula of it counts latencies, and bytes in multiples of M.


def measure_topologies(
    ranks: Ranks | None, sizes: Sequence[int] = SIZES, *, repetitions: int = 5
) -> pd.DataFrame:
    """Return the seconds of all-reduces among all ranks, by the slowest one, per repetition.

    Without ranks the table is empty.
    """
    require_whole(repetitions=repetitions, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    if ranks is None:
        return pd.DataFrame(columns=ALL_REDUCE_COLUMNS)
    found = ranks.run(time_collectives, ALL_REDUCES, tuple(sizes), repetitions)
    rows = [
        {
            "algorithm": name,
            "workers": ranks.count,
            "bytes": size,
            "repetition": repetition,
            "seconds": max(rank[name, size, repetition] for rank in found),
        }
        for name, size, repetition in found[0]
    ]
    source = {"network": ranks.site.network_name, "machine": machine(), "source": ranks.site.source}
    return pd.DataFrame(rows).assign(**source)


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return median, least and most seconds by algorithm, workers and bytes."""
    return rows.groupby(KEYS, sort=False)["seconds"].agg(["median", "min", "max"]).reset_index()


def fit_link(rows: pd.DataFrame) -> AlphaBeta | None:
    """Return the one a and b with which the formulas of `FITTED` together fit best.

    Best is the least squared relative error over the medians; None if nothing was measured. That
    one pair has to fit all of them puts the formulas to the test.
    """
    if rows.empty:
        return None
    points = medians(rows[rows["algorithm"].isin(FITTED)])
    costs = [get_collective(p.algorithm, p.workers).cost(ONE) for p in points.itertuples()]
    counted = np.array([(cost.latency_seconds, cost.seconds_per_byte) for cost in costs])
    crossing = counted[:, 1] * points["bytes"].to_numpy(float)
    columns = np.stack([counted[:, 0], crossing / crossing.max()], axis=1)
    relative = columns / points["median"].to_numpy(float)[:, None]
    (latency, slope), _ = nnls(relative, np.ones(len(points)))
    return AlphaBeta(float(latency), float(slope / crossing.max()))


def own_fits(rows: pd.DataFrame) -> dict[str, AlphaBeta]:
    """Return the a + b M of each algorithm alone, fitted to its medians."""
    return {
        str(name): fit_alpha_beta(part["bytes"].tolist(), part["median"].tolist())
        for name, part in medians(rows).groupby("algorithm", sort=False)
    }


def by_formula(link: AlphaBeta, workers: int) -> dict[str, AlphaBeta]:
    """Return the a + b M of each all-reduce whose steps follow one another, from one message's."""
    return {name: get_collective(name, workers).cost(link) for name in ALL_REDUCES}


def counts(workers: Sequence[int] = (4, 8, 32)) -> pd.DataFrame:
    """Return the latencies, and bytes in multiples of M, that follow one another."""
    table = {
        (n, what): {name: getattr(cost, field) for name, cost in by_formula(ONE, n).items()}
        for n in workers
        for what, field in (("latencies", "latency_seconds"), ("bytes / M", "seconds_per_byte"))
    }
    return pd.DataFrame(table).rename_axis(columns=["workers", "one after the other"])


def all_reduce_answer(rows: pd.DataFrame, workers: int) -> str:
    """Return in a sentence what the two newer all-reduces save, and which one was the fastest."""
    cost = by_formula(ONE, workers)
    ring, halving, double = cost["ring"], cost["halving-doubling"], cost["double-tree"]
    said = (
        f"Among {workers} workers halving-doubling takes {halving.latency_seconds:g} latencies "
        f"where a ring takes {ring.latency_seconds:g}, and {halving.seconds_per_byte:.3g} M where "
        f"it takes {ring.seconds_per_byte:.3g} M; a double tree in blocks takes "
        f"{double.latency_seconds:g} latencies and {double.seconds_per_byte:.3g} M."
    )
    if rows.empty:
        return said
    points = medians(rows[rows["workers"] == workers])
    best = points.loc[points.groupby("bytes")["median"].idxmin()]
    fastest = ", ".join(f"{p.algorithm} at {size_in_words(p.bytes)}" for p in best.itertuples())
    return f"{said} Fastest here, by the median: {fastest}."


def topology_table(rows: pd.DataFrame, link: AlphaBeta, workers: int) -> pd.DataFrame:
    """Return what each formula counts, the milliseconds it makes of them, and an own fit.

    Latencies and bytes are those that follow one another on the critical path; the error is the
    mean absolute one of the formula over the measured medians.
    """
    costs, counted = by_formula(link, workers), by_formula(ONE, workers)
    formulas = {
        name: {
            "latencies": counted[name].latency_seconds,
            "bytes / M": counted[name].seconds_per_byte,
            "latency, formula (ms)": cost.latency_seconds / MS,
            "per MiB, formula (ms)": cost.seconds_per_byte * KIB**2 / MS,
        }
        for name, cost in costs.items()
    }
    points = dict(list(medians(rows).groupby("algorithm")))
    own = {
        name: {
            "latency, own fit (ms)": line.latency_seconds / MS,
            "per MiB, own fit (ms)": line.seconds_per_byte * KIB**2 / MS,
            "error of the formula (%)": 100 * _error(costs[name], points[name]),
        }
        for name, line in own_fits(rows).items()
    }
    table = pd.DataFrame.from_dict(formulas, orient="index")
    fits = pd.DataFrame.from_dict(own, orient="index")
    return table.join(fits).rename_axis("algorithm").round(1)


def _error(line: AlphaBeta, points: pd.DataFrame) -> float:
    """Return the mean absolute error relative to the medians."""
    return float((points["bytes"].map(line.seconds) / points["median"] - 1).abs().mean())


def crossing_bytes(first: AlphaBeta, second: AlphaBeta) -> float:
    """Return the bytes at which both take as long, NaN if one is never slower.

    >>> round(crossing_bytes(AlphaBeta(6e-3, 1e-9), AlphaBeta(2e-3, 3e-9)))
    2000000
    """
    apart = second.seconds_per_byte - first.seconds_per_byte
    size = (first.latency_seconds - second.latency_seconds) / apart if apart else math.nan
    return size if size > 0 else math.nan


def faster_for(first: AlphaBeta, second: AlphaBeta) -> str:
    """Return for which messages the first is faster, in KiB.

    >>> faster_for(AlphaBeta(6e-3, 1e-9), AlphaBeta(2e-3, 3e-9))
    'above 1,953'
    >>> faster_for(AlphaBeta(2e-3, 3e-9), AlphaBeta(6e-3, 1e-9))
    'below 1,953'
    >>> faster_for(AlphaBeta(2e-3, 1e-9), AlphaBeta(6e-3, 3e-9))
    'all'
    """
    size, least = crossing_bytes(first, second), first.latency_seconds < second.latency_seconds
    if math.isnan(size):
        return "all" if least or first.seconds_per_byte < second.seconds_per_byte else "none"
    return f"{'below' if least else 'above'} {size / KIB:,.0f}"


def crossings(lines: Mapping[str, Mapping[str, AlphaBeta]]) -> pd.DataFrame:
    """Return for which KiB the ring is faster than each other algorithm, by source of lines."""
    table = {
        source: {
            name: faster_for(by_name["ring"], line)
            for name, line in by_name.items()
            if name != "ring"
        }
        for source, by_name in lines.items()
        if "ring" in by_name
    }
    return pd.DataFrame(table).rename_axis("KiB for which the ring is faster than")


class Measured(NamedTuple):
    """What was measured among ``nodes`` nodes, and the formulas for the same cells.

    ``links`` is the table of verified links, or the sentence that says why nothing can be emulated
    here; the frames of measured rows are empty then. ``asked`` is a message on a link as asked
    for, ``fitted`` the one that fits the all-reduces best.
    """

    nodes: int
    links: pd.DataFrame | str
    iterations: pd.DataFrame
    formulas: pd.DataFrame
    all_reduces: pd.DataFrame
    asked: AlphaBeta
    fitted: AlphaBeta


def measure_network(
    network: str,
    workers: Sequence[int],
    servers: Sequence[int],
    sizes: Sequence[int],
    *,
    iterations: int,
    repetitions: int,
    rounds: int,
) -> Measured:
    """Train the made-up model with servers and without, then run all-reduces among all nodes."""
    nodes, workload = max(workers) + max(servers), made_up_workload()
    with emulated_ranks(nodes, network, __name__) or nullcontext() as ranks:
        trained = measure_architectures(
            workload, workers, servers, ranks, iterations=iterations, repetitions=repetitions
        )
        reduced = measure_topologies(ranks, sizes, repetitions=rounds)
    return Measured(
        nodes,
        lacking() if ranks is None else ranks.verified,
        trained,
        architecture_formulas(workload, workers, servers, network),
        reduced,
        asked_link(network),
        fit_link(reduced) or asked_link(network),
    )


@styled
def architecture_bottleneck(rows: pd.DataFrame, formulas: pd.DataFrame) -> plt.Figure:
    """Milliseconds of an iteration against workers (left) and against servers (right).

    ``rows`` are those of `measure_architectures`, one point each; ``formulas`` those of
    `architecture_formulas`, dashed. On the right are the most workers; all-to-all is a level there.
    """
    require(not formulas.empty, "there are no formulas to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    most = formulas["workers"].max()
    for name, colour in ARCHITECTURE_COLOURS.items():
        few = f"architecture == '{name}' and servers <= 1"
        _draw(left, formulas.query(few), rows.query(few), "workers", colour)
    of_servers = f"architecture == 'PS' and workers == {most}"
    servers, measured = formulas.query(of_servers), rows.query(of_servers)
    _draw(right, servers, measured, "servers", ARCHITECTURE_COLOURS["PS"])
    for table, style in ((formulas, "--"), (rows, "-")):
        level = table.query(f"architecture == 'A2A' and workers == {most}")["iteration_seconds"]
        if len(level):
            colour = ARCHITECTURE_COLOURS["A2A"]
            right.axhline(level.median() / MS, color=colour, linestyle=style)
    left.set(xlabel="workers", ylabel="iteration (ms)", title="One server, or none")
    right.set(xlabel="servers", title=f"More servers for {most} workers")
    left.set_ylim(bottom=0)
    left.set_xticks(sorted(formulas["workers"].unique()))
    right.set_xticks(sorted(servers["servers"].unique()))
    legend(figure, _handles(ARCHITECTURE_COLOURS))
    _say(figure, rows, "points: repetitions, line: median")
    return figure


@styled
def all_reduce_times(rows: pd.DataFrame, formulas: Mapping[str, AlphaBeta]) -> plt.Figure:
    """Milliseconds of each all-reduce against the message size, both logarithmic.

    ``rows`` are those of `measure_topologies`; ``formulas`` give an algorithm's a + b M, dashed.
    Bars reach from the quickest to the slowest repetition.
    """
    require(bool(formulas), "there are no formulas to draw")
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    sizes = sorted(rows["bytes"].unique()) if len(rows) else [2**k for k in range(10, 19, 2)]
    smooth = np.geomspace(min(sizes), max(sizes), 80)
    for name, formula in formulas.items():
        colour = ALGORITHM_COLOURS[name]
        ax.plot(smooth, [formula.seconds(m) / MS for m in smooth], "--", color=colour)
        part = rows[rows["algorithm"] == name]
        if not part.empty:
            times = part.groupby("bytes")["seconds"].agg(["median", "min", "max"]) / MS
            low, high = times["median"] - times["min"], times["max"] - times["median"]
            ax.errorbar(
                times.index, times["median"], [low, high], color=colour, marker="o", capsize=2
            )
    ax.set_yscale("log")
    doubling_axis(ax, [int(size) for size in sizes], size_in_words)
    ax.set(
        xlabel="message size",
        ylabel="all-reduce (ms)",
        title="Few hops for small messages, few bytes for large ones",
    )
    legend(figure, _handles({name: ALGORITHM_COLOURS[name] for name in formulas}))
    _say(figure, rows, "median, least and most")
    return figure


def _draw(ax: plt.Axes, formulas: pd.DataFrame, rows: pd.DataFrame, x: str, colour: str) -> None:
    formula = formulas.sort_values(x)
    ax.plot(formula[x], formula["iteration_seconds"] / MS, "--", color=colour)
    if not rows.empty:
        medians = rows.groupby(x)["iteration_seconds"].median() / MS
        ax.plot(medians.index, medians, color=colour)
        ax.plot(rows[x], rows["iteration_seconds"] / MS, "o", color=colour, alpha=0.6)


def _handles(colours: Mapping[str, str]) -> list:
    lines = [legend_line(colour, name, "-") for name, colour in colours.items()]
    return [*lines, legend_line(GREY, "formula", "--")]


def _say(figure: plt.Figure, rows: pd.DataFrame, remark: str) -> None:
    """Say the source of what is drawn: the formulas alone, where nothing could be emulated."""
    if rows.empty:
        say_source(figure, "formulas alone", "no network could be emulated here")
    else:
        say_source(figure, rows, f"{rows['network'].iloc[0]}; {remark}; dashed: formula")
