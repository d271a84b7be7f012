"""Networks of the survey's section 3.3.2 as graphs: servers, switches and the links between them.

Servers come first. A link is a cable: it carries bytes in both directions at once. Source: survey
of Shi et al. 2020, section 3.3.2; fat-tree as in Al-Fares et al. 2008, BCube as in Guo et al. 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_flow, shortest_path

from ddlnb.errors import InputError, UnknownName, require, require_whole

Link = tuple[int, int]


@dataclass(frozen=True)
class NetworkGraph:
    """Nodes 0 to ``servers`` - 1 are servers, the others switches; a link is a pair of nodes.

    >>> bcube(4, 2)
    NetworkGraph('BCube(4, 2)', servers=16, switches=8, links=32)
    """

    name: str
    servers: int
    switches: int
    links: tuple[Link, ...]

    @property
    def nodes(self) -> int:
        """Return the number of servers and switches together."""
        return self.servers + self.switches

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the neighbours of every node, in order."""
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for one, other in self.links:
            found[one].append(other)
            found[other].append(one)
        return tuple(tuple(sorted(near)) for near in found)

    def degree(self, node: int) -> int:
        """Return the number of links that a node has."""
        return len(self.neighbours[node])

    @cached_property
    def hops(self) -> np.ndarray:
        """Return the links on a shortest path, servers x servers."""
        found = shortest_path(self._matrix(), unweighted=True, indices=range(self.servers))
        return found[:, : self.servers].astype(int)

    @property
    def diameter(self) -> int:
        """Return the links between the two servers that are farthest apart."""
        return int(self.hops.max())

    @property
    def mean_hops(self) -> float:
        """Return the links between two different servers, averaged over all pairs."""
        return float(self.hops.sum() / (self.servers * (self.servers - 1)))

    def cut(self, left: list[int], right: list[int]) -> int:
        """Return the fewest links whose loss parts all servers of one side from the other."""
        require(not set(left) & set(right), "a server cannot be on both sides of a cut")
        source, sink = self.nodes, self.nodes + 1
        most = 2 * len(self.links)
        ends = [(source, node, most) for node in left] + [(node, sink, most) for node in right]
        arcs = [(a, b, 1) for one, other in self.links for a, b in ((one, other), (other, one))]
        start, stop, capacity = np.array(arcs + ends).T
        size = self.nodes + 2
        matrix = csr_array((capacity.astype(np.int32), (start, stop)), shape=(size, size))
        return int(maximum_flow(matrix, source, sink).flow_value)

    @property
    def halves_cut(self) -> int:
        """Return the links between the first and the second half of the servers: the bisection.

        The halves are those of the numbering, which in all graphs here are whole pods, whole
        sub-cubes or whole rows.
        """
        servers = list(range(self.servers))
        return self.cut(servers[: self.servers // 2], servers[self.servers // 2 :])

    @property
    def weakest_server(self) -> int:
        """Return the fewest link failures that part server 0, which is like all others, from one.

        As many paths without a common link lead from it to any other server (Menger).
        """
        first = 0
        return min(self.cut([first], [other]) for other in range(1, self.servers))

    def connects_all(self, lost: set[int]) -> bool:
        """Return whether all servers reach one another without the links of these numbers."""
        _, labels = connected_components(self._matrix(lost), directed=False)
        return bool((labels[: self.servers] == labels[0]).all())

    def survival(self, failures: int, draws: int = 1000) -> float:
        """Return the share of random sets of this many lost links that leave all connected."""
        require_whole(0, failures=failures)
        require_whole(draws=draws)
        require(failures <= len(self.links), f"{failures} failures exceed {len(self.links)} links")
        random = np.random.default_rng(0)
        kept = sum(
            self.connects_all(set(random.choice(len(self.links), failures, replace=False).tolist()))
            for _ in range(draws)
        )
        return kept / draws

    def _matrix(self, lost: set[int] | frozenset[int] = frozenset()) -> csr_array:
        kept = [link for number, link in enumerate(self.links) if number not in lost]
        start, stop = np.array(kept).reshape(-1, 2).T
        ones = np.ones(2 * len(kept), dtype=np.int32)
        both = (np.concatenate([start, stop]), np.concatenate([stop, start]))
        return csr_array((ones, both), shape=(self.nodes, self.nodes))

    def __repr__(self) -> str:
        counts = f"servers={self.servers}, switches={self.switches}, links={len(self.links)}"
        return f"NetworkGraph({self.name!r}, {counts})"


def star(servers: int) -> NetworkGraph:
    """Return servers that are all on one switch."""
    require_whole(servers=servers)
    links = tuple((server, servers) for server in range(servers))
    return NetworkGraph(f"star({servers})", servers, 1, links)


def fat_tree(ports: int) -> NetworkGraph:
    """Return three layers of switches with p ports: p pods, p^3 / 4 servers, 5 p^2 / 4 switches.

    Every pod has p / 2 edge and p / 2 aggregation switches, all joined; an edge switch has p / 2
    servers, and the i-th aggregation switch of a pod joins the i-th group of p / 2 core switches.
    Raises InputError for an odd number of ports.

    >>> fat_tree(4).servers, fat_tree(4).switches, len(fat_tree(4).links)
    (16, 20, 48)
    """
    require_whole(2, ports=ports)
    require(ports % 2 == 0, f"ports {ports} of a fat-tree's switches must be even")
    half = ports // 2
    servers = ports * half * half
    edge, aggregation, core = servers, servers + ports * half, servers + 2 * ports * half
    links = [(server, edge + server // half) for server in range(servers)]
    for pod in range(ports):
        for i in range(half):
            up = aggregation + pod * half + i
            links += [(edge + pod * half + j, up) for j in range(half)]
            links += [(up, core + i * half + j) for j in range(half)]
    return NetworkGraph(f"fat-tree({ports})", servers, core + half * half - servers, tuple(links))


def bcube(ports: int, levels: int) -> NetworkGraph:
    """Return BCube: servers are numbers of L ``levels`` digits in base ``ports``, with L links.

    The switches of a level join the servers that differ in that digit only. (Papers count levels
    from 0: their BCube_k has k + 1 of ours.)
    """
    require_whole(2, ports=ports)
    require_whole(levels=levels)
    servers, per_level = ports**levels, ports ** (levels - 1)
    links = []
    for level in range(levels):
        below = ports**level
        for server in range(servers):
            others = server // (below * ports) * below + server % below  # without that digit
            links.append((server, servers + level * per_level + others))
    return NetworkGraph(f"BCube({ports}, {levels})", servers, levels * per_level, tuple(links))


def torus(rows: int, columns: int) -> NetworkGraph:
    """Return a grid of servers whose rows and columns close: no switches, four links per server.

    Raises InputError for a side of fewer than three, whose two directions would be one.
    """
    require_whole(3, rows=rows, columns=columns)
    links = []
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            links.append((here, row * columns + (column + 1) % columns))
            links.append((here, (row + 1) % rows * columns + column))
    return NetworkGraph(f"torus({rows} x {columns})", rows * columns, 0, tuple(links))


def _fat_tree_of(servers: int) -> NetworkGraph:
    ports = round((4 * servers) ** (1 / 3))
    _require_size(
        "fat-tree", servers, ports**3 == 4 * servers and ports % 2 == 0, "p^3 / 4, p even"
    )
    return fat_tree(ports)


def _bcube_of(servers: int) -> NetworkGraph:
    _require_size("BCube of two levels", servers, isqrt(servers) ** 2 == servers, "a square")
    return bcube(isqrt(servers), 2)


def _torus_of(servers: int) -> NetworkGraph:
    _require_size("square torus", servers, isqrt(servers) ** 2 == servers, "a square")
    return torus(isqrt(servers), isqrt(servers))


def _require_size(what: str, servers: int, fits: bool, rule: str) -> None:
    if not fits:
        raise InputError(f"servers {servers} of a {what} must be {rule}; 16 and 1024 fit all")


NETWORK_GRAPHS: dict[str, Callable[[int], NetworkGraph]] = {
    "star": star,
    "fat-tree": _fat_tree_of,
    "BCube": _bcube_of,
    "torus": _torus_of,
}


def make_network(name: str, servers: int) -> NetworkGraph:
    """Return the network of that name and size; BCube has two levels, the torus is square.

    Raises UnknownName, and InputError for a size that the network does not have.
    """
    if name not in NETWORK_GRAPHS:
        raise UnknownName("network", name, NETWORK_GRAPHS)
    require_whole(servers=servers)
    return NETWORK_GRAPHS[name](servers)
