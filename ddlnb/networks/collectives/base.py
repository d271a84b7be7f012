"""What a page of this folder is: parameters, and the list of transfers that they make."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ddlnb.networks.collectives.phases import joined
from ddlnb.plans.transfers import Collective, Primitive, Transfers
from ddlnb.registry import Choice

ALL_REDUCE: Primitive = "all-reduce"


class Algorithm(Choice):
    """One way to carry out a primitive, or several; subclasses are frozen dataclasses.

    Fields are parameters that can be written behind the name: ``torus(4, 8)``.
    """

    brief = True
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
