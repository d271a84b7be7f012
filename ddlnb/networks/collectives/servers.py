"""Parameter servers: push every server its part, pull the sum."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from ddlnb.networks.collectives.base import (
    ALL_REDUCE,
    Algorithm,
    Numbers,
    after,
    joined,
    reversed_steps,
    ring_all_gather,
    ring_reduce_scatter,
)
from ddlnb.plans.transfers import Collective, Primitive, Transfers, transfers
from ddlnb.units import counted


@dataclass(frozen=True)
class ParameterServers(Algorithm):
    """Each of k servers sums an equal part: 2 steps.

    On ranks of their own, after the workers: max(1, n / k) M bytes from the rank that sends most.
    ``beside`` the workers, server i is worker i, which keeps its own share of its part: it sends
    (n + k - 2) / k M; with k = n that is `Direct`. Source: Li et al. 2014; survey, section 3.2.
    """

    count: int = 1
    beside: bool = False

    name = "parameter-servers"

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that there must be servers, and beside workers not more than these."""
        if self.count < 1:
            return f"{self.name}({self.count}) has nobody to sum; give at least 1 server"
        if self.beside and self.count > workers:
            return (
                f"{self.name}({self.count}, true) puts {counted(self.count, 'server')} beside "
                f"{counted(workers, 'worker')}; give at most {workers}, or servers on ranks of "
                f"their own"
            )
        return ""

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        extra = 0 if self.beside else self.count
        part = np.arange(self.count)[None, :]
        server, worker = part + (workers if extra else 0), np.arange(workers)[:, None]
        push = _not_to_oneself(transfers(0, worker, server, part, part + 1, True))
        return self.made(
            primitive, workers, self.count, push, reversed_steps(push, 2), servers=extra
        )


@dataclass(frozen=True)
class BytePS(Algorithm):
    """Reduce inside the nodes, push to servers, pull, and spread inside, as BytePS does.

    There are k ``servers`` on ranks of their own and one beside every worker. Of m nodes with g
    workers, worker i of each node carries the i-th g-th; of that, servers on ranks of their own sum
    2 (m - 1) / D each and those beside workers (m - k) / D, with D = m^2 + k m - 2 k, so that all
    send equally much: 2 m (m - 1) / D M from a node and from a server. 2 g steps. With m servers
    and more, they sum everything. Source: Jiang et al., OSDI 2020, section 4.
    """

    servers: int = 0

    name = "byteps"
    knows_nodes = True

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that there cannot be fewer servers than none."""
        if self.servers >= 0:
            return ""
        return f"byteps({self.servers}) has {self.servers} servers; give 0 or more"

    def shares(self, nodes: int) -> tuple[int, int]:
        """Return the parts of a server beside a worker and of one on a rank of its own.

        >>> BytePS(0).shares(4), BytePS(1).shares(4), BytePS(4).shares(4)
        ((1, 0), (1, 2), (0, 1))
        """
        if nodes == 1 or self.servers >= nodes:
            return (1, 0) if nodes == 1 else (0, 1)
        beside, alone = nodes - self.servers, 2 * (nodes - 1) if self.servers else 0
        return beside // gcd(beside, alone), alone // gcd(beside, alone)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        nodes = workers // per_node
        beside, alone = self.shares(nodes)
        of_each = nodes * beside + self.servers * alone  # parts that a worker of a node carries
        ranks = np.arange(workers).reshape(nodes, per_node)
        bounds = np.broadcast_to(of_each * np.arange(per_node + 1), (nodes, per_node + 1))
        inside = per_node - 1
        push = _push(ranks, self.servers, beside, alone)
        steps = inside + 2 * (nodes > 1)
        rows = (
            ring_reduce_scatter(ranks, bounds),
            after(inside, push),
            after(inside, reversed_steps(push, 2)),
            after(steps, ring_all_gather(ranks, bounds)),
        )
        parts = per_node * of_each
        return self.made(primitive, workers, parts, *rows, servers=self.servers)


def _push(ranks: Numbers, servers: int, beside: int, alone: int) -> Transfers:
    """Return the rows in which every worker sends its share of a node's sum to all servers."""
    nodes, per_node = ranks.shape
    if nodes == 1:
        return joined()
    source, lane = ranks[:, :, None], np.arange(per_node)[None, :, None]
    start = lane * (nodes * beside + servers * alone)
    to_workers = start + beside * np.arange(nodes)
    to_servers = start + nodes * beside + alone * np.arange(servers)
    peers = ranks.T[None, :, :]
    extra = nodes * per_node + np.arange(servers)
    return joined(
        _not_to_oneself(transfers(0, source, peers, to_workers, to_workers + beside, True)),
        transfers(0, source, extra, to_servers, to_servers + alone, True),
    )


def _not_to_oneself(rows: Transfers) -> Transfers:
    flat: Transfers = rows.reshape(-1)
    return flat[np.flatnonzero(flat["source"] != flat["target"])]
