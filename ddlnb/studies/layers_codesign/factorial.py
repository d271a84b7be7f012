"""Four choices of different layers, each alone, in pairs and all together; simulated.

Every combination is one played iteration of Llama 3 8B. What two choices bring together is set
beside the product of what each brings alone, which is what layers that do not care for each other
would bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod

import pandas as pd

from ddlnb.errors import require
from ddlnb.networks.channels import Startup
from ddlnb.networks.network import Network
from ddlnb.networks.topologies import get_topology
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.simulated.iteration import parts_of, play_iteration
from ddlnb.parallelism.transformer import llama
from ddlnb.studies.findings import Findings, findings
from ddlnb.units import MS, bandwidth_from, seconds_from

# Llama 3 8B (its model card and config), with sequences of 4096 tokens.
LLAMA = llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 4096)
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


def network_of(topology: str, per_node: int, between: str, inside: str) -> Network:
    """Return a topology's network with GPUs; ``between`` is of a GPU's share of its node's links.

    Raises InputError for a topology that does not take so many GPUs a node.
    """
    share = bandwidth_from(between)
    return get_topology(topology).with_gpus(per_node, per_node * share, bandwidth_from(inside))


def iterations(
    topologies: Sequence[str],
    layout: str = "dp8 tp4 acc4",
    *,
    per_node: int = 8,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
    latency: str = "10 us",
) -> pd.DataFrame:
    """Return the seconds of an iteration for every combination of choices on every topology.

    A row each, with the columns topology, a truth value for each of `CHOICES`, and ``seconds``.
    ``latency`` is what a message between nodes costs before its first byte, a fifth of it inside.
    """
    along = Layout.parse(layout)
    start = seconds_from(latency)
    rows = []
    for topology in topologies:
        network = network_of(topology, per_node, between, inside)
        for taken in product((False, True), repeat=len(CHOICES)):
            choice = dict(zip(CHOICES, taken, strict=True))
            line = play_iteration(
                LLAMA.shape,
                along if choice["placement"] else replace(along, order=ACROSS),
                replace(network, routing="ecmp" if choice["routing"] else "ecmp hash"),
                FLOPS,
                memory_bandwidth=MEMORY,
                startup=Startup(inside=start / 5, between=start),
                all_reduce="hierarchical" if choice["collective"] else "ring",
                overlap=choice["overlap"],
            )
            seconds = sum(parts_of(line).values())
            rows.append({"topology": topology, **choice, "seconds": seconds})
    return pd.DataFrame(rows)


def gain_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each choice brings: a row per topology and choice, speed-ups.

    ``alone`` over none of the choices; ``last`` of all of them over all but this one. The rows
    ``all`` have what all bring together, and as ``product`` what would follow from each alone.
    """
    found = []
    for topology, part in rows.groupby("topology", sort=False):
        alone = {name: speed_up(part, {name}) for name in CHOICES}
        for name, gain in alone.items():
            last = speed_up(part, set(CHOICES)) / speed_up(part, set(CHOICES) - {name})
            found.append((topology, name, gain, last, float("nan")))
        together = speed_up(part, set(CHOICES))
        found.append((topology, "all", together, float("nan"), prod(alone.values())))
    columns = ["topology", "choice", "alone", "last", "product"]
    return pd.DataFrame(found, columns=columns).set_index(["topology", "choice"])


def pair_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each pair of choices brings: a row per topology and pair.

    Columns: ``one`` and ``other``, the speed-ups ``one alone``, ``other alone`` and ``both``, and
    ``interaction``, that of both over the product: above 1 the two need each other, below 1 one
    does a part of the other's work.
    """
    found = []
    for topology, part in rows.groupby("topology", sort=False):
        for one, other in combinations(CHOICES, 2):
            first, second = speed_up(part, {one}), speed_up(part, {other})
            both = speed_up(part, {one, other})
            found.append((topology, one, other, first, second, both, both / first / second))
    columns = ["topology", "one", "other", "one alone", "other alone", "both", "interaction"]
    return pd.DataFrame(found, columns=columns)


def speed_up(rows: pd.DataFrame, taken: set[str]) -> float:
    """Return the speed-up of taking these choices over taking none, on one topology."""
    return _seconds(rows, set()) / _seconds(rows, taken)


def _seconds(rows: pd.DataFrame, taken: set[str]) -> float:
    is_it = (rows[list(CHOICES)] == [name in taken for name in CHOICES]).all(axis=1)
    require(
        int(is_it.sum()) == 1,
        f"the rows must have one iteration with the choices {sorted(taken)}, not {is_it.sum()}",
    )
    return float(rows.loc[is_it, "seconds"].iloc[0])


def factorial_findings(rows: pd.DataFrame) -> Findings:
    """Return what the layers bring alone and together on every topology, in sentences."""
    gains, pairs = gain_table(rows), pair_table(rows)
    told = []
    for topology, part in rows.groupby("topology", sort=False):
        own = gains.loc[topology]
        alone = own["alone"].drop("all")
        together, expected = own.loc["all", "alone"], own.loc["all", "product"]
        best = _seconds(part, set(CHOICES))
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
