"""Transports that carry messages on courses of ours: one for all, by request, or by message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.engines.transports.course import Course
from ddlnb.engines.transports.streams import Streams
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.transfers import Collective, Primitive
from ddlnb.plans.requests import AllReduce, GatherParts, ReduceScatter

HALVES: dict[type, Primitive] = {ReduceScatter: "reduce-scatter", GatherParts: "all-gather"}


class CarryingTransport(Streams, ABC):
    """Answers requests in place of their tensors, each by the course that a subclass chooses.

    A subclass makes its courses before it connects: what cannot be made opens nothing.
    """

    def start(
        self,
        message: int,
        request: Any,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start what the request asks for, in place of its tensor; released when it is answered."""
        course = self._course(message, request)
        return self.carry(course, message, request.tensor, released, answered)

    @abstractmethod
    def _course(self, message: int, request: Any) -> Course:
        """Return the course of a message, the same on all ranks."""


class CollectiveTransport(CarryingTransport):
    """Answers every request by one collective."""

    def __init__(self, collective: Collective, host: str, timeout_seconds: float):
        self._only = Course(collective, dist.get_rank())
        super().__init__(host, timeout_seconds)

    def _course(self, message: int, request: Any) -> Course:
        return self._only


class HalvesTransport(CarryingTransport):
    """Answers `ReduceScatter` and `GatherParts` along a ring.

    The backend's own are not taken: gloo reduces to all before it scatters, and both want tensors
    that workers divide evenly.
    """

    def __init__(self, host: str, timeout_seconds: float):
        rank, workers = dist.get_rank(), dist.get_world_size()
        self._by_kind = {
            kind: Course(get_collective("ring", workers, primitive=primitive), rank)
            for kind, primitive in HALVES.items()
        }
        super().__init__(host, timeout_seconds)

    def _course(self, message: int, request: Any) -> Course:
        return self._by_kind[type(request)]


class PerMessageTransport(CarryingTransport):
    """Answers `AllReduce` of message i by the collective ``names[i]``, the backend's where "".

    ``per_node`` is how many neighbouring ranks share a node, which only some collectives care for.
    """

    def __init__(self, names: Sequence[str], per_node: int, host: str, timeout_seconds: float):
        rank, workers = dist.get_rank(), dist.get_world_size()
        self._by_name = {
            name: Course(get_collective(name, workers, per_node=per_node), rank)
            for name in sorted(set(names) - {""})
        }
        self._names, self._plain = names, AllReduceTransport()
        super().__init__(host, timeout_seconds)

    def start(
        self,
        message: int,
        request: AllReduce,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, in place; released when it is answered."""
        if self._names[message]:
            return super().start(message, request, released, answered)
        before = self._plain.bytes_sent
        handle = self._plain.start(message, request, released, answered)
        self.bytes_sent += self._plain.bytes_sent - before
        return handle

    def _course(self, message: int, request: AllReduce) -> Course:
        return self._by_name[self._names[message]]
