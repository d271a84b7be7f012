"""What each layer of communication brings alone, and what they bring together; simulated.

Follows the survey of layers (arXiv 2403.07585): strategy, collective library and network, designed
together, for one job (vertically) and for two (horizontally).

Every combination is one played iteration of Llama 3 8B. What two choices bring together is set
beside the product of what each brings alone, which is what layers that do not care for each other
would bring.

The search sees the matrix and the routes alone, and lowers what links need for their bytes; the
iteration is then played to see what that was worth.

The deadline of a layer's gradients is when the next forward pass reaches that layer; the first
layer is due first, and its gradients are complete last. Simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from math import prod
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.errors import require, require_whole
from ddlnb.figures.style import (
    DARK,
    GREY,
    METHOD_COLOURS,
    beside,
    facets,
    legend,
    names_down,
    note,
    styled,
)
from ddlnb.networks.flows import Startup, busiest_seconds, link_bytes
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.play import share
from ddlnb.networks.topologies import Star, TwoTier
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import get_precision, pipeline_stages, shares_by_layer
from ddlnb.parallelism.volumes import traffic_matrices
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.layers_overview import DENSE, network_of
from ddlnb.units import MS, bandwidth_from, seconds_from

FLOPS = 400e12  # assumed of one GPU in a layer; the data sheet of an H100 says 989e12
MEMORY = 2e12  # bytes per second, assumed of the optimizer's update
CHOICES = {
    "placement": "tensor ranks share a node, not replicas",
    "collective": "hierarchical all-reduces, not flat rings",
    "overlap": "gradients are reduced beside the backward pass, not after it",
    "routing": "flows use all spines evenly, not one by hash",
}
"""The choices, one of each layer, and what they mean: strategy, library, schedule, network."""

ACROSS = ("dp", "cp", "pp", "tp")  # replicas are neighbours, tensor ranks are not
NONE = 1.005  # a speed-up below it is none


@tabled()
def iterations(
    topologies: Sequence[str],
    layout: str = "dp8 tp4 acc4",
    *,
    per_node: int = 8,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
    latency: str = "10 us",
) -> Rows:
    """Return the seconds of an iteration for every combination of choices on every topology.

    A row each, with the columns topology, a truth value for each of `CHOICES`, and ``seconds``.
    ``latency`` is what a message between nodes costs before its first byte, a fifth of it inside.
    """
    along = Layout.parse(layout)
    for topology in topologies:
        network = network_of(topology, per_node, between, inside)
        for taken in product((False, True), repeat=len(CHOICES)):
            choice = dict(zip(CHOICES, taken, strict=True))
            seconds = _iteration_seconds(
                along if choice["placement"] else replace(along, order=ACROSS),
                replace(network, routing="ecmp" if choice["routing"] else "ecmp hash"),
                latency,
                all_reduce="hierarchical" if choice["collective"] else "ring",
                overlap=choice["overlap"],
            )
            yield {"topology": topology, **choice, "seconds": seconds}


def _iteration_seconds(layout: Layout, network: Network, latency: str, **options: Any) -> float:
    start = seconds_from(latency)
    timeline = play_iteration(
        DENSE.shape,
        layout,
        network,
        FLOPS,
        memory_bandwidth=MEMORY,
        startup=Startup(inside=start / 5, between=start),
        **options,
    )
    return sum(parts_of(timeline).values())


@tabled("topology", "choice", "alone", "last", "product", index=["topology", "choice"])
def gain_table(rows: pd.DataFrame) -> Rows:
    """Return what each choice brings: a row per topology and choice, speed-ups.

    ``alone`` over none of the choices; ``last`` of all of them over all but this one. The rows
    ``all`` have what all bring together, and as ``product`` what would follow from each alone.
    """
    for topology, part in rows.groupby("topology", sort=False):
        gain, every = speed_ups(part), frozenset(CHOICES)
        alone = {name: gain[frozenset([name])] for name in CHOICES}
        for name in CHOICES:
            yield topology, name, alone[name], gain[every] / gain[every - {name}], np.nan
        yield topology, "all", gain[every], np.nan, prod(alone.values())


@tabled("topology", "one", "other", "one alone", "other alone", "both", "interaction")
def pair_table(rows: pd.DataFrame) -> Rows:
    """Return what each pair of choices brings: a row per topology and pair.

    Columns: ``one`` and ``other``, the speed-ups ``one alone``, ``other alone`` and ``both``, and
    ``interaction``, that of both over the product: above 1 the two need each other, below 1 one
    does a part of the other's work.
    """
    for topology, part in rows.groupby("topology", sort=False):
        gain = speed_ups(part)
        for pair in combinations(CHOICES, 2):
            one, other = (gain[frozenset([name])] for name in pair)
            both = gain[frozenset(pair)]
            yield topology, *pair, one, other, both, both / one / other


def speed_ups(rows: pd.DataFrame) -> dict[frozenset[str], float]:
    """Return the speed-up of each combination of choices over none, on one topology.

    Raises InputError unless every combination has one row.
    """
    seconds = {
        frozenset(name for name in CHOICES if row[name]): row["seconds"]
        for row in rows.to_dict("records")
    }
    every = 2 ** len(CHOICES)
    require(
        len(seconds) == len(rows) == every,
        f"a topology must have one iteration for each of {every} combinations of "
        f"choices, and has {len(rows)} for {len(seconds)}",
    )
    return {taken: seconds[frozenset()] / own for taken, own in seconds.items()}


def factorial_findings(rows: pd.DataFrame) -> Findings:
    """Return what the layers bring alone and together on every topology, in sentences."""
    gains, pairs = gain_table(rows), pair_table(rows)
    told = []
    for topology, part in rows.groupby("topology", sort=False):
        own = gains.loc[topology]
        alone = own["alone"].drop("all")
        together, expected = own.loc["all", "alone"], own.loc["all", "product"]
        best = part.loc[part[list(CHOICES)].all(axis=1), "seconds"].item()
        told.append(
            f"{topology}: all choices together are {together:.2f} times as fast as none "
            f"({best / MS:,.0f} ms), where the product of each alone says {expected:.2f}."
        )
        hidden = [
            f"{name} ({alone[name]:.2f} alone, {own.loc[name, 'last']:.2f} as the last)"
            for name in alone.index
            if alone[name] < NONE < own.loc[name, "last"]
        ]
        if hidden:
            told.append(f"It takes the others to gain from {_all(hidden)}.")
        here = pairs[pairs["topology"] == topology].set_index(["one", "other"])["interaction"]
        told.append(
            f"The pair that needs each other most is {_all(here.idxmax())} "
            f"({here.max():.2f} times the product); least, {_all(here.idxmin())} "
            f"({here.min():.2f})."
        )
    return findings(*told)


def _all(names: Sequence[str]) -> str:
    return " and ".join(names)


Whole = NDArray[np.int64]
BETTER = 1 - 1e-9  # a swap is taken if it lowers the load by more than rounding
STARTS = 4  # descents


def searched_placement(network: Network, matrix: Numbers, seed: int) -> tuple[int, ...]:
    """Return the placement with the least loaded busiest link of those that descents find.

    A descent begins at random and takes the best swap of two ranks, again and again, by the sum of
    squares of what all links need (seconds): the busiest link alone is often two at once.
    """
    seconds = _pair_seconds(network, len(matrix))
    rng = np.random.default_rng(seed)
    ends = [_descent(seconds, matrix, rng.permutation(len(matrix))) for _ in range(STARTS)]
    best = min(ends, key=lambda placement: busiest_seconds(network, matrix, placement.tolist()))
    return tuple(best.tolist())


def _descent(seconds: Numbers, matrix: Numbers, placement: Whole) -> Whole:
    """Return where no swap lowers the load any more."""
    pairs = np.array(list(combinations(range(len(matrix)), 2)))
    swaps = np.tile(np.arange(len(matrix)), (len(pairs), 1))
    np.put_along_axis(swaps, pairs, pairs[:, ::-1], axis=1)
    load = _load(seconds, matrix, placement)
    while True:
        tries = placement[swaps]
        loads = [_load(seconds, matrix, swapped) for swapped in tries]
        best = int(np.argmin(loads))
        if loads[best] >= load * BETTER:
            return placement
        placement, load = tries[best], loads[best]


def _pair_seconds(network: Network, count: int) -> Numbers:
    """Return the seconds on every link of a byte between two endpoints: [links, from, to]."""
    seconds = np.zeros((len(network.links), count, count))
    for pair in permutations(range(count), 2):
        single = np.zeros((count, count))
        single[pair] = 1.0
        seconds[:, *pair] = link_bytes(network, single) / network.bandwidths
    return seconds


def _load(seconds: Numbers, matrix: Numbers, placement: Whole) -> float:
    moved = np.zeros_like(matrix)
    moved[np.ix_(placement, placement)] = matrix
    loads = seconds.reshape(len(seconds), -1) @ moved.ravel()
    return float(loads @ loads)


@tabled("topology", "placement", "busiest", "seconds", index=["topology", "placement"])
def placement_table(
    topologies: Sequence[str],
    layout: str = "dp4 tp4 acc4",
    *,
    per_node: int = 4,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
    latency: str = "10 us",
    seed: int = 1,
) -> Rows:
    """Return placements of a layout's ranks: a row per topology and placement; simulated.

    Columns: ``busiest`` (seconds of the busiest link for its bytes) and ``seconds`` of the played
    iteration. Placements: ``across`` the grain, ``random``, ``searched`` by the matrix,
    and ``along`` the grain: tensor ranks are neighbours.
    """
    along = Layout.parse(layout)
    matrix = np.sum(list(traffic_matrices(DENSE.shape, along).values()), axis=0)
    ranks = np.arange(along.ranks)
    for topology in topologies:
        network = network_of(topology, per_node, between, inside)
        places = {
            "across": tuple(ranks.reshape(along.tp, -1).T.ravel().tolist()),
            "random": tuple(np.random.default_rng(seed).permutation(ranks).tolist()),
            "searched": searched_placement(network, matrix, seed),
            "along": tuple(ranks.tolist()),
        }
        for name, placement in places.items():
            busiest = busiest_seconds(network, matrix, placement)
            seconds = _iteration_seconds(along, network, latency, placement=placement)
            yield (topology, name, busiest, seconds)


def placement_findings(table: pd.DataFrame) -> Findings:
    """Return what the search did to the busiest link, and to the iteration, in sentences."""
    told = []
    for topology, part in table.groupby(level="topology", sort=False):
        own = part.droplevel("topology")
        before, after, along = (own.loc[name] for name in ("random", "searched", "along"))
        told.append(
            f"{topology}: the busiest link needs {before['busiest'] / MS:,.0f} ms with ranks at "
            f"random and {after['busiest'] / MS:,.0f} ms with searched places "
            f"({along['busiest'] / MS:,.0f} ms with tensor ranks as neighbours); the iteration "
            f"takes {before['seconds'] / MS:,.0f}, {after['seconds'] / MS:,.0f} and "
            f"{along['seconds'] / MS:,.0f} ms."
        )
    return findings(*told)


Flow = tuple[int, int, float, float]
NO_SLOWDOWN = 1.001  # a slowdown below it is none
# Bytes per second of a host's cable, and bytes that it sends at a time: only ratios are reported.
BANDWIDTH, BURST = 1.25e9, 1e9
PLACEMENTS = {
    "apart": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "mixed": ((0, 4, 1, 5), (2, 6, 3, 7)),
}
"""The hosts of both jobs, in the order of their rings, on two leaves of four hosts."""


def slowdown(
    placement: str, duty: float, phase: float, oversubscription: float = 4.0, bursts: int = 12
) -> float:
    """Return how much longer an iteration of two equal jobs takes than that of one alone.

    A job computes, sends round its ring, and begins again when all has arrived. ``duty`` is the
    share of an iteration alone in which it sends; the second job begins ``phase`` of that iteration
    after the first one. Seconds are between the last two bursts.
    """
    require(0 < duty < 1, f"duty {duty} must be a share between 0 and 1")
    require(0 <= phase < 1, f"phase {phase} must be from 0 to below 1")
    network = TwoTier(2, 4, oversubscription).network(BANDWIDTH)  # leaves of four under one spine
    rings = PLACEMENTS[placement]
    alone = share(network, _burst(rings[0], 0.0)).seconds
    period = alone / duty
    due = np.array([0.0, period * phase])  # when each job sends next
    flows: list[Flow] = []
    owners: list[int] = []
    for _ in range(2 * bursts):  # no burst can begin before the earliest next one
        job = int(np.argmin(due))
        flows += _burst(rings[job], float(due[job]))
        owners.append(job)
        arrived = share(network, flows).messages["stop"].reshape(len(owners), -1).max(axis=1)
        for job in set(owners):  # a burst delays those that are still on their way
            due[job] = arrived[np.equal(owners, job)][-1] + (period - alone)
    first = arrived[np.equal(owners, np.argmin(due))]
    return float((first[-1] - first[-2]) / period)


def _burst(ring: Sequence[int], at: float) -> list[Flow]:
    """Return the flows of a burst that begins then: each host sends to the next one."""
    return [
        (host, after, BURST, at) for host, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]


def slowdown_table(
    duties: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    oversubscription: float = 4.0,
) -> pd.DataFrame:
    """Return the slowdown by duty cycle (rows), by placement and phase (columns).

    ``shifted`` bursts begin half an iteration after the other job's, ``aligned`` ones with them.
    """
    table = {
        f"{placement}, {name}": [
            slowdown(placement, duty, phase, oversubscription) for duty in duties
        ]
        for placement in PLACEMENTS
        for name, phase in (("aligned", 0.0), ("shifted", 0.5))
    }
    return pd.DataFrame(table, index=pd.Index(duties, name="duty cycle"))


def tree_findings(table: pd.DataFrame) -> Findings:
    """Return what placing apart, shifting, and both bring to two jobs, in sentences."""
    told = []
    low = table[table.index <= 0.5]
    mixed, moved = "mixed, aligned", "mixed, shifted"
    apart = table["apart, aligned"].max()
    free = [f"{duty:.0%}" for duty in table.index[table[moved] < NO_SLOWDOWN]]
    told.append(
        f"Two jobs on the same links, with bursts at the same time, are up to "
        f"{low[mixed].max():.2f} times as slow at duty cycles of at most 50 %; shifted by half an "
        f"iteration, up to {low[moved].max():.2f} times."
    )
    told.append(
        f"Shifted bursts meet no other ones at duty cycles of {', '.join(free)}."
        if free
        else "Shifted bursts meet others at every duty cycle."
    )
    told.append(
        "Jobs on leaves of their own lose nothing, however their bursts lie: once they are placed "
        "apart, shifting brings nothing more."
        if apart < NO_SLOWDOWN
        else f"Jobs on leaves of their own are still up to {apart:.2f} times as slow."
    )
    return findings(*told)


SAME = 1e-6  # of an iteration: equal but for rounding


@dataclass(frozen=True)
class Layers:
    """The layers of a model in the order of the forward pass: seconds, and bytes of gradients."""

    forward: Numbers
    backward: Numbers
    gradients: Numbers

    @property
    def ready(self) -> Numbers:
        """When the gradients of every layer are complete, from the backward pass's beginning."""
        return np.cumsum(self.backward[::-1])[::-1]

    def iteration_seconds(self, arrivals: Numbers) -> float:
        """Return when the next forward pass ends if each layer waits for its gradients."""
        free = float(self.backward.sum())
        for seconds, arrival in zip(self.forward, arrivals, strict=True):
            free = max(free, float(arrival)) + float(seconds)
        return free


def llama_layers() -> Layers:
    """Return those of Llama 3 8B for one sequence of 4096 tokens."""
    stage = pipeline_stages(DENSE.shape, 1, 1)[0]
    counts = [count for _, count in stage.layers]
    flops = np.repeat([layer.forward_flops for layer, _ in stage.layers], counts)
    elements = np.repeat([held.elements for held, _ in shares_by_layer(stage, Layout())], counts)
    forward = flops / FLOPS
    return Layers(forward, 2 * forward, get_precision("mixed").reduced * elements.astype(float))


ORDERS = ("fair shares", "first come", "deadline")


def arrivals(layers: Layers, network: Network, order: str) -> Numbers:
    """Return when the gradients of every layer have arrived, in one of `ORDERS`.

    With ``fair shares`` all that are ready flow at once. Otherwise they go alone: next are those
    that have waited longest (``first come``), or those that are needed first (``deadline``).
    """
    if order == "fair shares":
        pairs = zip(layers.gradients.tolist(), layers.ready.tolist(), strict=True)
        flows = [flow for size, ready in pairs for flow in _round_the_ring(network, size, ready)]
        stops = share(network, flows).messages["stop"]
        return np.asarray(stops.reshape(len(layers.gradients), -1).max(axis=1), float)
    arrived = np.full(len(layers.gradients), np.inf)
    urgency = layers.ready if order == "first come" else np.arange(len(arrived))
    now = 0.0
    while len(waiting := np.flatnonzero(np.isinf(arrived))):
        now = max(now, float(layers.ready[waiting].min()))
        ready = waiting[layers.ready[waiting] <= now]
        layer = ready[np.argmin(urgency[ready])]
        now += share(network, _round_the_ring(network, float(layers.gradients[layer]), 0.0)).seconds
        arrived[layer] = now
    return arrived


def _round_the_ring(network: Network, size: float, at: float) -> list[Flow]:
    """Return an all-reduce as what each rank sends to the next one in all of its steps."""
    ranks = network.ranks
    return [(r, (r + 1) % ranks, 2 * (ranks - 1) / ranks * size, at) for r in range(ranks)]


@tabled(index=["bandwidth"])
def deadline_table(
    bandwidths: Sequence[str] = ("25 GB/s", "50 GB/s", "100 GB/s", "200 GB/s"), replicas: int = 8
) -> Rows:
    """Return the seconds of an iteration by bandwidth of a replica (rows) and order (columns).

    One more column, ``bound``: computation alone, or communication after the first gradients of
    the backward pass and before the last layer of the forward pass, whichever is longer.
    """
    require_whole(2, replicas=replicas)
    layers = llama_layers()
    for text in bandwidths:
        network = Star(replicas).network(bandwidth_from(text))
        sent = 2 * (replicas - 1) / replicas * layers.gradients.sum() / bandwidth_from(text)
        computed = layers.forward.sum() + layers.backward.sum()
        times = {
            order: layers.iteration_seconds(arrivals(layers, network, order)) for order in ORDERS
        }
        bound = max(computed, layers.backward[-1] + sent + min(layers.forward))
        yield {"bandwidth": text, **times, "bound": float(bound)}


def deadline_findings(table: pd.DataFrame) -> Findings:
    """Return what an order by deadline brings over fair shares and first come, in sentences."""
    others = [name for name in ORDERS if name != "deadline"]
    over = table[others].min(axis=1) / table["deadline"]
    best = over.idxmax()
    same = (table["fair shares"] / table["first come"] - 1).abs().max() < SAME
    return findings(
        "Fair shares and first come, first served end an iteration at the same time: the gradients "
        "that it needs first arrive last with both."
        if same
        else "",
        f"By deadline an iteration is at most {over.max():.2f} times as fast as by the better of "
        f"the two (at {best}: {table.loc[best, 'deadline'] / MS:,.0f} ms against "
        f"{table.loc[best, others].min() / MS:,.0f} ms), and at most "
        f"{(table['deadline'] / table['bound']).max():.2f} times its bound.",
    )


PAIR_COLOURS = "PuOr"
LIMIT = 2.0  # interactions beyond it, either way, have the strongest colour
ALONE, LAST = METHOD_COLOURS["WFBP-A2A"], METHOD_COLOURS["WFBP-PS"]
EACH = (("alone", ALONE, "alone"), ("last", LAST, "after all others"))  # column, colour, label
TOGETHER = (("alone", DARK, "all together"), ("product", GREY, "product of each alone"))
LINES = {"apart": METHOD_COLOURS["MG-WFBP"], "mixed": METHOD_COLOURS["ByteScheduler-A2A"]}
LOOKS = {"aligned": ("-", "o"), "shifted": ("--", "s")}  # of bursts


@styled
def layer_gains(gains: pd.DataFrame, source: str) -> plt.Figure:
    """What each choice brings alone and after all others, and what all bring together.

    ``gains`` is the table of `ddlnb.survey.layers_codesign.gain_table`: speed-ups by topology and
    choice. The grey bar is the product of what each brings alone.
    """
    rows = gains.reset_index()
    figure, panels = facets(rows, "topology", width=(1.4, 4.6), height=3.2, sharex=True)
    for ax, _, part in panels:
        for y, gain in enumerate(part.to_dict("records")):
            pair = TOGETHER if gain["choice"] == "all" else EACH
            for at, (column, colour, label) in zip((y - 0.2, y + 0.2), pair, strict=True):
                named = label if y == 0 or pair is TOGETHER else None
                ax.barh(at, gain[column] - 1, 0.36, left=1, color=colour, linewidth=0, label=named)
                beside(ax, max(gain[column], 1), at, f"{gain[column]:.2f}")
        names_down(ax, part["choice"].tolist())
        ax.axvline(1, color=DARK, linewidth=0.8)
        ax.set_xlabel("speed-up of an iteration")
    most = gains[["alone", "last", "product"]].max(axis=None)
    panels[0][0].set_xlim(0.9, 1.08 * (most - 0.9) + 1)
    legend(figure, where="upper center", columns=len(EACH + TOGETHER))
    return note(figure, f"source: {source}")


@styled
def layer_pairs(pairs: pd.DataFrame, source: str) -> plt.Figure:
    """What pairs of choices bring over the product of what each of the two brings alone.

    ``pairs`` is the table of `ddlnb.survey.layers_codesign.pair_table`. Above 1 the two need each
    other, below 1 one does a part of the other's work; in brackets what both bring together.
    """
    names = list(CHOICES)
    figure, panels = facets(pairs, "topology", width=(1.2, 4.0), height=3.1)
    edge = np.log2(LIMIT)
    for ax, _, part in panels:
        table = part.pivot(index="one", columns="other", values="interaction")
        cells = np.log2(table.reindex(index=names[:-1], columns=names[1:]))
        shown = ax.imshow(cells, PAIR_COLOURS, vmin=-edge, vmax=edge)
        for pair in part.itertuples():
            text = f"{pair.interaction:.2f}\n({pair.both:.2f})"
            place = names.index(pair.other) - 1, names.index(pair.one)
            ax.text(*place, text, ha="center", va="center", fontsize=8)
        ax.set_xticks(range(len(names) - 1), names[1:])
        names_down(ax, names[:-1])
        ax.set_xlabel("and")
        ax.grid(False)
    bar = figure.colorbar(shown, ax=figure.axes, label="over the product", shrink=0.8)
    ticks = (1 / LIMIT, 1.0, LIMIT)
    bar.set_ticks([float(np.log2(tick)) for tick in ticks], labels=[f"{t:.2f}" for t in ticks])
    return note(figure, f"in brackets: speed-up of both together; source: {source}")


@styled
def phase_slowdowns(table: pd.DataFrame, source: str) -> plt.Figure:
    """How much longer an iteration takes when two equal jobs share a tree, by their duty cycle.

    ``table`` is that of `ddlnb.survey.layers_codesign.slowdown_table`: a row per duty cycle, a
    column per placement and phase.
    """
    figure, ax = plt.subplots(figsize=(6.4, 3.4))
    for name in table:
        placement, phase = name.split(", ")
        style, marker = LOOKS[phase]
        ax.plot(
            100 * table.index,
            table[name],
            style,
            color=LINES[placement],
            marker=marker,
            markersize=4,
            label=name,
        )
    ax.set(
        xlabel="duty cycle: share of an iteration alone in which a job sends (%)", ylabel="slowdown"
    )
    figure.legend(loc="outside right upper", title="jobs, bursts")
    return note(figure, f"source: {source}")
