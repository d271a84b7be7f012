"""A cluster from the names of its hardware: what data sheets say, and what is left of it.

Every effect has a 90 % interval: it comes from open measurements on other machines, which say how
much of a rate software and contention leave (data/hardware).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddlnb.clusters.cluster import IN_A_BOX, Cluster, Fit
from ddlnb.clusters.effects import EFFECTS, Effects
from ddlnb.clusters.fabric import NCCL, NCCL_TREE
from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect, get_machine, parts_of
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.machine import Interconnect, Known, Machine, as_nodes, link_inside, node_costs
from ddlnb.units import GB, gigabits_per_second, show_bandwidth

MOST_NODES = 100_000
MOST_IN_A_NODE = 72  # GPUs: those of a rack that NVLink joins
SLOW_PORT = 2 * GB  # bytes/s: GPUs with less of a port each are joined by Ethernet, if unsaid
# Relative error of forecasts where nobody measured anything on the cluster: with it nine in ten
# cells of the survey's testbed, forecast by name, are in their intervals (benchmarks/by_name.py).
NAMED_ERROR = 0.12
PORTS = {100: 2014, 200: 2020, 400: 2022, 800: 2025}  # Gb/s of InfiniBand's ports, since when


def cluster_of(
    gpu: str | Gpu = "",
    nodes: int = 1,
    gpus_per_node: int | None = None,
    network: str | Interconnect = "",
    *,
    machine: str | Machine = "",
    server_place: str | None = "extra machines",
) -> Cluster:
    """Return a cluster of named hardware, every effect with an interval and a source.

    ``gpu`` is a name of `get_gpu`, ``network`` one of `get_interconnect`, or ``machine`` one of
    `get_machine` that says both and how many GPUs a node has. Beside it, ``gpu`` must be its own,
    fewer ``gpus_per_node`` are those in use, and ``network`` stands in place of its own. Left out,
    a node has as many GPUs as nodes with such GPUs usually have, and the network is what they are
    usually sold with; ``cluster.facts`` says what was chosen. The all-reduce is a double tree where
    NVLink joins the GPUs of several nodes or of a rack (NCCL's choice for all but the largest
    messages, for which its ring is as fast), else a ring or such a tree, as NCCL chooses. Raises
    UnknownName, and InputError for a cluster that cannot be.

    >>> import ddlnb
    >>> cluster = ddlnb.cluster_of("A100", nodes=4, gpus_per_node=8, network="200GbIB")
    >>> cluster
    Cluster('4x8-A100-SXM4-80GB-200GbIB', workers=32 of 32)
    >>> ddlnb.cluster_of(machine="p4d", nodes=2).network
    'EFA-400'
    """
    require_whole(nodes=nodes)
    require(nodes <= MOST_NODES, f"nodes {nodes:,} are more than {MOST_NODES:,}; take fewer")
    facts: dict[str, str] = {}
    if machine != "":
        one = get_machine(machine)
        gpu, gpus_per_node, network = parts_of(one, gpu, gpus_per_node, network)
        facts["machine"] = f"{one.name} ({one.source})"
        if not network.is_like(one.interconnect):
            facts["network"] = f"not that of {one.name}, {one.interconnect.name}: {network.name}"
    if gpu == "":
        raise InputError(
            "give the GPU of the cluster, such as A100, or a machine, such as DGX-A100"
        )
    kind = get_gpu(gpu)
    facts["gpu"] = f"{kind.name} ({kind.source})"
    if gpus_per_node is None:
        gpus_per_node = usual_gpus(kind)
        facts["GPUs per node"] = f"not given: {gpus_per_node}, as is usual with {kind.name}"
    require_whole(gpus_per_node=gpus_per_node)
    require(
        gpus_per_node <= MOST_IN_A_NODE,
        f"gpus_per_node {gpus_per_node:,} exceeds the {MOST_IN_A_NODE} GPUs of the largest "
        f"nodes; take more nodes",
    )
    if nodes > 1 and network == "":
        network = usual_network(kind, gpus_per_node)
        facts["network"] = f"not given: {network}, as is usual with {kind.name}"
    joined = get_interconnect(network) if network != "" else None
    machines, of_one = nodes, gpus_per_node
    nodes, gpus_per_node, joined = as_nodes(kind, nodes, gpus_per_node, joined)
    if nodes < machines:
        facts["NVLink between nodes"] = (
            f"{machines} of {of_one} GPUs count as {nodes} of {gpus_per_node}: it joins up to "
            f"{kind.nvlink_domain} {kind.name} of a rack"
        )
    if nodes == 1 and joined is not None:
        facts["network"] = f"not used: {joined.name}, as there is one node"
        joined = None
    known = dict(_effects(kind, joined, gpus_per_node, server_place is not None and nodes > 1))
    if gpus_per_node > 1:
        rate = f"{kind.inside_bandwidth / GB:g} GB/s per direction"
        inside = kind.nvlink.name if kind.nvlink else f"PCIe {kind.pcie.generation}.0"
        facts["inside"] = f"{inside}, {rate} ({kind.source_of('nvlink')})"
    if joined is not None:
        facts["between"] = (
            f"{show_bandwidth(joined.line_rate)}, {joined.protocol.name} ({joined.source})"
        )
    label = joined.name if joined else "no network"
    return Cluster(
        name=_name(kind, nodes, gpus_per_node, joined),
        network=label,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        effects=Effects(**{effect: one.value for effect, one in known.items()}),
        all_reduce=NCCL_TREE
        if kind.nvlink and gpus_per_node > (1 if nodes > 1 else IN_A_BOX)
        else NCCL,
        server_place=server_place if nodes > 1 else None,
        model_error=NAMED_ERROR,
        hardware=kind.word,
        about=f"{nodes} x {gpus_per_node} {kind.name}, {label}, from the names of its hardware",
        facts=facts,
        fits={effect: Fit(one.low, one.high, one.source) for effect, one in known.items()},
    )


def usual_gpus(gpu: Gpu) -> int:
    """Return how many GPUs a node with such GPUs usually has: a box, and half without NVLink."""
    return gpu.gpus_per_node or (IN_A_BOX if gpu.nvlink else IN_A_BOX // 2)


def usual_network(gpu: Gpu, gpus_per_node: int) -> str:
    """Return the network that nodes with so many such GPUs are usually sold with.

    GPUs share a port if each has less of the network than a port of their year carries.

    >>> usual_network(get_gpu("A100"), 8), usual_network(get_gpu("V100"), 8)
    ('8x200GbIB', '4x100GbIB')
    >>> usual_network(get_gpu("T4"), 4)
    '50GbE'
    """
    gigabits = gigabits_per_second(gpu.port)
    whole = gigabits * gpus_per_node
    if gpu.port < SLOW_PORT:
        return f"{whole:g}GbE"
    fastest = max(rate for rate, since in PORTS.items() if since <= max(gpu.year, PORTS[100]))
    least = max(gigabits, min(fastest, whole))
    port = next((rate for rate in PORTS if rate >= least), max(PORTS))
    ports = math.ceil(whole / port)
    return f"{port}GbIB" if ports == 1 else f"{ports}x{port}GbIB"


def _effects(
    gpu: Gpu, joined: Interconnect | None, per_node: int, has_servers: bool
) -> Iterator[tuple[str, Known]]:
    """Yield every effect that such a cluster has, by name, within the bounds of physics."""
    for effect, known in _unbounded(gpu, joined, per_node, has_servers):
        yield (
            effect,
            Known(
                known.value, known.low, min(known.high, most_of(effect, gpu, joined)), known.source
            ),
        )


def most_of(effect: str, gpu: Gpu, joined: Interconnect | None) -> float:
    """Return the most that an effect can be: a bandwidth no more than the line has."""
    lines = {"inside_bandwidth": gpu.inside_bandwidth}
    lines |= {"between_bandwidth": joined.line_rate} if joined is not None else {}
    return lines.get(effect, EFFECTS[effect].unit.most)


def _unbounded(
    gpu: Gpu, joined: Interconnect | None, per_node: int, has_servers: bool
) -> Iterator[tuple[str, Known]]:
    costs, link = node_costs(), link_inside(gpu)
    if per_node > 1:
        yield "inside_latency", link.latency
        yield "inside_bandwidth", link.share.times(gpu.inside_bandwidth)
        yield "inside_share", link.computing
    if gpu.nvlink is not None:
        yield "compute_share", costs.busy["compute"]
    for effect, share in costs.memory.items():
        yield effect, share.times(gpu.memory_bandwidth)
    for effect in ("operation_latency", "level_latency", "jitter"):
        yield effect, costs.software[effect]
    if joined is None:
        return
    yield "between_latency", joined.latency
    yield "between_bandwidth", joined.bandwidth
    if gpu.nvlink is not None:
        yield "between_share", _between_share(gpu, joined)
    if not has_servers:
        return
    for effect in ("server_latency", "sum_bandwidth"):
        yield effect, costs.software[effect]
    if joined.protocol.name == "TCP":
        yield "duplex_bandwidth", costs.duplex.times(joined.bandwidth.value)
        connection = costs.software["connection_bandwidth"]
        if connection.value < joined.bandwidth.value:
            yield "connection_bandwidth", connection


def _between_share(gpu: Gpu, joined: Interconnect) -> Known:
    """Return what copies on a busy GPU leave of a network: nearly all of a slow one.

    Copies make a byte take longer by the same time on every network. data/hardware/nodes.yaml says
    what share that leaves of a fast one; on faster ones the share, not the time, is the same.
    """
    busy = node_costs().busy
    share, inside = busy["between"], link_inside(gpu).share.value * gpu.inside_bandwidth
    crowding = min(1.0, joined.bandwidth.value / (busy["network"].value * inside))
    value, low, high = (
        1 / (1 + crowding * (1 / left - 1)) for left in (share.value, share.low, share.high)
    )
    return Known(value, low, high, share.source)


def _name(gpu: Gpu, nodes: int, per_node: int, joined: Interconnect | None) -> str:
    parts = [f"{nodes}x{per_node}", gpu.name, *((joined.name,) if joined else ())]
    return "-".join(parts).replace(" ", "-").replace("/", "")
