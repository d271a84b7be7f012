"""What a page of this folder is: parameters, and the list of transfers that they make.

What of a collective follows one another: its seconds where links are all alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from ddlnb.networks.collectives.phases import joined
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.transfers import Collective, Primitive, Transfers

ALL_REDUCE: Primitive = "all-reduce"


class Counts(NamedTuple):
    """The closed form of a collective.

    ``steps`` follow one another; ``sent`` is what the rank sends that sends most, as a multiple of
    the message. The message of an all-to-all is everything that all workers send together.
    """

    steps: int
    sent: float


class Algorithm(ABC):
    """One way to carry out a primitive, or several; subclasses are frozen dataclasses.

    Fields are parameters that can be written behind the name: ``torus(4, 8)``.
    """

    name: ClassVar[str]
    primitives: ClassVar[tuple[Primitive, ...]] = (ALL_REDUCE,)
    knows_nodes: ClassVar[bool] = False  # whether it matters which workers share a node

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return why it does not run among so many workers and the way out, or nothing."""
        return ""

    @abstractmethod
    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers among workers of which ``per_node`` neighbours share a node."""

    @abstractmethod
    def counts(self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE) -> Counts:
        """Return steps and bytes by formula, without making the transfers."""

    def made(
        self,
        primitive: Primitive,
        workers: int,
        parts: int,
        *rows: Transfers,
        servers: int = 0,
    ) -> Collective:
        """Return the collective of these rows, named after the page."""
        return Collective(self.name, primitive, workers, parts, joined(*rows), servers)


def in_turn(collective: Collective) -> Counts:
    """Return the steps, and the bytes that follow one another, as a multiple of the message.

    In every step these are the bytes of the rank that sends or receives most, if a rank does both
    at the same time and no two ranks share a link.

    >>> from ddlnb.networks.collectives.catalogue import get_collective
    >>> in_turn(get_collective("tree", 8))
    Counts(steps=6, sent=6.0)
    """
    rows, ranks = collective.transfers, collective.ranks
    most = np.zeros(collective.steps)
    for end in ("source", "target"):
        place = rows["step"].astype(np.int64) * ranks + rows[end]
        parts = np.bincount(place, rows["stop"] - rows["first"], minlength=len(most) * ranks)
        most = np.maximum(most, parts.reshape(-1, ranks).max(axis=1, initial=0.0))
    return Counts(collective.steps, float(most.sum()) / collective.parts)


def step_by_step(collective: Collective, link: AlphaBeta) -> AlphaBeta:
    """Return the seconds of a collective whose steps wait for each other, on links all alike.

    ``link`` is the cost of one message. The formulas of `ddlnb.plans.alpha_beta` are of this kind.

    >>> from ddlnb.networks.collectives.catalogue import get_collective
    >>> print(step_by_step(get_collective("halving-doubling", 4), AlphaBeta(1e-4, 1e-9)))
    400 us + M / (5.33 Gb/s)
    """
    steps, moved = in_turn(collective)
    return AlphaBeta(steps * link.latency_seconds, moved * link.seconds_per_byte)
