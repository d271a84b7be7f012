"""The two exchanges of neurons that are split over workers, and their bytes.

Before a layer every worker needs the outputs of all neurons below: an all-gather. Backward, every
worker has a part of the gradient of each of these outputs, and the owner needs the sum: a
reduce-scatter. Both are built of sends, because workers own different numbers of neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


def evenly(width: int, parts: int) -> list[int]:
    """Return how many of ``width`` neurons each worker owns: the first ones one more.

    >>> evenly(10, 4)
    [3, 3, 2, 2]
    """
    return [width // parts + (part < width % parts) for part in range(parts)]


class Exchange:
    """Sends tensors between one worker and all others; counts its bytes and its exchanges."""

    def __init__(self, rank: int, count: int):
        self.rank, self.count = rank, count
        self.bytes_sent = self.exchanges = 0

    def gathered(self, own: Tensor, width: int) -> Tensor:
        """Return the outputs of all neurons, given those of this worker's: (samples, width)."""
        widths = evenly(width, self.count)
        parts = self._swap([own] * self.count, [(len(own), part) for part in widths])
        return torch.cat(parts, dim=1)

    def scattered_sum(self, partial: Tensor) -> Tensor:
        """Return the sum over workers of the columns of this worker's neurons, in rank order."""
        parts = partial.split(evenly(partial.shape[1], self.count), dim=1)
        shape = tuple(parts[self.rank].shape)
        return torch.stack(self._swap(parts, [shape] * self.count)).sum(dim=0)

    def own_columns(self, whole: Tensor) -> Tensor:
        """Return the columns of this worker's neurons."""
        return whole.split(evenly(whole.shape[1], self.count), dim=1)[self.rank]

    def _swap(self, leaving: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send every worker its tensor, and return those that they sent, each of its shape."""
        entering = [torch.empty(shape) for shape in shapes]
        entering[self.rank] = leaving[self.rank]
        waiting: list[Any] = []
        for other in (rank for rank in range(self.count) if rank != self.rank):
            tensor = leaving[other].contiguous()
            waiting += [dist.isend(tensor, other), dist.irecv(entering[other], other)]
            self.bytes_sent += tensor.numel() * tensor.element_size()
        for work in waiting:
            work.wait()
        self.exchanges += 1
        return entering


class AllGather(Function):
    """All neurons' outputs forward; the sum of their gradients, for the owner, backward."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: Exchange, width: int) -> Tensor:
        """Return the outputs of all neurons."""
        ctx.exchange = exchange
        return exchange.gathered(own, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this worker's outputs, of which every worker has a part."""
        return ctx.exchange.scattered_sum(gradients[0]), None, None


class GatherOutputs(AllGather):
    """All outputs of the model forward; backward nothing is sent, for all know the whole loss."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return this worker's columns of the gradient."""
        return ctx.exchange.own_columns(gradients[0]), None, None
