"""Exchanges that autograd goes through: all-to-all, and a ring of neighbours."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllToAll(torch.autograd.Function):
    """Sends rows of a tensor to every rank and receives theirs; gradients go the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back = _exchanged(gradients[0], ctx.received, ctx.sent, ctx.group)
        return back, None, None, None


def _exchanged(
    rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
    return out


def all_to_all(
    rows: Tensor, group: dist.ProcessGroup, sent: list[int], received: list[int]
) -> Tensor:
    """Return the rows that other ranks sent; ``sent`` and ``received`` say how many by rank."""
    return AllToAll.apply(rows, sent, received, group)


def passed_on(block: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send a block to the next rank of the ring and return that of the one before."""
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    arrived = torch.empty_like(block)
    sending = dist.P2POp(dist.isend, block, group=group, group_peer=(rank + 1) % count)
    receiving = dist.P2POp(dist.irecv, arrived, group=group, group_peer=(rank - 1) % count)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return arrived
