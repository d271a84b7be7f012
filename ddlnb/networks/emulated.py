"""A network as the emulated launcher builds it, to be measured and not only computed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from ddlnb.errors import require
from ddlnb.launch.topology import EmulatedTopology, Link, Route, Wire, get_link
from ddlnb.networks.network import Network
from ddlnb.networks.routes import NoRoute, route
from ddlnb.networks.topologies import Topology, get_topology

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
