"""Topologies that say themselves where GPUs are: rails, and networks of InfraGraph files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from ddlnb.errors import require, require_whole
from ddlnb.networks.infragraph import read_infragraph
from ddlnb.networks.network import Device, Network
from ddlnb.networks.topology import Builder, Topology


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

    Written as ``infragraph('fabric.yaml')``. Raises what `read_infragraph` raises.
    """

    name = "infragraph"
    path: str

    def __post_init__(self) -> None:
        require(Path(self.path).is_file(), f"there is no InfraGraph file {self.path!r}")

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
            f"{gpus_per_node} per node"
        )

    def with_gpus(self, gpus_per_node: int, between: float, inside: float) -> Network:
        """Return the network of the file, whatever the cluster's links carry."""
        return self.network(between)

    def _read(self) -> Network:
        return _read(self.path, Path(self.path).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: str, _: int) -> Network:
    return read_infragraph(path)
