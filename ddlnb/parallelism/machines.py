"""How long the parts of a played iteration take: layers on a GPU, exchanges on a network.

An exchange is played as flows, all groups of its axis at once. Networks are given, or made of named
hardware: GPUs, nodes, what joins them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd
from typing import cast

import numpy as np

from ddlnb.clusters.named import usual_network
from ddlnb.errors import require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.machine import Interconnect, as_nodes, link_inside
from ddlnb.networks.collectives.catalogue import get_algorithm, get_collective
from ddlnb.networks.flows import Startup
from ddlnb.networks.network import Network
from ddlnb.networks.play import play, share
from ddlnb.networks.topologies import Star, Topology, get_topology, with_islands
from ddlnb.parallelism.forecast.frameworks import layer_flops
from ddlnb.parallelism.layout import Layout, groups
from ddlnb.parallelism.memory import PipelineStage, Precision, Share, shares_by_layer
from ddlnb.parallelism.model import LayerShape, ModelShape, recomputed_flops
from ddlnb.parallelism.schedules import Pass
from ddlnb.parallelism.volumes import ALGORITHMS, GroupExchange, among_replicas, within_layer
from ddlnb.plans.transfers import Collective, Primitive


@dataclass(frozen=True, eq=False)
class Machines:
    """GPUs in nodes on a network: what `play_iteration` needs of them.

    ``flops`` is what one GPU sustains in the layers of a model, per second (`layer_flops`).
    """

    gpu: Gpu
    network: Network
    flops: float


def machines_of(
    gpu: str | Gpu,
    nodes: int,
    *,
    gpus_per_node: int = 8,
    network: str | Interconnect | None = None,
    topology: str | Topology | None = None,
    precision: str = "bf16",
    framework: str = "",
) -> Machines:
    """Return nodes of a GPU, joined by a network: by default the ports that it is sold with.

    ``topology`` joins the nodes, by default one switch; further hosts of it stay idle. Bandwidths
    and latencies are those of the hardware's files: what large messages get, not the data sheet.
    Layers get what those of the ``framework`` do, by default the mean of those in use.
    Raises UnknownName and InputError for hardware that is not known, or a topology of fewer hosts.

    >>> machines = machines_of("H100", 4)
    >>> machines.network.ranks, round(machines.flops / 1e12)
    (32, 644)
    """
    require_whole(nodes=nodes, gpus_per_node=gpus_per_node)
    gpu = get_gpu(gpu)
    if network is None:
        network = usual_network(gpu, gpus_per_node)
    join = get_interconnect(network)
    if topology is None:
        nodes, gpus_per_node, join = as_nodes(gpu, nodes, gpus_per_node, join)
    shape = Star(max(2, nodes)) if topology is None else get_topology(topology)
    # A hop between nodes has at least two links: their latencies add up to that of the hop.
    hosts = shape.network(join.bandwidth.value, join.latency.value / 2)
    require(
        hosts.ranks >= nodes,
        f"topology {hosts.name!r} has {hosts.ranks} hosts, fewer than the {nodes} nodes; "
        f"take a larger one",
    )
    inside = link_inside(gpu)
    whole = with_islands(
        hosts,
        gpus_per_node,
        gpu.inside_bandwidth * inside.share.value,
        inside.latency.value / 2,
    )
    return Machines(gpu, whole, layer_flops(gpu, precision, framework))


@dataclass
class LayoutNetwork:
    """The network that a layout's ranks run on, and the start-up of its messages.

    Rank r runs on endpoint ``placement[r]``, by default on endpoint r. ``all_reduce`` names the
    algorithm of all-reduces; to one that knows nodes, ranks of a group come node by node.
    Every exchange is played with all groups of its axis, which share the links; what other axes
    exchange at the same time is left out. Equal exchanges are played once. Raises InputError for a
    network with fewer endpoints than the layout has ranks, and for a placement that puts two ranks
    on one.
    """

    layout: Layout
    network: Network
    startup: Startup = field(default_factory=Startup)
    placement: Sequence[int] | None = None
    all_reduce: str = ALGORITHMS["all-reduce"]
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            self.network.ranks >= self.layout.ranks,
            f"layout {self.layout} needs {self.layout.ranks} ranks, and network "
            f"{self.network.name!r} has {self.network.ranks}; take a larger one",
        )
        if self.placement is None:
            self.placement = range(self.layout.ranks)
        require(
            len(self.placement) == len(set(self.placement)) == self.layout.ranks,
            f"placement {list(self.placement)} must give each of the {self.layout.ranks} ranks of "
            f"layout {self.layout} an endpoint of its own",
        )

    def seconds(self, exchange: GroupExchange) -> float:
        """Return the seconds of one call of an exchange."""
        key = exchange.primitive, exchange.axis, float(exchange.bytes)
        if key not in self._known:
            self._known[key] = self._played(exchange)
        return self._known[key]

    def boundary_seconds(self, size: float, source: int, target: int) -> float:
        """Return the seconds of a message of this size from every rank of a stage to another."""
        key = f"stage {source}", f"stage {target}", size
        if key not in self._known:
            self._known[key] = self._shared(
                [(row[source], row[target], size, 0.0) for row in self._placed("pp")]
            )
        return self._known[key]

    def _placed(self, axis: str) -> list[tuple[int, ...]]:
        """Return the endpoints of the ranks of every group along an axis."""
        assert self.placement is not None  # since __post_init__
        return [tuple(self.placement[rank] for rank in row) for row in groups(self.layout, axis)]

    def _played(self, exchange: GroupExchange) -> float:
        rows = self._placed(exchange.axis)
        if exchange.primitive == "send":  # of the ring of context parallelism
            return self._shared(
                [
                    (one, following, exchange.bytes, 0.0)
                    for row in rows
                    for one, following in zip(row, (*row[1:], row[0]), strict=True)
                ]
            )
        primitive = cast(Primitive, exchange.primitive)
        is_reduced = primitive == "all-reduce"
        algorithm = get_algorithm(self.all_reduce if is_reduced else ALGORITHMS[primitive])
        rows, per_node = self._by_node(rows) if algorithm.knows_nodes else (rows, 1)
        one = get_collective(algorithm, exchange.ranks, per_node=per_node, primitive=primitive)
        return play(
            _beside_each_other(one, len(rows)),
            self.network,
            exchange.message_bytes * len(rows),
            startup=self.startup,
            placement=[place for row in rows for place in row],
        ).seconds

    def _shared(self, flows: list[tuple[int, int, float, float]]) -> float:
        return share(self.network, flows, startup=self.startup).seconds

    def _by_node(self, rows: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], int]:
        """Return the groups sorted by node, and into how large blocks that are whole on a node."""
        nodes = self.network.nodes
        counts = (Counter(nodes[place] for place in row).values() for row in rows)
        return [tuple(sorted(row, key=lambda place: (nodes[place], place))) for row in rows], gcd(
            *chain.from_iterable(counts)
        )


def _beside_each_other(one: Collective, groups: int) -> Collective:
    """Return a collective of several groups at once, each with parts of its own."""
    rows = np.tile(one.transfers, groups)
    group = np.repeat(np.arange(groups), len(one.transfers))
    for name, step in (("source", one.ranks), ("target", one.ranks), ("first", one.parts),
                       ("stop", one.parts)):  # fmt: skip
        rows[name] += (group * step).astype(np.int32)
    return Collective(
        f"{groups} x {one.name}", one.primitive, one.workers * groups, one.parts * groups, rows
    )


@dataclass(frozen=True)
class Wait:
    """An exchange that computation waits for."""

    axis: str
    name: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class LayerWork:
    """One layer of one micro batch, in seconds. A backward pass is that of inputs, then of weights.

    ``inputs`` are seconds of gradients of inputs, for which the core of attention, which has no
    weights, computes twice as much as forwards; ``again`` those of what is computed again,
    ``weights`` those of gradients of weights (0
    where only adapters are trained). ``waits`` are what the passes F and B wait for
    inside of the layer. ``gather`` and ``reduce`` are exchanges of its parameters and gradients
    among replicas, None where there are none.
    """

    name: str
    forward: float
    inputs: float
    again: float
    weights: float
    waits: Mapping[str, tuple[Wait, ...]]
    gather: Wait | None
    reduce: tuple[Wait, ...]

    def seconds(self, kind: str, is_split: bool) -> float:
        """Return the seconds of a pass F, B or W; ``is_split``: B is without W."""
        if kind == "B":
            return self.again + self.inputs + (0.0 if is_split else self.weights)
        return self.forward if kind == "F" else self.weights

    def pass_name(self, one: Pass) -> str:
        """Return the layer, the chunk if it is not the first, and the micro batch."""
        chunk = f" chunk {one.chunk}," if one.chunk else ""
        return f"{self.name}{chunk} {one.micro_batch}" + (" weights" if one.kind == "W" else "")


def works_of(
    stage: PipelineStage,
    model: ModelShape,
    layout: Layout,
    precision: Precision,
    links: LayoutNetwork,
    flops_per_second: float,
) -> list[list[LayerWork]]:
    """Return the layers of every chunk of a stage, in the order of the forward pass."""
    blocks = set(map(id, model.block_layers))
    shares = iter(shares_by_layer(stage, layout))
    trained = iter(shares_by_layer(stage, layout, adapters=bool(layout.lora)))
    samples = layout.micro_batch / layout.cp / layout.tp

    def work_of(layer: LayerShape) -> LayerWork:
        share, _ = next(shares)
        forward = layer.forward_flops * samples / flops_per_second
        core = layer.core_flops * samples / flops_per_second
        how = layout.recomputation if id(layer) in blocks else "none"
        gathered = _among_replicas("parameters", share, layout, precision, links)
        size, seconds = sum(w.bytes for w in gathered), sum(w.seconds for w in gathered)
        return LayerWork(
            layer.name,
            forward,
            forward + core,
            recomputed_flops(layer, how) * samples / flops_per_second,
            0.0 if layout.lora else forward - core,
            _inside(layer, how == "full", layout, precision, links),
            Wait("data", "parameters", size, seconds)
            if layout.zero == 3 and layout.shards > 1
            else None,
            _among_replicas("gradients", next(trained)[0], layout, precision, links),
        )

    return [
        [work for layer, count in chunk for work in [work_of(layer)] * count]
        for chunk in stage.chunks
    ]


def _inside(
    layer: LayerShape, again: bool, layout: Layout, precision: Precision, links: LayoutNetwork
) -> dict[str, tuple[Wait, ...]]:
    """Return what a micro batch waits for in the forward and in the backward pass of a layer.

    What the forward pass exchanges the backward pass exchanges once more, if it is computed again.
    """
    waits: dict[str, list[Wait]] = {"forward": [], "backward": []}
    for one in within_layer(layer, 1, again, layout, precision):
        often = one.times // layout.micro_batches
        if one.ranks > 1 and one.bytes and often:
            wait = wait_for(one, links)
            later = often // 2 if again and one.when == "forward" else 0
            waits["backward"] += [wait] * later
            waits[one.when] += [wait] * (often - later)
    return {"F": tuple(waits["forward"]), "B": tuple(waits["backward"])}


def _among_replicas(
    what: str, share: Share, layout: Layout, precision: Precision, links: LayoutNetwork
) -> tuple[Wait, ...]:
    """Return the waits for one exchange of a layer's parameters, or gradients, of each kind."""
    found = {
        one.axis: one
        for one in among_replicas(share, 1, layout, precision)
        if one.what == what and one.ranks > 1 and one.bytes
    }
    return tuple(wait_for(one, links) for one in found.values())


def wait_for(one: GroupExchange, links: LayoutNetwork) -> Wait:
    """Return what waiting for one call of an exchange takes."""
    return Wait(one.axis, f"{one.primitive} {one.what}", round(one.bytes), links.seconds(one))
