"""Rings through all hosts of a network that share no link, as an all-reduce wants them.

A ring sends each host's bytes to the next one, along links and through switches. A link carries
both directions at once (full duplex), so rings may share a link if they use it in opposite
directions. Source: survey of Shi et al. 2020, section 3.3.2; here the rings themselves are built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from ddlnb.errors import InputError, require, require_whole
from ddlnb.networks.network import Network
from ddlnb.networks.structure import Structure
from ddlnb.networks.topologies import BCube, FatTree

Ring = tuple[int, ...]  # nodes in the order in which they are passed, switches included; closed


def hosts_on(network: Network, ring: Ring) -> list[int]:
    """Return the hosts of a ring in the order in which they hand bytes on."""
    return [node for node in ring if network.devices[node].kind == "host"]


def reversed_ring(ring: Ring) -> Ring:
    """Return the same ring the other way round."""
    return tuple(reversed(ring))


def directed_links(ring: Ring) -> list[tuple[int, int]]:
    """Return the links that a ring uses, as pairs of start and end."""
    return list(pairwise((*ring, ring[0])))


def check_rings(network: Network, rings: Sequence[Ring]) -> None:
    """Raise InputError unless every ring passes all hosts once, and no two share a direction.

    Within one ring no direction of a link may be used twice either.
    """
    used: set[tuple[int, int]] = set()
    neighbours = Structure(network).neighbours
    for ring in rings:
        passed = sorted(hosts_on(network, ring))
        require(
            passed == list(network.endpoints),
            f"a ring of {network!r} must pass each of its {network.ranks} hosts once",
        )
        for start, stop in directed_links(ring):
            require(stop in neighbours[start], f"{network!r} has no link {start} to {stop}")
            require(
                (start, stop) not in used,
                f"rings of {network!r} share the link from {start} to {stop}",
            )
            used.add((start, stop))


def rings_bound(network: Network) -> int:
    """Return the most rings that fit at once: each leaves every host by a link of its own.

    >>> from ddlnb.networks.topologies import get_topology
    >>> names = ("fat-tree(4)", "bcube(4, 2)", "torus(4, 4)")
    >>> [rings_bound(get_topology(name).network(1e9)) for name in names]
    [1, 2, 4]
    """
    structure = Structure(network)
    return min(structure.degree(host) for host in network.endpoints)


def fat_tree_ring(ports: int) -> list[Ring]:
    """Return one ring through a fat-tree, in the order of its hosts: no second one fits.

    Neighbours under one edge switch meet there, those of one pod at its first aggregation switch,
    pods at the first core switch.
    """
    network = FatTree(ports).network(1.0)
    ring: list[int] = []
    for host in range(network.ranks):
        following = (host + 1) % network.ranks
        ring += _shortest(network, host, following)[:-1]
    return [tuple(ring)]


def _shortest(network: Network, start: int, stop: int) -> list[int]:
    """Return a shortest path, by the switches of the smallest numbers."""
    neighbours = Structure(network).neighbours
    before = {start: start}
    queue = deque([start])
    while stop not in before:
        node = queue.popleft()
        for near in neighbours[node]:
            if near not in before and (near >= network.ranks or near == stop):
                before[near] = node
                queue.append(near)
    path = [stop]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


def bcube_rings(ports: int) -> list[Ring]:
    """Return two rings through BCube with two levels and an even number of ports: one both ways.

    It enters every host by one link and leaves it by the other, and uses every link once. In
    each switch it joins the ports in pairs, which is why their number has to be even: begin with
    any pairs, and while there are several rings, exchange the partners of two pairs of a switch
    that belong to different rings, which joins these. Raises InputError for an odd number.
    """
    require_whole(2, ports=ports)
    if ports % 2:
        raise InputError(
            f"ports {ports} cannot be joined in pairs in every switch; take an even number"
        )
    network = BCube(ports, 2).network(1.0)
    neighbours = Structure(network).neighbours
    partner: dict[tuple[int, int], int] = {}  # (switch, host) -> host
    for switch in range(network.ranks, len(network.devices)):
        near = neighbours[switch]
        for one, other in zip(near[::2], near[1::2], strict=True):
            partner[switch, one], partner[switch, other] = other, one
    while len(cycles := _cycles(network, partner)) > 1:
        _join(network, partner, cycles)
    return [cycles[0], reversed_ring(cycles[0])]


def _cycles(network: Network, partner: dict[tuple[int, int], int]) -> list[Ring]:
    neighbours = Structure(network).neighbours
    left, found = set(range(network.ranks)), []
    while left:
        first = min(left)
        host, switch = first, neighbours[first][0]
        ring: list[int] = []
        while host in left:
            left.remove(host)
            ring += [host, switch]
            host = partner[switch, host]
            low, high = neighbours[host]
            switch = high if switch == low else low
        found.append(tuple(ring))
    return found


def _join(network: Network, partner: dict[tuple[int, int], int], cycles: Sequence[Ring]) -> None:
    neighbours = Structure(network).neighbours
    ring_of = {node: i for i, ring in enumerate(cycles) for node in hosts_on(network, ring)}
    for switch in range(network.ranks, len(network.devices)):
        near = neighbours[switch]
        one = near[0]
        for other in near[1:]:
            if ring_of[one] != ring_of[other]:
                mine, theirs = partner[switch, one], partner[switch, other]
                for left, right in ((one, other), (mine, theirs)):
                    partner[switch, left], partner[switch, right] = right, left
                return
    raise AssertionError("a connected network has a switch with two rings")


def torus_rings(side: int) -> list[Ring]:
    """Return four rings through a square torus: two without a common link, each both ways.

    The first takes side - 1 steps along a row and one down, over and over; the second is its
    mirror image. Together they use every link.
    """
    require_whole(3, side=side)
    across = [(row, (step - row) % side) for row in range(side) for step in range(side)]
    down = [(c, r) for r, c in across]
    found = [tuple(r * side + c for r, c in cells) for cells in (across, down)]
    return [one for ring in found for one in (ring, reversed_ring(ring))]
