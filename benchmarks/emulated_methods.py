"""Iterations of methods on an emulated network, and on a simulated cluster of its topology."""

import numpy as np

from benchmarks.socket_transfers import Begins
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.engines.measure import measure
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.simulator.simulate import simulate
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Gradient, Layer, Workload

ALL_TO_ALL = ("BSP-A2A", "WFBP-A2A", "MG-WFBP")
ON_SERVERS = ("BSP-PS", "WFBP-PS")
RUNS, ITERATIONS = 3, 3
SMALL_REPETITIONS = 15
LAYERS, LAYER_ELEMENTS = 8, 60_000
FORWARD_SECONDS, BACKWARD_SECONDS = 0.02, 0.04  # of a layer


def made_up() -> Workload:
    """Return eight equal layers, with about as much to compute as to carry at 50 Mb/s."""
    names = [f"layer{number}" for number in range(LAYERS)]
    return Workload(
        "eight-layers",
        8,
        tuple(Layer(name, forward_seconds=FORWARD_SECONDS) for name in names),
        tuple(
            Gradient(f"{name}.weight", name, LAYER_ELEMENTS, backward_seconds=BACKWARD_SECONDS)
            for name in reversed(names)
        ),
        "made up: eight equal layers",
    )


def cluster_of(
    topology: str, routing: str, change: str, workers: int, bandwidth: float, hop_seconds: float
) -> Cluster:
    """Return the simulated cluster: payload bytes per second of a cable, seconds of a hop."""
    return Cluster(
        name=f"{topology} {change}".strip(),
        network="emulated",
        nodes=workers,
        gpus_per_node=1,
        effects=Effects(between_bandwidth=bandwidth, between_latency=hop_seconds),
        topology=topology,
        routing=routing,
        changes=(change,) if change else (),
        server_place="extra machines",
    )


def workers_for(method: str, hosts: int) -> int:
    """Return the workers: all hosts, or half of them when the others are parameter servers."""
    return hosts if method in ALL_TO_ALL else hosts // 2


def methods_on(hosts: int) -> tuple[str, ...]:
    """Return the methods for so many hosts: those on servers want as many as workers."""
    return ALL_TO_ALL if hosts % 2 else ALL_TO_ALL + ON_SERVERS


def hop_seconds(ranks: Ranks) -> float:
    """Return what a step of the backend's ring costs a message that is one of several.

    Measured with as many small all-reduces as there are layers, started one after the other without
    waiting, as methods do: the backend has more than one under way.
    """
    found = ranks.run(_small_all_reduces, SMALL_REPETITIONS)
    return float(np.median(np.max(found, axis=0))) / LAYERS / (2 * (ranks.count - 1))


def _small_all_reduces(context: RankContext, repetitions: int) -> list[float]:
    import torch
    import torch.distributed as dist

    from ddlnb.launch.rank import process_group

    tensors = [torch.ones(context.count) for _ in range(LAYERS)]

    def all_at_once() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    with process_group(context, context.store(), context.count):
        return Begins(context).seconds_of(all_at_once, repetitions)


def iteration_seconds(ranks: Ranks, method: str, planned_for: Cluster) -> list[float]:
    """Return the seconds of an iteration, a run after the other, planned for one cluster."""
    workers = workers_for(method, ranks.count)
    runs = (
        measure(
            replayed(made_up()),
            [method],
            workers=workers,
            servers=ranks.count - workers or None,
            ranks=ranks,
            iterations=ITERATIONS,
            warmup=1,
            repetitions=1,
            baselines=False,
            cost=planned_for.cost,
        )
        for _ in range(RUNS)
    )
    return [float(rows["iteration_seconds"].iloc[0]) for rows in runs]


def forecast_seconds(cluster: Cluster, method: str, servers: int) -> float:
    """Return the simulated seconds of an iteration."""
    return simulate(made_up(), cluster, method, servers=servers or None).iteration_seconds
