"""How long an exchange takes on a network: all groups of its axis at once, played as flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import cast

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.networks.channels import Startup
from ddlnb.networks.collectives.catalogue import get_algorithm, get_collective
from ddlnb.networks.network import Network
from ddlnb.networks.play import play, share
from ddlnb.networks.transfers import Collective, Primitive
from ddlnb.parallelism.groups import groups
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.traffic import ALGORITHMS
from ddlnb.parallelism.volumes import Exchange


@dataclass
class Links:
    """The network that a layout's ranks run on, and the start-up of its messages.

    Rank r runs on endpoint ``placement[r]``, by default on endpoint r. ``all_reduce`` names the
    algorithm of all-reduces; to one that knows nodes, ranks of a group come node by node.
    Every exchange is played with all groups of its axis, which share the links; what other axes
    exchange at the same time is left out. Equal exchanges are played once. Raises InputError for a
    network with fewer endpoints than the layout has ranks, and for a placement that puts two ranks
    on one.
    """

    layout: Layout
    network: Network
    startup: Startup = field(default_factory=Startup)
    placement: Sequence[int] | None = None
    all_reduce: str = ALGORITHMS["all-reduce"]
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.network.ranks < self.layout.ranks:
            raise InputError(
                f"layout {self.layout} needs {self.layout.ranks} ranks, and network "
                f"{self.network.name!r} has {self.network.ranks}; take a larger one"
            )
        if self.placement is None:
            self.placement = range(self.layout.ranks)
        require(
            len(self.placement) == len(set(self.placement)) == self.layout.ranks,
            f"placement {list(self.placement)} must give each of the {self.layout.ranks} ranks of "
            f"layout {self.layout} an endpoint of its own",
        )

    def seconds(self, exchange: Exchange) -> float:
        """Return the seconds of one call of an exchange."""
        key = exchange.primitive, exchange.axis, float(exchange.bytes)
        if key not in self._known:
            self._known[key] = self._played(exchange)
        return self._known[key]

    def boundary_seconds(self, size: float, source: int, target: int) -> float:
        """Return the seconds of a message of this size from every rank of a stage to another."""
        key = f"stage {source}", f"stage {target}", size
        if key not in self._known:
            rows = self._placed("pp")
            flows = [(row[source], row[target], size, 0.0) for row in rows]
            self._known[key] = share(self.network, flows, startup=self.startup).seconds
        return self._known[key]

    def _placed(self, axis: str) -> list[tuple[int, ...]]:
        """Return the endpoints of the ranks of every group along an axis."""
        assert self.placement is not None  # since __post_init__
        return [tuple(self.placement[rank] for rank in row) for row in groups(self.layout, axis)]

    def _played(self, exchange: Exchange) -> float:
        rows = self._placed(exchange.axis)
        if exchange.primitive == "send":  # of the ring of context parallelism
            flows = [
                (one, row[(at + 1) % len(row)], exchange.bytes, 0.0)
                for row in rows
                for at, one in enumerate(row)
            ]
            return share(self.network, flows, startup=self.startup).seconds
        primitive = cast(Primitive, exchange.primitive)
        is_reduced = primitive == "all-reduce"
        algorithm = get_algorithm(self.all_reduce if is_reduced else ALGORITHMS[primitive])
        per_node = 1
        if algorithm.knows_nodes:
            rows, per_node = self._by_node(rows)
        one = get_collective(algorithm, exchange.ranks, per_node=per_node, primitive=primitive)
        return play(
            _beside_each_other(one, len(rows)),
            self.network,
            exchange.message_bytes * len(rows),
            startup=self.startup,
            placement=[place for row in rows for place in row],
        ).seconds

    def _by_node(self, rows: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], int]:
        """Return the groups sorted by node, and into how large blocks that are whole on a node."""
        nodes = self.network.nodes
        counts = [
            int(count)
            for row in rows
            for count in np.unique([nodes[place] for place in row], return_counts=True)[1]
        ]
        return [tuple(sorted(row, key=lambda place: (nodes[place], place))) for row in rows], gcd(
            *counts
        )


def _beside_each_other(one: Collective, groups: int) -> Collective:
    """Return a collective of several groups at once, each with parts of its own."""
    rows = np.tile(one.transfers, groups)
    group = np.repeat(np.arange(groups), len(one.transfers))
    for name, step in (("source", one.ranks), ("target", one.ranks), ("first", one.parts),
                       ("stop", one.parts)):  # fmt: skip
        rows[name] += (group * step).astype(np.int32)
    return Collective(
        f"{groups} x {one.name}", one.primitive, one.workers * groups, one.parts * groups, rows
    )
