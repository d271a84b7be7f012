"""Generators of networks with the parameters that the literature gives them.

A topology is a frozen value that is written as text, ``fat-tree(4)``, and makes a `Network` of
hosts. `ddlnb.networks.islands` puts GPUs behind any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from ddlnb.choices import parsed
from ddlnb.errors import require, require_whole
from ddlnb.networks.gpu_topologies import InfraGraphFile, RailOptimised
from ddlnb.networks.topology import Builder, Topology


@dataclass(frozen=True)
class Star(Topology):
    """Hosts on one switch."""

    name = "star"
    number: int

    def __post_init__(self) -> None:
        require_whole(number=self.number)

    @property
    def hosts(self) -> int:
        """Return the number of hosts."""
        return self.number

    def join(self, made: Builder) -> None:
        """Add the hosts and the switch."""
        hosts = [made.host(node) for node in range(self.number)]
        switch = made.switch("switch0")
        for host in hosts:
            made.cable(host, switch)


@dataclass(frozen=True)
class TwoTier(Topology):
    """Leaf switches with hosts, all joined to every spine switch.

    The cables between a leaf and the spines together have the bandwidth of its hosts' cables, over
    ``oversubscription``.

    >>> TwoTier(leaves=2, hosts_per_leaf=4, oversubscription=4.0, spines=2).hosts
    8
    """

    name = "two-tier"
    leaves: int
    hosts_per_leaf: int
    oversubscription: float = 1.0
    spines: int = 1

    def __post_init__(self) -> None:
        require_whole(leaves=self.leaves, hosts_per_leaf=self.hosts_per_leaf, spines=self.spines)
        require(
            0 < self.oversubscription < float("inf"),
            f"oversubscription {self.oversubscription} must be positive: bandwidth of the hosts "
            f"of a leaf over that of its cables to the spines",
        )

    @property
    def hosts(self) -> int:
        """Return the number of hosts."""
        return self.leaves * self.hosts_per_leaf

    def join(self, made: Builder) -> None:
        """Add hosts, leaves and spines."""
        positions = list(product(range(self.leaves), range(self.hosts_per_leaf)))
        hosts = [made.host(node, position) for node, position in enumerate(positions)]
        leaves = [made.switch(f"leaf{i}", (i,)) for i in range(self.leaves)]
        spines = [made.switch(f"spine{i}", (i,)) for i in range(self.spines)]
        for host, (leaf, _) in zip(hosts, positions, strict=True):
            made.cable(host, leaves[leaf])
        share = self.hosts_per_leaf / self.oversubscription / self.spines
        for leaf_name, spine in product(leaves, spines):
            made.cable(leaf_name, spine, share)


@dataclass(frozen=True)
class FatTree(Topology):
    """Three layers of switches with p ports: p pods, p^3 / 4 hosts, 5 p^2 / 4 switches.

    Every pod has p / 2 edge and p / 2 aggregation switches, all joined; an edge switch has p / 2
    hosts, and the i-th aggregation switch of a pod joins the i-th group of p / 2 core switches.
    Source: Al-Fares et al. 2008. Raises InputError for an odd number of ports.
    """

    name = "fat-tree"
    ports: int

    def __post_init__(self) -> None:
        require_whole(2, ports=self.ports)
        require(
            self.ports % 2 == 0,
            f"ports {self.ports} of a fat-tree's switches must be even: half of them lead up; "
            f"{self.ports - 1} and {self.ports + 1} fit",
        )

    @property
    def hosts(self) -> int:
        """Return p^3 / 4."""
        return self.ports**3 // 4

    def join(self, made: Builder) -> None:
        """Add hosts, then edge, aggregation and core switches."""
        half = self.ports // 2
        places = list(product(range(self.ports), range(half), range(half)))
        hosts = [made.host(node, place) for node, place in enumerate(places)]
        pods = list(product(range(self.ports), range(half)))
        edges = {at: made.switch(f"edge{at[0]}_{at[1]}", at) for at in pods}
        tops = {at: made.switch(f"aggregation{at[0]}_{at[1]}", at) for at in pods}
        cores = {
            at: made.switch(f"core{at[0]}_{at[1]}", at) for at in product(range(half), range(half))
        }
        for host, (pod, edge, _) in zip(hosts, places, strict=True):
            made.cable(host, edges[pod, edge])
        for pod, top in pods:
            for other in range(half):
                made.cable(edges[pod, other], tops[pod, top])
            for core in range(half):
                made.cable(tops[pod, top], cores[top, core])


@dataclass(frozen=True)
class BCube(Topology):
    """Hosts are numbers of ``levels`` digits in base ``ports``, with a cable for every level.

    The switches of a level join the hosts that differ in that digit only; hosts pass on what is
    for others. (The paper counts levels from 0: its BCube_k has k + 1 of ours.) Source: Guo et al.
    2009.
    """

    name = "bcube"
    routing = "bcube"
    ports: int
    levels: int

    def __post_init__(self) -> None:
        require_whole(2, ports=self.ports)
        require_whole(levels=self.levels)

    @property
    def hosts(self) -> int:
        """Return ports to the power of levels."""
        return int(self.ports**self.levels)

    def join(self, made: Builder) -> None:
        """Add hosts, positions with the digit of the lowest level first, then switches."""
        digits = [
            tuple(node // self.ports**level % self.ports for level in range(self.levels))
            for node in range(self.hosts)
        ]
        hosts = [made.host(node, place) for node, place in enumerate(digits)]
        switches: dict[tuple[int, tuple[int, ...]], str] = {}
        for level in range(self.levels):
            for host, place in zip(hosts, digits, strict=True):
                others = place[:level] + place[level + 1 :]
                if (level, others) not in switches:
                    words = "_".join(map(str, (level, *others)))
                    switches[level, others] = made.switch(f"switch{words}", (level, *others))
                made.cable(host, switches[level, others])


@dataclass(frozen=True)
class Torus(Topology):
    """A grid of hosts whose rows and columns close; hosts pass on what is for others.

    Each cable has the bandwidth of one port; a host has four of them, or six with ``layers``.
    Raises InputError for a side of fewer than three, whose two directions would be one cable.

    >>> len(Torus(4, 8).network(1e9).links)
    128
    """

    name = "torus"
    routing = "dimension order"
    rows: int
    columns: int
    layers: int = 1

    def __post_init__(self) -> None:
        require_whole(3, rows=self.rows, columns=self.columns)
        require_whole(layers=self.layers)
        require(self.layers != 2, "layers 2 of a torus must be 1, or at least 3: rings close")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the lengths of its sides."""
        sides = (self.rows, self.columns, self.layers)
        return sides if self.layers > 1 else sides[:2]

    @property
    def hosts(self) -> int:
        """Return rows times columns times layers."""
        return prod(self.shape)

    def join(self, made: Builder) -> None:
        """Add hosts, and a cable from each to the next one along every side."""
        hosts = {
            place: made.host(node, place)
            for node, place in enumerate(product(*map(range, self.shape)))
        }
        for place, host in hosts.items():
            for side, length in enumerate(self.shape):
                following = (place[side] + 1) % length
                made.cable(host, hosts[(*place[:side], following, *place[side + 1 :])])


@dataclass(frozen=True)
class Dragonfly(Topology):
    """Groups of routers, all joined within a group, and one cable between any two groups.

    A router has ``hosts_per_router`` hosts and ``global_cables`` to other groups; with a routers
    in a group there are a h + 1 groups. A balanced one has a = 2 p = 2 h. Source: Kim et al. 2008.
    """

    name = "dragonfly"
    hosts_per_router: int
    routers: int
    global_cables: int

    def __post_init__(self) -> None:
        require_whole(
            hosts_per_router=self.hosts_per_router,
            routers=self.routers,
            global_cables=self.global_cables,
        )

    @property
    def groups(self) -> int:
        """Return a h + 1."""
        return self.routers * self.global_cables + 1

    @property
    def hosts(self) -> int:
        """Return p a (a h + 1)."""
        return self.hosts_per_router * self.routers * self.groups

    def join(self, made: Builder) -> None:
        """Add hosts, routers, cables within groups, and those between groups."""
        places = list(product(*map(range, (self.groups, self.routers, self.hosts_per_router))))
        hosts = [made.host(node, place) for node, place in enumerate(places)]
        routers = {
            at: made.switch(f"router{at[0]}_{at[1]}", at)
            for at in product(range(self.groups), range(self.routers))
        }
        for host, (group, router, _) in zip(hosts, places, strict=True):
            made.cable(host, routers[group, router])
        for group in range(self.groups):
            for one, other in combinations(range(self.routers), 2):
                made.cable(routers[group, one], routers[group, other])
        for one, other in combinations(range(self.groups), 2):
            # Port k of a group, of a h, leads to the k-th other group after it.
            out, back = other - one - 1, one - other - 1 + self.groups
            made.cable(
                routers[one, out // self.global_cables], routers[other, back // self.global_cables]
            )


TOPOLOGIES: dict[str, type[Topology]] = {
    kind.name: kind
    for kind in (
        *(Star, TwoTier, FatTree, BCube, Torus, RailOptimised, Dragonfly),
        InfraGraphFile,
    )
}


def get_topology(text: str | Topology) -> Topology:
    """Return the topology that a text describes, such as ``torus(4, 8)``.

    Raises UnknownName for the name, InputError for parameters that it cannot have.

    >>> get_topology("two-tier(2, 4, oversubscription=4.0)")
    TwoTier(leaves=2, hosts_per_leaf=4, oversubscription=4.0, spines=1)
    """
    if isinstance(text, Topology):
        return text
    return parsed("topology", text, TOPOLOGIES)
