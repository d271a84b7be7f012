"""Table 1, scheduling and levels 2 and 3: numbers simulated on clusters, or computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from ddlnb.calibration.testbed import BATCHES, CLUSTERS, fig4_workload
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require
from ddlnb.networks.rings import (
    Ring,
    bcube_rings,
    check_rings,
    fat_tree_ring,
    rings_bound,
    torus_rings,
)
from ddlnb.networks.structure import Structure
from ddlnb.networks.topologies import BCube, FatTree, Torus
from ddlnb.networks.topology import Topology
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.plans.methods import SURVEYED
from ddlnb.simulator.simulate import plan_on
from ddlnb.studies.sec2_message_size import quoted_fits
from ddlnb.studies.sec3_3_1_protocols.published import facts
from ddlnb.studies.sec4_methods import plans_table
from ddlnb.studies.table1_attributes.attributes import Derived
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.dry_run import dry_run
from ddlnb.training.method import TrainingMethod
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS

if TYPE_CHECKING:
    import pandas as pd

SCHEDULES = {
    "pipelining (WFBP)": ("WFBP-PS", "WFBP-A2A"),
    "tensor fusion (MG-WFBP)": ("MG-WFBP",),
    "tensor partition (ByteScheduler)": ("ByteScheduler-PS", "ByteScheduler-A2A"),
}
ARCHITECTURES = {"PS": "PS", "all-to-all": "A2A"}
NETWORKS = ("fat-tree", "BCube", "torus")
FOR_EVER = 1e9  # seconds of a gradient of the worker that has stopped
STEPS = 200  # more than any registered synchronisation does without an exchange


def hidden_shares(models: Sequence[str] = tuple(BATCHES), gpus: int = 32) -> pd.DataFrame:
    """Return what every schedule hides, simulated: a row per model, network and method.

    ``hidden`` is the time saved over BSP on the same architecture, as a share of what computation
    could hide at best: the shorter one of BSP's computation and communication. Below zero where
    the schedule costs more than it hides. Columns: row, model, network, method, hidden.
    """
    import pandas as pd

    rows = []
    for model in models:
        workload = fig4_workload(model)
        for network, name in CLUSTERS.items():
            cluster = get_cluster(name, gpus)
            costs = {method: iteration_cost(workload, cluster, method) for method in SURVEYED}
            for row, methods in SCHEDULES.items():
                for method in methods:
                    plain = costs[f"BSP-{SURVEYED[method].architecture}"]
                    best = min(plain.compute_seconds, plain.waiting_seconds)
                    saved = plain.iteration_seconds - costs[method].iteration_seconds
                    rows.append((row, model, network, method, saved / best))
    return pd.DataFrame(rows, columns=["row", "model", "network", "method", "hidden"])


def scheduling_numbers(hidden: pd.DataFrame, gpus: int = 32) -> list[Derived]:
    """Derive the cells of the three schedules; ``hidden`` comes from `hidden_shares`."""
    found = []
    workload = fig4_workload(str(hidden["model"].iloc[0]))
    cluster = get_cluster(next(iter(CLUSTERS.values())), gpus)
    for row, methods in SCHEDULES.items():
        plans = {name: plan_on(cluster, workload, name) for name in methods}
        sent = plans_table(plans)
        wrong = (sent["least_times_sent"] != 1) | (sent["most_times_sent"] != 1)
        mine = hidden.loc[hidden["row"] == row, "hidden"]
        note = f"from {mine.min():.2f} to {mine.max():.2f} over {len(mine)} cells, {gpus} GPUs"
        found += [
            Derived(row, "loss", float(wrong.mean()), "computed", f"plans of {workload.model}"),
            Derived(row, "efficiency", float(mine.median()), "simulated", note),
        ]
    return found


def architecture_numbers(workers: int = 32) -> list[Derived]:
    """Derive the cells of parameter servers and all-to-all."""
    byte = AlphaBeta(0.0, 1.0)
    server = push_pull(byte, workers, 1).seconds_per_byte
    many = push_pull(byte, workers, workers).seconds_per_byte
    ring = ring_all_reduce(byte, workers).seconds_per_byte
    found = [
        Derived(
            "PS",
            "traffic",
            server,
            "computed",
            f"{workers} workers, one server; {many:g} with as many servers as workers",
        ),
        Derived("all-to-all", "traffic", ring, "computed", f"a ring of {workers} workers"),
    ]
    for row, architecture in ARCHITECTURES.items():
        shares = work_without_one(architecture)
        best = max(shares, key=shares.__getitem__)
        said = f"{best}; bsp {shares['bsp']:.2g}"
        if architecture == "PS":
            said += "; a server that stops, stops all"
        found.append(Derived(row, "robustness", shares[best], "simulated", said))
    return found


@cache
def work_without_one(architecture: str, workers: int = 4) -> dict[str, float]:
    """Return what the others still do when worker 0 stops at once, as a share of all their work.

    By the name of every synchronisation that runs on this architecture; its own loop runs.
    """

    def seconds(rank: int, step: int, workers: int) -> float:
        return 1.0 if rank else FOR_EVER

    found = {}
    for name, kind in SYNCHRONISATIONS.items():
        try:
            method = TrainingMethod(kind(), architecture=architecture)
        except InputError:
            continue  # it runs elsewhere
        run = dry_run(method, [(8,)], workers, STEPS, Clock(compute=seconds), recording=True)
        done = sum(
            one.computes and one.rank > 0 and one.end < FOR_EVER for one in run.lockstep.activities
        )
        found[name] = done / (STEPS * (workers - 1))
    return found


def protocol_numbers() -> list[Derived]:
    """Derive the cells of the three protocols from the survey's own messages (A14 and A15)."""
    latencies = quoted_fits()["latency_us"]
    least = latencies.min()
    said = facts()
    found = []
    for row in dict.fromkeys(one["protocol"] for one in said if one["property"] == "latency"):
        networks = [
            one["value"] for one in said if one["protocol"] == row and one["property"] == "network"
        ]
        if not networks:
            note = "the survey quotes no message of it, and there is no such card here"
            found.append(Derived(row, "latency", math.nan, "computed", note))
            continue
        each = ", ".join(f"{name} {latencies[name]:.3g} us" for name in networks)
        number = min(latencies[name] for name in networks) / least
        note = f"fits of quoted messages: {each}"
        found.append(Derived(row, "latency", float(number), "computed", note))
    return found


def network_of(name: str, hosts: int) -> Topology:
    """Return the network of Table 1 with this many hosts: BCube of two levels, a square torus.

    Raises InputError for a size that it does not have.
    """
    side, ports = math.isqrt(hosts), round((4 * hosts) ** (1 / 3))
    made: Topology = {
        "fat-tree": lambda: FatTree(ports),
        "BCube": lambda: BCube(side, 2),
        "torus": lambda: Torus(side, side),
    }[name]()
    require(made.hosts == hosts, f"no {name} has {hosts} hosts; 16 and 1024 fit all networks")
    return made


def network_rings(name: str, hosts: int) -> list[Ring]:
    """Build and check the rings that fit a network at once; no more than these are possible."""
    topology = network_of(name, hosts)
    made = topology.network(1.0)
    if isinstance(topology, FatTree):
        rings = fat_tree_ring(topology.ports)
    elif isinstance(topology, BCube):
        rings = bcube_rings(topology.ports)
    else:
        rings = torus_rings(math.isqrt(hosts))
    check_rings(made, rings)
    if len(rings) != rings_bound(made):
        raise AssertionError(f"{made!r} could carry more rings")
    return rings


def network_table(servers: int = 16, failures: int = 2, draws: int = 2000) -> pd.DataFrame:
    """Return the networks of Table 1 at this size: what they cost, and what they give.

    rings: through all servers, at once (see `network_rings`). rings_per_link: of a server's links.
    survival: the share of random losses of ``failures`` links that leave all servers connected.
    cutting: link failures that it takes to cut a server off. halves: links between halves.
    """
    import pandas as pd

    rows = {}
    for name in NETWORKS:
        network = network_of(name, servers).network(1.0)
        made = Structure(network)
        rings = len(network_rings(name, servers))
        rows[name] = {
            "servers": network.ranks,
            "switches": network.switches,
            "links": network.cables,
            "links_per_server": made.degree(0),
            "diameter": made.diameter,
            "mean_hops": made.mean_hops,
            "halves": made.bisection,
            "rings": rings,
            "rings_per_link": rings / made.degree(0),
            "cutting": made.weakest_host,
            "survival": made.survival(failures, draws),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def topology_numbers(table: pd.DataFrame, failures: int = 2) -> list[Derived]:
    """Derive the cells of the three topologies from `network_table` with the same ``failures``."""
    found = []
    for name, row in table.iterrows():
        found += [
            Derived(
                str(name),
                "efficiency",
                float(row["rings"]),
                "computed",
                f"{row['rings_per_link']:g} per link of a server; mean path {row['mean_hops']:.2f} "
                f"links, {row['halves']:g} links between halves",
            ),
            Derived(
                str(name),
                "robustness",
                float(row["survival"]),
                "simulated",
                f"{failures} of {row['links']:g} links lost; {row['cutting']:g} cut a server off",
            ),
        ]
    return found


def median_hidden(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return medians of `hidden_shares` over the models: a row per method, a column per network."""
    table = hidden.pivot_table("hidden", "method", "network", aggfunc=median, sort=False)
    return table[list(dict.fromkeys(hidden["network"]))].round(2)


def network_costs(networks: pd.DataFrame) -> pd.DataFrame:
    """Return `network_table` to read."""
    names = {
        "links_per_server": "links per server",
        "mean_hops": "mean path (links)",
        "halves": "links between halves",
        "rings_per_link": "rings per link of a server",
        "cutting": "failures to cut a server off",
        "survival": "survival (%)",
    }
    shown = networks.assign(survival=(100 * networks["survival"]).round(1))
    return shown.round({"mean_hops": 2}).rename(columns=names)


def system_numbers(hidden: pd.DataFrame, networks: pd.DataFrame, failures: int) -> list[Derived]:
    """Derive the cells of scheduling, architecture, protocol and topology."""
    return [
        *scheduling_numbers(hidden),
        *architecture_numbers(),
        *protocol_numbers(),
        *topology_numbers(networks, failures),
    ]
