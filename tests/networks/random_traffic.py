"""Networks, collectives and flows drawn at random, for the tests of this room."""

from dataclasses import replace

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from ddlnb.networks.network import Link, Network
from ddlnb.networks.topologies import (
    BCube,
    Dragonfly,
    FatTree,
    RailOptimised,
    Star,
    Topology,
    Torus,
    TwoTier,
    with_islands,
)
from ddlnb.plans.transfers import Collective, transfers

SMALL: tuple[Topology, ...] = (
    Star(5),
    TwoTier(leaves=3, hosts_per_leaf=2, oversubscription=2.0, spines=2),
    FatTree(4),
    BCube(3, 2),
    Torus(3, 4),
    Torus(3, 3, 3),
    RailOptimised(nodes=3, rails=2, spines=2, oversubscription=1.5),
    Dragonfly(2, 2, 1),
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Any topology with any routing that fits; links of several bandwidths and latencies."""
    network = draw(st.sampled_from(SMALL)).network(bandwidth=1e9, latency=1e-6)
    if network.routing == "ecmp":
        network = replace(network, routing=draw(st.sampled_from(["ecmp", "ecmp hash", "shortest"])))
    if draw(st.booleans()) and not any(device.kind == "gpu" for device in network.devices):
        network = with_islands(network, 2, bandwidth=3e9, latency=5e-7)
    seed = draw(st.integers(0, 2**32 - 1))
    return unlike(network, np.random.default_rng(seed)) if draw(st.booleans()) else network


def unlike(network: Network, random: np.random.Generator) -> Network:
    """Return the network with links of unlike bandwidths and latencies."""
    factors = random.choice([0.25, 0.5, 1.0, 1.0, 2.0], len(network.links))
    latencies = random.choice([0.0, 1e-6, 7e-5], len(network.links))
    return network.with_links(
        tuple(
            replace(link, bandwidth=link.bandwidth * factor, latency=float(latency))
            for link, factor, latency in zip(network.links, factors, latencies, strict=True)
        )
    )


@st.composite
def collectives(draw: st.DrawFn, most_ranks: int) -> Collective:
    """Transfers in steps that no collective would make: any parts between any ranks."""
    ranks = draw(st.integers(2, min(most_ranks, 8)))
    parts = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for step in range(draw(st.integers(1, 5))):
        count = int(random.integers(1, 2 * ranks))
        source = random.integers(0, ranks, count)
        target = (source + random.integers(1, ranks, count)) % ranks
        first = random.integers(0, parts, count)
        stop = np.minimum(parts, first + random.integers(1, parts + 1, count))
        rows.append(transfers(step, source, target, first, stop, False))
    return Collective("any", "all-gather", ranks, parts, np.concatenate(rows))


@st.composite
def plain_flows(draw: st.DrawFn, ranks: int) -> list[tuple[int, int, float, float]]:
    """Flows between any ranks, of unlike sizes, some of which begin later."""
    ends = st.integers(0, ranks - 1)
    sizes = st.sampled_from([1e6, 5e6, 1e7, 2.5e7])
    starts = st.sampled_from([0.0, 0.0, 1e-3, 7e-3, 0.0123])
    pairs = st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1])
    drawn = draw(st.lists(st.tuples(pairs, sizes, starts), min_size=1, max_size=12))
    return [(*pair, size, start) for pair, size, start in drawn]


def relabelled(network: Network, order: list[int]) -> Network:
    """Return the network with its devices in another order: device order[i] becomes device i."""
    place = {old: new for new, old in enumerate(order)}
    links = tuple(
        Link(place[link.start], place[link.end], link.bandwidth, link.latency)
        for link in network.links
    )
    return replace(network, devices=tuple(network.devices[old] for old in order), links=links)


def as_graph(network: Network) -> nx.DiGraph:
    """Return the devices by number, joined by their links."""
    graph = nx.DiGraph()
    for number, device in enumerate(network.devices):
        graph.add_node(number, name=device.name, kind=device.kind, node=device.node)
    for link in network.links:
        graph.add_edge(link.start, link.end, bandwidth=link.bandwidth, latency=link.latency)
    return graph
