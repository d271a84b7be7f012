"""A network as a graph: devices, and directed links with bandwidth and latency.

Everything else in this room asks two things of it: which devices the ranks run on, and what a link
can carry. Generators make networks, routes lead through them, flows share their links. Changes are
data as well: a cable that is cut or slower, a node whose cables are slower, written as text such as
``cut(host0, leaf0)`` and applied one after the other.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import look_up, require, require_whole
from ddlnb.registry import Choice, parsed

Kind = Literal["gpu", "nic", "host", "switch"]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """A GPU, a NIC, a host (a machine with one GPU, or the machine around its GPUs) or a switch.

    ``node`` is the number of the machine that it is in, None for a switch outside of machines.
    ``position`` are its coordinates where the network has any: row and column on a torus, digits
    in BCube, pod and index in a fat-tree.
    """

    name: str
    kind: Kind
    node: int | None = None
    position: tuple[int, ...] = ()


@dataclass(frozen=True)
class Link:
    """One direction of a cable, from a device to another one, by their numbers.

    ``bandwidth`` is in bytes per second, ``latency`` the seconds that a byte takes along it.
    """

    start: int
    end: int
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        require(
            self.bandwidth > 0,
            f"bandwidth {self.bandwidth} of a link must be positive bytes per second; "
            f"cut the link instead",
        )
        require(
            0 <= self.latency < math.inf,
            f"latency {self.latency} of a link must be finite seconds, not negative",
        )


@dataclass(frozen=True, eq=False)
class Network:
    """Devices, directed links, and the rule by which routes are chosen.

    Links are listed one direction after the other: links 2i and 2i + 1 are the two directions of
    cable i. ``routing`` is a name of `ddlnb.networks.routes.ROUTINGS`.

    Raises InputError for a link to a device that is not there, or a cable whose second direction
    is missing.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    routing: str = "ecmp"
    about: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        require(len(set(names)) == len(names), f"network {self.name!r} names a device twice")
        for link in self.links:
            require(
                0 <= link.start < len(names) and 0 <= link.end < len(names),
                f"network {self.name!r} has a link from {link.start} to {link.end}, and "
                f"{len(names)} devices",
            )
        for one, other in zip(self.links[::2], self.links[1::2], strict=False):
            require(
                (one.start, one.end) == (other.end, other.start),
                f"network {self.name!r}: links come in pairs, one for each direction of a cable",
            )
        require(len(self.links) % 2 == 0, f"network {self.name!r} has a cable of one direction")

    @cached_property
    def endpoints(self) -> tuple[int, ...]:
        """Return the devices that ranks run on, in the order of ranks: GPUs, or else hosts."""
        kind = "gpu" if any(device.kind == "gpu" for device in self.devices) else "host"
        return tuple(i for i, device in enumerate(self.devices) if device.kind == kind)

    @property
    def ranks(self) -> int:
        """Return the number of endpoints."""
        return len(self.endpoints)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Return the machine of every rank, in the order of ranks."""
        found = (self.devices[endpoint].node for endpoint in self.endpoints)
        return tuple(-1 if node is None else node for node in found)

    @property
    def cables(self) -> int:
        """Return the number of cables, inside machines too."""
        return len(self.links) // 2

    @property
    def switches(self) -> int:
        """Return the number of switches outside of machines."""
        return sum(device.kind == "switch" and device.node is None for device in self.devices)

    @cached_property
    def bandwidths(self) -> Numbers:
        """Return the bytes per second of every link."""
        return np.array([link.bandwidth for link in self.links])

    @cached_property
    def link_between(self) -> Mapping[tuple[int, int], int]:
        """Return the number of the link from one device to another, by their numbers.

        Parallel cables are refused: give one cable the bandwidth of both.
        """
        found: dict[tuple[int, int], int] = {}
        for number, link in enumerate(self.links):
            ends = (link.start, link.end)
            require(
                ends not in found,
                f"network {self.name!r} has two links from {self.devices[link.start].name} to "
                f"{self.devices[link.end].name}; give one the bandwidth of both",
            )
            found[ends] = number
        return found

    @cached_property
    def _number(self) -> Mapping[str, int]:
        return {device.name: number for number, device in enumerate(self.devices)}

    def device(self, name: str) -> int:
        """Return the number of the device of that name. Raises UnknownName."""
        return look_up("device", name, self._number)

    def cable(self, one: str, other: str) -> int:
        """Return the number of the cable between two devices, by their names.

        Raises UnknownName for a device, InputError when no cable joins them.
        """
        start, end = self.device(one), self.device(other)
        near = [self.devices[b].name for a, b in self.link_between if a == start]
        require(
            (start, end) in self.link_between,
            f"no cable joins {one!r} and {other!r} in network {self.name!r}; {one!r} is joined to "
            + ", ".join(near),
        )
        return self.link_between[start, end] // 2

    def with_links(self, links: tuple[Link, ...]) -> Network:
        """Return the same devices with other links."""
        return replace(self, links=links)

    def __repr__(self) -> str:
        counts = f"ranks={self.ranks}, switches={self.switches}, cables={self.cables}"
        return f"Network({self.name!r}, {counts})"


class Change(Choice):
    """One change of a network. Subclasses are frozen dataclasses with a ``name``."""

    brief = True

    @abstractmethod
    def apply(self, network: Network) -> Network:
        """Return the changed network. Raises UnknownName or InputError for what it lacks."""


@dataclass(frozen=True)
class Cut(Change):
    """The cable between two devices carries nothing any more, in both directions.

    >>> from ddlnb.networks.topologies import TwoTier
    >>> Cut("leaf0", "spine0").apply(TwoTier(2, 2, spines=2).network(1e9)).cables
    7
    """

    name = "cut"
    one: str
    other: str

    def apply(self, network: Network) -> Network:
        """Return the network without the cable."""
        cable = network.cable(self.one, self.other)
        return network.with_links(
            tuple(link for number, link in enumerate(network.links) if number // 2 != cable)
        )


@dataclass(frozen=True)
class Scale(Change):
    """The cable between two devices has ``factor`` times its bandwidth.

    >>> from ddlnb.networks.topologies import Star
    >>> Scale("host0", "switch0", 0.5).apply(Star(2).network(1e9)).bandwidths.tolist()
    [500000000.0, 500000000.0, 1000000000.0, 1000000000.0]
    """

    name = "scale"
    one: str
    other: str
    factor: float

    def __post_init__(self) -> None:
        _require_factor(self.factor)

    def apply(self, network: Network) -> Network:
        """Return the network with the cable's other bandwidth."""
        cable = network.cable(self.one, self.other)
        return _scaled(network, {cable}, self.factor)


@dataclass(frozen=True)
class ScaleNode(Change):
    """All cables of a machine to others have ``factor`` times their bandwidth."""

    name = "scale-node"
    node: int
    factor: float

    def __post_init__(self) -> None:
        require_whole(0, node=self.node)
        _require_factor(self.factor)

    def apply(self, network: Network) -> Network:
        """Return the network with the node's other bandwidths."""
        mine = {i for i, device in enumerate(network.devices) if device.node == self.node}
        count = len({device.node for device in network.devices} - {None})
        require(bool(mine), f"node {self.node} is not among the {count} of {network.name!r}")
        cables = {
            number // 2
            for number, link in enumerate(network.links)
            if (link.start in mine) != (link.end in mine)
        }
        return _scaled(network, cables, self.factor)


CHANGES: dict[str, type[Change]] = {kind.name: kind for kind in (Cut, Scale, ScaleNode)}


def get_change(text: str | Change) -> Change:
    """Return the change that a text describes. Raises UnknownName and InputError.

    >>> get_change("scale(host0, switch0, 0.5)")
    Scale(one='host0', other='switch0', factor=0.5)
    """
    return text if isinstance(text, Change) else parsed("change", text, CHANGES)


def changed(network: Network, changes: Iterable[str | Change]) -> Network:
    """Return the network after these changes, applied in order."""
    for change in changes:
        made = get_change(change)
        network = replace(made.apply(network), name=f"{network.name}, {made}")
    return network


def _scaled(network: Network, cables: set[int], factor: float) -> Network:
    def one(number: int, link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth * factor) if number // 2 in cables else link

    return network.with_links(tuple(one(*numbered) for numbered in enumerate(network.links)))


def _require_factor(factor: float) -> None:
    require(
        0 < factor < float("inf"),
        f"factor {factor} must be positive; a cable that carries nothing is cut(one, other)",
    )
