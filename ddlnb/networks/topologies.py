"""How hosts are joined: generators of networks with the parameters that the literature gives them.

A topology is a frozen value that is written as text, ``fat-tree(4)``, and makes a `Network` of
hosts. `with_islands` puts GPUs behind any of them, an island of PCIe or NVLink in every machine;
rails and InfraGraph files say themselves where GPUs are.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import ClassVar

from ddlnb.errors import require, require_whole
from ddlnb.networks.infragraph import read_infragraph
from ddlnb.networks.network import Device, Link, Network
from ddlnb.registry import CACHES, Choice, parsed


def with_islands(
    network: Network, gpus_per_node: int, bandwidth: float, latency: float = 0.0
) -> Network:
    """Return the network with this many GPUs on each host, which is the switch between them.

    ``bandwidth`` is that of a GPU's link in each direction, in bytes per second. Ranks go node by
    node. With one GPU per node the host is its GPU, and the network is returned as it is.
    Raises InputError for a network that has GPUs already.

    >>> from ddlnb.networks.topologies import Star
    >>> with_islands(Star(2).network(1.25e9), 4, bandwidth=12e9)
    Network('star(2)', ranks=8, switches=1, cables=10)
    """
    require_whole(gpus_per_node=gpus_per_node)
    hosts = [i for i, device in enumerate(network.devices) if device.kind == "host"]
    require(
        not any(device.kind == "gpu" for device in network.devices),
        f"network {network.name!r} has GPUs already; leave its islands as they are",
    )
    if gpus_per_node == 1:
        return network
    devices, links = list(network.devices), list(network.links)
    for host in hosts:
        node = network.devices[host].node
        for gpu in range(gpus_per_node):
            place = (*network.devices[host].position, gpu)
            devices.append(Device(f"gpu{node}_{gpu}", "gpu", node, place))
            one = len(devices) - 1
            links.append(Link(one, host, bandwidth, latency))
            links.append(Link(host, one, bandwidth, latency))
    return replace(network, devices=tuple(devices), links=tuple(links))


MOST_HOSTS = 100_000


class Topology(Choice):
    """How hosts are joined. Subclasses are frozen dataclasses with a ``name``.

    >>> from ddlnb.networks.topologies import get_topology
    >>> get_topology("fat-tree(4)").network(bandwidth=1.25e9)
    Network('fat-tree(4)', ranks=16, switches=20, cables=48)
    """

    brief = True
    routing: ClassVar[str] = "ecmp"
    takes_servers: ClassVar[bool] = True  # whether hosts can hold parameter servers

    @property
    @abstractmethod
    def hosts(self) -> int:
        """Return the number of hosts."""

    @abstractmethod
    def join(self, made: Builder) -> None:
        """Add devices and cables, the hosts first, in the order of ranks."""

    def network(self, bandwidth: float, latency: float = 0.0) -> Network:
        """Return the network; a cable has these bytes per second each way, and these seconds.

        Raises InputError for more hosts than are drawn up in seconds.
        """
        require(
            self.hosts <= MOST_HOSTS,
            f"topology {self} has {self.hosts:,} hosts, and more than {MOST_HOSTS:,} take minutes "
            f"and gigabytes; take a smaller one",
        )
        made = Builder(bandwidth, latency)
        self.join(made)
        return Network(str(self), tuple(made.devices), tuple(made.links), self.routing)

    def refuses(self, gpus_per_node: int) -> str:
        """Return why nodes of so many GPUs cannot be joined like this, or nothing."""
        return ""

    def with_gpus(self, gpus_per_node: int, between: float, inside: float) -> Network:
        """Return the network of nodes with GPUs: bytes per second of a node, and inside it."""
        return with_islands(self.network(between), gpus_per_node, inside)


class Builder:
    """A network in the making: devices by name, cables by the names of their ends."""

    def __init__(self, bandwidth: float, latency: float):
        self.bandwidth, self.latency = bandwidth, latency
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self._number: dict[str, int] = {}

    def host(self, node: int, position: tuple[int, ...] = ()) -> str:
        """Add the host of a machine, and return its name."""
        return self.add(Device(f"host{node}", "host", node, position))

    def switch(self, name: str, position: tuple[int, ...] = ()) -> str:
        """Add a switch, and return its name."""
        return self.add(Device(name, "switch", None, position))

    def add(self, device: Device) -> str:
        """Add a device, and return its name."""
        self._number[device.name] = len(self.devices)
        self.devices.append(device)
        return device.name

    def cable(self, one: str, other: str, times: float = 1.0) -> None:
        """Join two devices, with this multiple of the bandwidth of a cable."""
        start, end = self._number[one], self._number[other]
        bandwidth = self.bandwidth * times
        self.links.append(Link(start, end, bandwidth, self.latency))
        self.links.append(Link(end, start, bandwidth, self.latency))


@dataclass(frozen=True)
class RailOptimised(Topology):
    """Nodes with a NIC for every GPU: NIC i of all nodes is on rail switch i.

    GPUs of a node are joined by a switch inside. Rail switches are joined by ``spines``, with the
    bandwidth of their nodes' cables over ``oversubscription``. Here the bandwidth of a cable is
    that of one NIC, and ``inside`` the multiple of it that a GPU has to its neighbours.
    """

    name = "rail-optimised"
    takes_servers = False
    nodes: int
    rails: int
    spines: int = 1
    oversubscription: float = 1.0
    inside: float = 8.0

    def __post_init__(self) -> None:
        require_whole(nodes=self.nodes, rails=self.rails, spines=self.spines)
        for what in ("oversubscription", "inside"):
            value = getattr(self, what)
            require(value > 0, f"{what} {value} must be positive")

    @property
    def hosts(self) -> int:
        """Return the number of nodes."""
        return self.nodes

    def join(self, made: Builder) -> None:
        """Add GPUs, their NICs and switches inside, then rails and spines."""
        places = list(product(range(self.nodes), range(self.rails)))
        for node, rail in places:
            made.add(Device(f"gpu{node}_{rail}", "gpu", node, (node, rail)))
        for node, rail in places:
            made.add(Device(f"nic{node}_{rail}", "nic", node, (node, rail)))
        for node in range(self.nodes):
            made.add(Device(f"inside{node}", "switch", node, (node,)))
        rails = [made.switch(f"rail{rail}", (rail,)) for rail in range(self.rails)]
        spines = [made.switch(f"spine{i}", (i,)) for i in range(self.spines)]
        for node, rail in places:
            made.cable(f"gpu{node}_{rail}", f"inside{node}", self.inside)
            made.cable(f"gpu{node}_{rail}", f"nic{node}_{rail}")
            made.cable(f"nic{node}_{rail}", rails[rail])
        for rail_name, spine in product(rails, spines):
            made.cable(rail_name, spine, self.nodes / self.oversubscription / self.spines)

    def refuses(self, gpus_per_node: int) -> str:
        """Return why, unless each GPU has a rail of its own."""
        if gpus_per_node == self.rails:
            return ""
        return (
            f"topology {self} has {self.rails} rails for {gpus_per_node} GPUs per node; each GPU "
            f"is on a rail of its own"
        )

    def with_gpus(self, gpus_per_node: int, between: float, inside: float) -> Network:
        """Return the network with a share of the node's bandwidth on every rail."""
        share = between / self.rails
        made = replace(self, inside=inside / share).network(share)
        return replace(made, name=str(self))  # the cluster says what links inside carry


@dataclass(frozen=True)
class InfraGraphFile(Topology):
    """The network of an InfraGraph file, whose links carry what the file says.

    Written as ``infragraph('fabric.yaml')``; what is kept of its name is emptied when the file was
    written again, or is another one. Raises what `read_infragraph` raises.
    """

    name = "infragraph"
    path: str

    def __post_init__(self) -> None:
        require(Path(self.path).is_file(), f"there is no InfraGraph file {self.path!r}")
        if _seen.setdefault(self.path, self._file) != self._file:
            _seen[self.path] = self._file
            for empty in CACHES:
                empty()

    @property
    def hosts(self) -> int:
        """Return the number of machines that ranks run on."""
        return len(set(self._read().nodes))

    def join(self, made: Builder) -> None:
        """Add the devices and links of the file."""
        network = self._read()
        made.devices.extend(network.devices)
        made.links.extend(network.links)

    def refuses(self, gpus_per_node: int) -> str:
        """Return why, unless the machines of the file have as many GPUs."""
        ranks = self._read().ranks
        if ranks == self.hosts * gpus_per_node:
            return ""
        return (
            f"topology {self} has {ranks} GPUs on {self.hosts} machines, and the cluster "
            f"{gpus_per_node} per node; write a file of such hosts"
        )

    def with_gpus(self, gpus_per_node: int, between: float, inside: float) -> Network:
        """Return the network of the file, whatever the cluster's links carry."""
        return self.network(between)

    @property
    def _file(self) -> File:
        full = Path(self.path).resolve()
        state = full.stat()
        return str(full), state.st_mtime_ns, state.st_size

    def _read(self) -> Network:
        return _read(self._file)


File = tuple[str, int, int]  # its path, when it was written, its bytes
_seen: dict[str, File] = {}  # by the path as it is written


@lru_cache(maxsize=8)
def _read(file: File) -> Network:
    return read_infragraph(file[0])


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
    return text if isinstance(text, Topology) else parsed("topology", text, TOPOLOGIES)
