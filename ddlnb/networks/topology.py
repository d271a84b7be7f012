"""How hosts are joined, by a name and parameters; and what puts such a network together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ddlnb.choices import shown
from ddlnb.errors import require
from ddlnb.networks.islands import with_islands
from ddlnb.networks.network import Device, Link, Network

MOST_HOSTS = 100_000


class Topology(ABC):
    """How hosts are joined. Subclasses are frozen dataclasses with a ``name``.

    >>> from ddlnb.networks.topologies import get_topology
    >>> get_topology("fat-tree(4)").network(bandwidth=1.25e9)
    Network('fat-tree(4)', ranks=16, switches=20, cables=48)
    """

    name: ClassVar[str]
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

    def __str__(self) -> str:
        return shown(self.name, self, brief=True)


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
