"""What a page of this folder is: parameters, and the list of transfers that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from ddlnb.networks.collectives.phases import joined
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
