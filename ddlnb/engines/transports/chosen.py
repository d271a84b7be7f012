"""Collectives that differ by request or by message: halves of all-reduces, and one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.engines.transports.collective import CollectiveExecutor
from ddlnb.engines.transports.threads import BlockingAllReduce, ThreadTransport
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.transfers import Primitive
from ddlnb.plans.requests import AllReduce, GatherParts, ReduceScatter

HALVES: dict[type, Primitive] = {ReduceScatter: "reduce-scatter", GatherParts: "all-gather"}


class HalvesTransport(ThreadTransport):
    """Answers `ReduceScatter` and `GatherParts`, in place, along a ring.

    The backend's own are not taken: gloo reduces to all before it scatters, and both want tensors
    that workers divide evenly.
    """

    def __init__(self, timeout_seconds: float):
        super().__init__(_halves, timeout_seconds)

    def _carrier(self, made: Any, message: int, request: Any) -> BlockingAllReduce:
        return made[type(request)]


class PerMessageTransport(ThreadTransport):
    """Answers `AllReduce` of message i by the collective ``names[i]``, the backend's where "".

    ``per_node`` is how many neighbouring ranks share a node, which only some collectives care for.
    """

    def __init__(self, names: Sequence[str], per_node: int, timeout_seconds: float):
        listed = sorted(set(names) - {""})
        super().__init__(partial(_by_name, listed, per_node), timeout_seconds)
        self._names, self._plain = names, AllReduceTransport()

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

    def _carrier(self, made: Any, message: int, request: Any) -> BlockingAllReduce:
        return made[self._names[message]]


def _halves(group: dist.ProcessGroup) -> Mapping[type, CollectiveExecutor]:
    workers = group.size()
    return {
        kind: CollectiveExecutor(get_collective("ring", workers, primitive=primitive), group)
        for kind, primitive in HALVES.items()
    }


def _by_name(
    names: Sequence[str], per_node: int, group: dist.ProcessGroup
) -> Mapping[str, CollectiveExecutor]:
    return {
        name: CollectiveExecutor(get_collective(name, group.size(), per_node=per_node), group)
        for name in names
    }
