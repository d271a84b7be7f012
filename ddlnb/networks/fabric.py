"""The network of a cluster as a graph: what collectives and servers cost on it.

A cluster asks for it where a cost is no formula (`ddlnb.clusters.fabric`). The topology says how
machines are joined; the cluster's effects say what a link carries and what a message waits. Without
a topology the machines are a star, as if one switch joined them all.

A network is also described as the emulated launcher builds it, to be measured as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations

import numpy as np

from ddlnb.clusters.fabric import AUTO, NCCL, NCCL_TREE, Asked, Curve, Links, ServerLoads
from ddlnb.errors import UnknownName, require
from ddlnb.launch.topology import EmulatedTopology, Link, Route, Wire, get_link
from ddlnb.networks.collectives.catalogue import (
    algorithms_for,
    get_algorithm,
    get_collective,
    why_not,
)
from ddlnb.networks.flows import NO_CAP, Startup
from ddlnb.networks.network import Network, changed, get_change
from ddlnb.networks.play import Replay, of_collective
from ddlnb.networks.routes import ROUTINGS, NoRoute, route
from ddlnb.networks.topologies import Star, Topology, get_topology
from ddlnb.plans.transfers import Collective, Primitive
from ddlnb.registry import CACHES

LARGEST, SMALLEST = 2.0**32, 2.0**8  # bytes between which a curve is looked at
STRAIGHT = 5e-3  # relative: a curve that is off by less between two points is a line there
MOST_HALVINGS = 6
STEP, LEAST_STEP = 0.5, 1e-12  # of a cost, to see how seconds grow with it; of none, seconds
# All-reduces of which NCCL chooses by size; on a graph the quickest one is taken.
TREES = ("double-tree", "double-tree(32)")
CHOICES = {NCCL: ("ring", *TREES), NCCL_TREE: TREES}
FEW = 4  # messages that a rank sends at once, in algorithms that ``auto`` takes


UNIT = Links(0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Fabric:
    """How the machines of a cluster are joined: a topology, a routing and changes, as texts.

    Hosts beyond the ``nodes`` are machines for parameter servers. Raises InputError or UnknownName
    for a text that says none, and for a topology with fewer hosts than nodes.
    """

    nodes: int
    gpus_per_node: int
    topology: str = ""
    routing: str = ""
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        made = self.joined
        require(
            made.hosts >= self.nodes,
            f"topology {made} has {made.hosts} hosts for {self.nodes} nodes; take a larger one, "
            f"or fewer nodes",
        )
        refused = made.refuses(self.gpus_per_node)
        require(not refused, refused)
        if self.routing and self.routing not in ROUTINGS:
            raise UnknownName("routing", self.routing, ROUTINGS)
        require(
            self.routing not in ("dimension order", "bcube") or self.routing == made.routing,
            f"routing {self.routing!r} is not for topology {made}; take {made.routing!r} or 'ecmp'",
        )
        for change in self.changes:
            get_change(change)

    @property
    def joined(self) -> Topology:
        """Return the topology; where none is named a star, with as many hosts for servers."""
        return get_topology(self.topology) if self.topology else Star(2 * self.nodes)

    def network(self, links: Links) -> Network:
        """Return the graph with these links: a host's cable carries the bandwidth between nodes.

        On a torus and in BCube each of a host's cables does; on rails each carries its share. The
        links of an InfraGraph file carry what the file says.
        Raises UnknownName or InputError for a change of a cable that is not there.
        """
        return _network(self, links)

    def curve(self, links: Links, asked: Asked, near: Links | None = None) -> Curve:
        """Return the seconds of a collective against bytes, among the workers of the first nodes.

        With ``nccl`` they are those of the quickest of a ring and a double tree in few or many
        parts, with ``nccl-tree`` those of the quicker tree. With ``auto`` they are those of the
        best algorithm for each size, of those in which no rank sends more than a few messages at
        once: a message has a latency here, and takes no time of a core, which is the best case of
        algorithms of many messages. ``near`` are links around which seconds are taken as linear in
        latencies and seconds per byte: many draws are played with these alone. Raises what
        `get_collective` raises.
        """
        return _curve(self, links, asked, near)

    def large_seconds(self, links: Links, asked: Asked, near: Links | None = None) -> float:
        """Return the seconds of the largest message, which bandwidth alone decides."""
        return min(_seconds(self, links, one, near, LARGEST) for one in _meant(asked))

    def require_all_reduce(self, links: Links, name: str) -> None:
        """Raise UnknownName or InputError for an all-reduce, or a cable, that is not there."""
        known = [*algorithms_for("all-reduce"), AUTO, *CHOICES]
        if str(name).partition("(")[0].strip() not in known:
            raise UnknownName("all-reduce", name, known)
        self.network(links)
        if name not in (AUTO, *CHOICES):
            get_algorithm(name)

    @property
    def spare_hosts(self) -> int:
        """Hosts beyond the nodes."""
        return self.joined.hosts - self.nodes

    @property
    def takes_servers(self) -> bool:
        """Whether parameter servers have a place on the topology."""
        return self.joined.takes_servers

    def server_loads(
        self, links: Links, nodes: Sequence[int], servers: Sequence[int]
    ) -> list[ServerLoads]:
        """Return the loads of every server, of machines by number."""
        return server_loads(self.network(links), nodes, servers)


@lru_cache(maxsize=256)
def _of_few_messages(workers: int, per_node: int, primitive: Primitive) -> tuple[str, ...]:
    """Return the algorithms that run among the workers, and in which nobody sends much at once."""
    found = []
    for name in algorithms_for(primitive):
        if why_not(get_algorithm(name), workers, per_node, primitive):
            continue  # needs another number of workers, or the sides of a torus
        made = get_collective(name, workers, per_node=per_node, primitive=primitive)
        if made.servers == 0 and _most_at_once(made) <= FEW:
            found.append(name)
    return tuple(found)


def _meant(asked: Asked) -> list[Asked]:
    """Return the algorithms among which one is taken by size, or the one that is asked for."""
    names = CHOICES.get(asked.name, (asked.name,))
    if asked.name == AUTO:
        names = _of_few_messages(asked.nodes * asked.per_node, asked.per_node, asked.primitive)
    return [asked._replace(name=name) for name in names]


@lru_cache(maxsize=1024)
def _network(fabric: Fabric, links: Links) -> Network:
    network = fabric.joined.with_gpus(
        fabric.gpus_per_node, links.between_bandwidth, links.inside_bandwidth
    )
    network = changed(network, fabric.changes)
    return replace(network, routing=fabric.routing) if fabric.routing else network


@lru_cache(maxsize=4096)
def _curve(fabric: Fabric, links: Links, asked: Asked, near: Links | None) -> Curve:
    if asked.name == AUTO or asked.name in CHOICES:
        return _best([fabric.curve(links, one, near) for one in _meant(asked)])

    def seconds(size: float) -> float:
        return _seconds(fabric, links, asked, near, size)

    if near is not None:
        sizes = fabric.curve(near, asked).sizes
        return Curve(sizes, tuple(map(seconds, sizes)))
    known = {size: seconds(size) for size in (0.0, SMALLEST, LARGEST)}
    _refine(seconds, known, SMALLEST, LARGEST, MOST_HALVINGS)
    points = sorted(known)
    return Curve(tuple(points), tuple(known[size] for size in points))


def _seconds(fabric: Fabric, links: Links, asked: Asked, near: Links | None, size: float) -> float:
    """Return the seconds of a collective, by a tangent where other links are near."""
    if near is None:
        return _collective_on(fabric, asked).seconds(links, size)
    there, slopes = _slopes(fabric, near, asked, size)
    moved = (
        each[int(cost > at)] * (cost - at)
        for each, cost, at in zip(slopes, _costs(links), _costs(near), strict=True)
    )
    return max(there + sum(moved), 0.0)


def _costs(links: Links) -> tuple[float, ...]:
    """Return what seconds grow with: latencies, and seconds per byte."""
    inside, inside_rate, between, between_rate = links
    return inside, 1 / inside_rate, between, 1 / between_rate


@lru_cache(maxsize=4096)
def _slopes(
    fabric: Fabric, links: Links, asked: Asked, size: float
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """Return the seconds with these links, and how they shrink and grow with each of their costs.

    Seconds are those of the longest way through a collective, which may be another one with a
    smaller cost than with a larger one.
    """
    again = _collective_on(fabric, asked)
    there, slopes = again.seconds(links, size), []
    for number, cost in enumerate(_costs(links)):
        if cost == 0 and number % 2:  # a rate without end, of links that nobody has
            slopes.append((0.0, 0.0))
            continue
        each = []
        for step in (-STEP * cost or LEAST_STEP, STEP * cost or LEAST_STEP):
            values = list(links)
            values[number] = 1 / (cost + step) if number % 2 else cost + step
            each.append((again.seconds(Links(*values), size) - there) / step)
        slopes.append((each[0], each[1]))
    return there, tuple(slopes)


class _Again:
    """A collective on a fabric, lowered once and played with other bytes and other links."""

    def __init__(self, fabric: Fabric, collective: Collective):
        anything = fabric.network(UNIT)
        # Lowered twice, as what a message waits is the start-up inside or between nodes.
        inside, between = (
            of_collective(collective, anything, 1.0, startup, NO_CAP, None)
            for startup in (Startup(1.0, 0.0), Startup(0.0, 1.0))
        )
        self._fabric, self._sizes = fabric, inside.sizes
        self._inside, self._between = inside.delay, between.delay
        self._replay = Replay(inside)

    def seconds(self, links: Links, size: float) -> float:
        """Return the seconds of the collective for a message of this many bytes."""
        delay = links.inside_latency * self._inside + links.between_latency * self._between
        bandwidths = self._fabric.network(links).bandwidths
        times = self._replay.times(size * self._sizes, delay, bandwidths)
        return float(times.stop.max(initial=0.0))


@lru_cache(maxsize=256)
def _collective_on(fabric: Fabric, asked: Asked) -> _Again:
    collective = get_collective(
        asked.name, asked.nodes * asked.per_node, per_node=asked.per_node, primitive=asked.primitive
    )
    require(
        collective.servers == 0,
        f"all-reduce {asked.name!r} takes machines for its {collective.servers} servers; choose a "
        f"method with parameter servers instead, or servers beside the workers",
    )
    return _Again(fabric, collective)


CACHES.extend(
    kept.cache_clear for kept in (_of_few_messages, _network, _curve, _slopes, _collective_on)
)


def _refine(
    seconds: Callable[[float], float],
    known: dict[float, float],
    low: float,
    high: float,
    halvings: int,
) -> None:
    """Add points between two sizes until the curve is straight between neighbours."""
    middle = math.sqrt(low * high)
    known[middle] = seconds(middle)
    straight = float(np.interp(middle, [low, high], [known[low], known[high]]))
    if halvings and abs(straight - known[middle]) > STRAIGHT * known[middle]:
        _refine(seconds, known, low, middle, halvings - 1)
        _refine(seconds, known, middle, high, halvings - 1)


def _best(curves: list[Curve]) -> Curve:
    """Return the lower envelope, at the points of all and at sizes between them."""
    sizes = np.unique(np.concatenate([curve.sizes for curve in curves]))
    dense = np.unique(np.concatenate([sizes, np.geomspace(SMALLEST, LARGEST, 97)]))
    seconds = np.stack([curve.at(dense) for curve in curves]).min(axis=0)
    return Curve(tuple(dense.tolist()), tuple(seconds.tolist()))


def _most_at_once(collective: Collective) -> int:
    """Return the most messages that a rank sends in one step."""
    rows = collective.transfers
    each = np.unique(
        np.stack([rows["step"], rows["source"], rows["target"]]).astype(np.int64), axis=1
    )
    _, counts = np.unique(each[:2], axis=1, return_counts=True)
    return int(counts.max(initial=0))


def server_loads(
    network: Network, nodes: Sequence[int], servers: Sequence[int]
) -> list[ServerLoads]:
    """Return the loads of every server, of machines by number; a machine sends nothing to itself.

    Raises NoRoute when two have lost each
    other.
    """
    hosts = {
        device.node: number
        for number, device in enumerate(network.devices)
        if device.kind == "host" and device.node is not None
    }
    require(
        bool(hosts),
        f"network {network.name!r} has no hosts for parameter servers; choose an all-to-all "
        f"method, or another topology",
    )
    start = np.array([link.start for link in network.links])
    end = np.array([link.end for link in network.links])
    found = []
    for server in servers:
        load, uplink = np.zeros(len(network.links)), np.zeros(len(network.links))
        for node in nodes:
            if node == server:
                continue
            path = route(network, hosts[node], hosts[server])
            here = list(path.links)
            load[here] += path.shares
            leaves = start[here] == hosts[node]
            uplink[here] += leaves * np.array(path.shares)
        at_server = end == hosts[server]
        seconds = load / network.bandwidths
        shared = ~at_server & (load > uplink + 1e-12)  # carries what is of others too
        between = np.where(shared, seconds, 0.0)
        busiest = int(between.argmax())
        found.append(
            ServerLoads(
                float((uplink / network.bandwidths).max()),
                float(seconds[at_server].max()),
                float(between[busiest]),
                busiest if between[busiest] > 0 else -1,
            )
        )
    return found


MOST_WAYS = 64  # of one pair of endpoints, when the routing splits flows


def emulated_network(network: Network, jitter: float = 0.0, loss: float = 0.0) -> EmulatedTopology:
    """Return what to emulate: the endpoints as hosts, every link as a wire, and all routes.

    Endpoints come in the order of ranks. Where the routing splits flows over several paths, a
    connection takes one of them, as in networks whose switches hash. Endpoints that have lost each
    other have no route. ``jitter`` (seconds) and ``loss`` (a share) are those of every wire.

    Raises InputError when two endpoints have more than `MOST_WAYS` routes.

    >>> emulated_network(get_topology("two-tier(2, 2, 2)").network(12.5e6, 1e-3)).hosts
    ('host0', 'host1', 'host2', 'host3')
    """
    names = [device.name for device in network.devices]
    wires = tuple(
        Wire(
            names[link.start],
            names[link.end],
            Link(link.bandwidth, link.latency, jitter, loss),
        )
        for link in network.links
    )
    routes = {
        pair: tuple(_ways(network, *(network.endpoints[rank] for rank in pair)))
        for pair in permutations(range(network.ranks), 2)
    }
    hosts = tuple(names[endpoint] for endpoint in network.endpoints)
    return EmulatedTopology(network.name, hosts, wires, routes)


def emulated_topology(topology: str | Topology, link: str | Link) -> EmulatedTopology:
    """Return a topology all of whose cables have this link, to be emulated.

    The latency of the link is that of one cable. Raises InputError for a text of either that makes
    no sense.

    >>> emulated_topology("torus(3, 3)", "100Mb/s 1ms").name
    'torus(3, 3) of 100Mb/s 1000us'
    """
    each = get_link(link)
    made = get_topology(topology)
    found = emulated_network(made.network(each.bandwidth, each.latency), each.jitter, each.loss)
    return EmulatedTopology(f"{made} of {each}", found.hosts, found.wires, found.routes)


def emulated_of(text: str) -> EmulatedTopology:
    """Return what a text such as ``two-tier(2, 2, 2) of 100Mb/s 1ms`` describes.

    Raises InputError for a topology or a link that makes no sense.
    """
    topology, _, link = text.partition(" of ")
    return emulated_topology(topology, link)


def _ways(network: Network, source: int, target: int) -> Iterator[Route]:
    """Yield all paths that the route between two devices consists of."""
    try:
        links = route(network, source, target).links
    except NoRoute:
        return
    leaving: dict[int, list[int]] = {}
    for link in links:
        leaving.setdefault(network.links[link].start, []).append(link)
    paths: list[tuple[Route, int]] = [((), source)]
    count = 0
    while paths:
        path, here = paths.pop()
        if here == target:
            count += 1
            require(
                count <= MOST_WAYS,
                f"network {network.name!r} has more than {MOST_WAYS} routes from "
                f"{network.devices[source].name} to {network.devices[target].name}, too many to "
                f"emulate; choose another routing, such as 'ecmp hash'",
            )
            yield path
            continue
        paths += [((*path, link), network.links[link].end) for link in leaving[here][::-1]]
