"""Changes of a network as data: a cable that is cut or slower, a node whose cables are slower.

Written as text, ``cut(host0, leaf0)``; applied one after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ddlnb.choices import parsed, shown
from ddlnb.errors import require, require_whole
from ddlnb.networks.network import Link, Network


class Change(ABC):
    """One change of a network. Subclasses are frozen dataclasses with a ``name``."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, network: Network) -> Network:
        """Return the changed network. Raises UnknownName or InputError for what it lacks."""

    def __str__(self) -> str:
        return shown(self.name, self, brief=True)


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
