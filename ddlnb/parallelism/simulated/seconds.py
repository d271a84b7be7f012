"""How long an exchange takes on a network: all groups of its axis at once, played as flows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from ddlnb.errors import InputError
from ddlnb.networks.channels import Startup
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.network import Network
from ddlnb.networks.play import play, share
from ddlnb.networks.transfers import Collective, Operation
from ddlnb.parallelism.groups import groups
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.volumes import Exchange

ALGORITHMS = {
    "all-reduce": "ring",
    "reduce-scatter": "ring",
    "all-gather": "ring",
    "all-to-all": "pairwise",
}


@dataclass
class Links:
    """The network that a layout's ranks run on, rank r on its r-th endpoint, and its start-up.

    Every exchange is played with all groups of its axis, which share the links; what other axes
    exchange at the same time is left out. Equal exchanges are played once. Raises InputError for a
    network with fewer endpoints than the layout has ranks.
    """

    layout: Layout
    network: Network
    startup: Startup = field(default_factory=Startup)
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.network.ranks < self.layout.ranks:
            raise InputError(
                f"layout {self.layout} needs {self.layout.ranks} ranks, and network "
                f"{self.network.name!r} has {self.network.ranks}; take a larger one"
            )

    def seconds(self, exchange: Exchange) -> float:
        """Return the seconds of one operation of an exchange."""
        key = exchange.operation, exchange.axis, float(exchange.bytes)
        if key not in self._known:
            self._known[key] = self._played(exchange)
        return self._known[key]

    def boundary_seconds(self, size: float, source: int, target: int) -> float:
        """Return the seconds of a message of this size from every rank of a stage to another."""
        key = f"stage {source}", f"stage {target}", size
        if key not in self._known:
            rows = groups(self.layout, "pp")
            flows = [(row[source], row[target], size, 0.0) for row in rows]
            self._known[key] = share(self.network, flows, startup=self.startup).seconds
        return self._known[key]

    def _played(self, exchange: Exchange) -> float:
        rows = groups(self.layout, exchange.axis)
        if exchange.operation == "send":  # of the ring of context parallelism
            flows = [
                (one, row[(at + 1) % len(row)], exchange.bytes, 0.0)
                for row in rows
                for at, one in enumerate(row)
            ]
            return share(self.network, flows, startup=self.startup).seconds
        operation = cast(Operation, exchange.operation)
        one = get_collective(ALGORITHMS[operation], exchange.ranks, operation=operation)
        return play(
            _beside_each_other(one, len(rows)),
            self.network,
            exchange.bytes * len(rows),
            startup=self.startup,
            placement=[rank for row in rows for rank in row],
        ).seconds


def _beside_each_other(one: Collective, groups: int) -> Collective:
    """Return a collective of several groups at once, each with parts of its own."""
    rows = np.tile(one.transfers, groups)
    group = np.repeat(np.arange(groups), len(one.transfers))
    for name, step in (("source", one.ranks), ("target", one.ranks), ("first", one.parts),
                       ("stop", one.parts)):  # fmt: skip
        rows[name] += (group * step).astype(np.int32)
    return Collective(
        f"{groups} x {one.name}", one.operation, one.workers * groups, one.parts * groups, rows
    )
