"""What a network is by its cables alone: distances, cuts, what failures leave, and disjoint rings.

Cables count as they are, whatever they carry. A ring through all hosts sends each host's bytes to
the next one, along links and through switches. A link carries both directions at once (full
duplex), so rings may share a link if they use it in opposite directions. Source: survey of Shi et
al. 2020, section 3.3.2; here the rings themselves are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow, shortest_path

from ddlnb.errors import require, require_whole
from ddlnb.networks.network import Network
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import BCube, FatTree

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """The cables of a network; hosts are numbered as its ranks are, cables as in the network.

    >>> from ddlnb.networks.topologies import BCube
    >>> found = Structure(BCube(4, 2).network(1e9))
    >>> found.diameter, found.weakest_host
    (4, 2)
    """

    network: Network

    @cached_property
    def hosts(self) -> Whole:
        """Return the devices that ranks run on."""
        return np.array(self.network.endpoints)

    @cached_property
    def _entries(self) -> Whole:
        """Return where hosts are entered: a GPU, which passes nothing on, is left elsewhere."""
        count = len(self.network.devices)
        ends = np.arange(count)
        gpus = [i for i, device in enumerate(self.network.devices) if device.kind == "gpu"]
        ends[gpus] = count + np.arange(len(gpus))
        return ends

    @cached_property
    def _size(self) -> int:
        return int(max(self._entries.max() + 1, len(self.network.devices)))

    @cached_property
    def cables(self) -> tuple[tuple[int, int], ...]:
        """Return the devices at both ends of every cable."""
        return tuple((link.start, link.end) for link in self.network.links[::2])

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the neighbours of every device, in order."""
        found: list[list[int]] = [[] for _ in self.network.devices]
        for one, other in self.cables:
            found[one].append(other)
            found[other].append(one)
        return tuple(tuple(sorted(near)) for near in found)

    def degree(self, device: int) -> int:
        """Return the number of cables that a device has."""
        return len(self.neighbours[device])

    @cached_property
    def hops(self) -> Whole:
        """Return the links on a shortest path, hosts x hosts."""
        found = shortest_path(self._matrix(), unweighted=True, indices=self.hosts)
        hops = found[:, self._entries[self.hosts]]
        np.fill_diagonal(hops, 0)
        return np.asarray(hops.astype(np.int64))

    @property
    def diameter(self) -> int:
        """Return the links between the two hosts that are farthest apart."""
        return int(self.hops.max())

    @property
    def mean_hops(self) -> float:
        """Return the links between two different hosts, averaged over all pairs."""
        count = len(self.hosts)
        return float(self.hops.sum() / (count * (count - 1)))

    def cut(self, left: Sequence[int], right: Sequence[int]) -> int:
        """Return the fewest cables whose loss parts all hosts of one side from the other."""
        require(not set(left) & set(right), "a host cannot be on both sides of a cut")
        source, sink = self._size, self._size + 1
        most = 2 * len(self.cables)
        ends = [(source, int(self.hosts[host]), most) for host in left]
        ends += [(int(self._entries[self.hosts[host]]), sink, most) for host in right]
        arcs = [
            (a, int(self._entries[b]), 1)
            for one, other in self.cables
            for a, b in ((one, other), (other, one))
        ]
        start, stop, capacity = np.array(arcs + ends).T
        size = self._size + 2
        matrix = csr_array((capacity.astype(np.int32), (start, stop)), shape=(size, size))
        return int(maximum_flow(matrix, source, sink).flow_value)

    @property
    def bisection(self) -> int:
        """Return the cables between the first and the second half of the hosts.

        The halves are those of the numbering, which in generated networks are whole pods, whole
        sub-cubes or whole rows.
        """
        hosts = range(len(self.hosts))
        return self.cut(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])

    @property
    def weakest_host(self) -> int:
        """Return the fewest failures of cables that part host 0 from another one.

        In generated networks all hosts are alike. As many paths without a common cable lead from
        it to any other host (Menger).
        """
        require(len(self.hosts) > 1, f"{self.network!r} has one host, which nothing cuts off")
        return min(self.cut([0], [other]) for other in range(1, len(self.hosts)))

    def connects_all(self, lost: set[int]) -> bool:
        """Return whether all hosts reach one another without the cables of these numbers."""
        first = shortest_path(self._matrix(lost), unweighted=True, indices=self.hosts[0])
        return bool(np.isfinite(first[self._entries[self.hosts[1:]]]).all())

    def survival(self, failures: int, draws: int = 1000) -> float:
        """Return the share of random sets of this many lost cables that leave all connected."""
        require_whole(0, failures=failures)
        require_whole(draws=draws)
        count = len(self.cables)
        require(failures <= count, f"{failures} failures exceed {count} cables")
        random = np.random.default_rng(0)
        kept = sum(
            self.connects_all(set(random.choice(count, failures, replace=False).tolist()))
            for _ in range(draws)
        )
        return kept / draws

    def _matrix(self, lost: set[int] | frozenset[int] = frozenset()) -> Any:
        kept = [cable for number, cable in enumerate(self.cables) if number not in lost]
        start, stop = np.array(kept, dtype=np.int64).reshape(-1, 2).T
        ones = np.ones(2 * len(kept), dtype=np.int32)
        into = self._entries[np.concatenate([stop, start])]
        both = (np.concatenate([start, stop]), into)
        return csr_array((ones, both), shape=(self._size, self._size))


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
    network = replace(FatTree(ports).network(1.0), routing="shortest")
    hosts = network.endpoints
    ring: list[int] = []
    for host, following in pairwise((*hosts, hosts[0])):
        ring += [network.links[link].start for link in route(network, host, following).links]
    return [tuple(ring)]


def bcube_rings(ports: int) -> list[Ring]:
    """Return two rings through BCube with two levels and an even number of ports: one both ways.

    It enters every host by one link and leaves it by the other, and uses every link once: so it
    joins the ports of each switch in pairs, which is why their number has to be even. Hosts are
    squares of a board, and switches its rows and columns. A walk that turns at every square, from
    row r along column r + s + 1 to row r + 1, has been on two squares of each row when it is back
    in row 0; it goes on with s + 2 until it has been on all. Raises InputError for an odd number.
    """
    require_whole(2, ports=ports)
    require(
        ports % 2 == 0,
        f"ports {ports} cannot be joined in pairs in every switch; take an even number",
    )
    network = BCube(ports, 2).network(1.0)
    ring: list[int] = []
    for s, row in product(range(0, ports, 2), range(ports)):
        column, below = (row + s + 1) % ports, (row + 1) % ports
        ring += [row * ports + column, network.device(f"switch1_{column}")]
        ring += [below * ports + column, network.device(f"switch0_{below}")]
    return [tuple(ring), reversed_ring(tuple(ring))]


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
