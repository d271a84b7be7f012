"""A tour of networks: topologies, changes, a cluster on them, and what layers do to each other.

The claims are those of the survey of collective communication in layers (Wei et al.,
arXiv 2403.07585, items C02 to C07) that flows on a graph can decide. All numbers are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ddlnb.clusters.file import get_cluster
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.flows import Startup
from ddlnb.networks.network import Network, changed
from ddlnb.networks.play import play, share as share
from ddlnb.networks.structure import Structure
from ddlnb.networks.topologies import get_topology as get_topology, with_islands
from ddlnb.plans.methods import SURVEYED
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.survey.items import Rows, tabled
from ddlnb.survey.sec3_3_2_topologies import judged, rings_at_once
from ddlnb.survey.testbed import fig4_workload
from ddlnb.units import MIB, bandwidth_from

# a + b M through the times of the survey's messages on 10GbE (A14, A15): 95.6 us, 9.07 Gb/s.
ALPHA, BETA = 95.6e-6, 0.8816e-9


@tabled(index=["topology"])
def described(topologies: Sequence[str]) -> Rows:
    """Return what each topology is made of: hosts, switches, cables, diameter, bisection.

    Raises UnknownName or InputError for a text that describes none.
    """
    for text in topologies:
        network = get_topology(text).network(1.0)
        structure = Structure(network)
        yield {
            "topology": text,
            "ranks": network.ranks,
            "switches": network.switches,
            "cables": network.cables,
            "longest path (links)": structure.diameter,
            "mean path (links)": round(structure.mean_hops, 2),
            "cables between halves": structure.bisection,
            "failures that cut a rank off": structure.weakest_host,
        }


def all_reduce_loads(
    topologies: Sequence[str],
    algorithm: str,
    *,
    size: float = 100e6,
    bandwidth: str = "10 Gb/s",
    changes: Sequence[str] = (),
) -> dict[str, tuple[Network, np.ndarray]]:
    """Return networks and the utilisation of their links in an all-reduce, by title of a panel."""
    found = {}
    for text in topologies:
        network = changed(get_topology(text).network(bandwidth_from(bandwidth)), changes)
        played = play(get_collective(algorithm, network.ranks), network, size)
        title = f"{algorithm} on {network.name}: {1e3 * played.seconds:.0f} ms"
        found[title] = (network, played.utilisation)
    return found


def by_topology(
    model: str,
    cluster: str,
    topologies: Sequence[str],
    *,
    gpus: int = 32,
    all_reduce: str = "ring",
    methods: Sequence[str] = tuple(SURVEYED),
) -> pd.DataFrame:
    """Return samples per second by method (rows) and topology (columns).

    Parameter servers stand beside the workers, so that every topology has room for them.
    """
    one = get_cluster(cluster, gpus)
    workload = fig4_workload(model)
    columns = {}
    for topology in topologies:
        on = replace(one, topology=topology, all_reduce=all_reduce, server_place="workers' nodes")
        cells = [Cell(workload, on, SURVEYED[name]) for name in methods]
        columns[topology] = [
            cell.samples / found.iteration_seconds
            for cell, found in zip(cells, steady_seconds(cells), strict=True)
        ]
    return pd.DataFrame(columns, index=pd.Index(methods, name="method")).round().astype(int)


def claims() -> pd.DataFrame:
    """Return the claims that flows decide: item, claim, numbers, verdict."""
    return judged(
        [_algorithms_cross(), _topology_loads(), _placement(), _interleaved(), _inside_too()]
    )


def crossing_bytes(workers: int) -> tuple[float, float]:
    """Return the message size from which a ring beats recursive doubling: simulated, by formula.

    2 (n-1) a + 2 (n-1)/n M b = log2 n (a + M b), with the survey's a and b of 10GbE.
    """
    network = get_topology(f"star({workers})").network(1 / BETA)
    startup = Startup(ALPHA, ALPHA)
    ring, doubling = (get_collective(name, workers) for name in ("ring", "recursive-doubling"))

    def lead(size: float) -> float:
        seconds = (play(one, network, size, startup=startup).seconds for one in (ring, doubling))
        return next(seconds) - next(seconds)

    low, high = 1.0, 1e9
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if lead(middle) > 0 else (low, middle)
    steps, hops = np.log2(workers), 2 * (workers - 1)
    return high, (hops - steps) * ALPHA / ((steps - hops / workers) * BETA)


def _algorithms_cross() -> tuple[str, str, str, bool]:
    crossings = {workers: crossing_bytes(workers) for workers in (8, 32)}
    told = [
        f"{workers} workers: {simulated / MIB:.2f} MiB simulated, {formula / MIB:.2f} by formula"
        for workers, (simulated, formula) in crossings.items()
    ]
    return (
        "C02",
        "On one network the best algorithm changes with the size, where formulas say",
        "; ".join(told),
        all(abs(simulated / formula - 1) < 0.05 for simulated, formula in crossings.values()),
    )


def _topology_loads() -> tuple[str, str, str, bool]:
    seen = {}
    for text in ("star(16)", "two-tier(4, 4, oversubscription=4.0)", "torus(4, 4)"):
        network = get_topology(text).network(1.25e9)
        played = play(get_collective("halving-doubling", 16), network, 1e8)
        load = round(played.link_bytes.max() / 1e8, 3)
        seen[network.name] = load, round(1e3 * played.seconds)
    told = [f"{name} {load:.1f} messages, {ms} ms" for name, (load, ms) in seen.items()]
    return (
        "C03",
        "How loaded the busiest link is, and how long an algorithm takes, depend on the topology",
        f"busiest link: {'; '.join(told)}",
        all(len(set(values)) > 1 for values in zip(*seen.values(), strict=True)),
    )


def _placement() -> tuple[str, str, str, bool]:
    """Four rings of four ranks each, under one leaf each, or spread over all leaves."""
    network = get_topology("two-tier(4, 4, oversubscription=4.0)").network(1.25e9)
    groups = rings_at_once(np.arange(16).reshape(4, 4).tolist(), 16)
    near = play(groups, network, 1e8)
    spread = play(groups, network, 1e8, placement=[4 * (r % 4) + r // 4 for r in range(16)])
    numbers = (
        f"groups spread over all leaves: {1e3 * spread.seconds:.0f} ms; each under one leaf: "
        f"{1e3 * near.seconds:.0f} ms"
    )
    claim = "Ranks that talk to each other belong under one switch"
    return "C04", claim, numbers, near.seconds < 0.9 * spread.seconds


def _interleaved() -> tuple[str, str, str, bool]:
    """Two jobs send bursts of 1 s every 2.5 s over one cable: in step, and half a period apart."""
    network = get_topology("two-tier(2, 2, oversubscription=2.0)").network(1e9)
    ends = {}
    for shift in (0.0, 1.25):
        bursts = [
            (job, job + 2, 1e9, 2.5 * burst + shift * job) for burst in range(4) for job in (0, 1)
        ]
        played = share(network, bursts)
        starts = np.array([start for *_, start in bursts])
        ends[shift] = float((played.messages["stop"] - starts).mean())
    numbers = f"a burst takes {ends[0.0]:.2f} s in step, {ends[1.25]:.2f} s half a period apart"
    claim = "Two jobs that share a link and send less than half of the time need not slow down"
    return "C06", claim, numbers, ends[1.25] < 1.001 < ends[0.0]


def _inside_too() -> tuple[str, str, str, bool]:
    """Four nodes of eight GPUs: NVLink inside, one card per node outside."""
    network = with_islands(get_topology("star(4)").network(12.5e9), 8, 150e9)
    startup = Startup(4e-6, 15e-6)
    times = {}
    for size in (MIB, 256 * MIB):
        flat, layered = (
            play(get_collective(name, 32, per_node=8), network, size, startup=startup).seconds
            for name in ("ring", "hierarchical")
        )
        times[size] = flat / layered
    numbers = (
        f"hierarchical is {times[MIB]:.1f} times as fast as one ring for 1 MiB, "
        f"{times[256 * MIB]:.2f} times for 256 MiB"
    )
    claim = "A hierarchy that uses links inside nodes and between them beats one flat ring"
    return "C07", claim, numbers, min(times.values()) > 1
