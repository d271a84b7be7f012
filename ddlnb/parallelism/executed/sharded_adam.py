"""Adam whose states, and with ZeRO-2 its gradients, are sharded over replicas."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlnb.parallelism.executed.counting import local_of


class ShardedAdam:
    """ZeRO-1 and ZeRO-2 (arXiv 1910.02054) over one flat vector of all parameters.

    Each rank averages, keeps and updates its shard, and gathers those of the others. With ``zero``
    2 the gradients of every micro batch go straight into the shard, and no rank keeps whole ones.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        zero: int,
        rate: float,
        epsilon: float,
    ):
        self.parameters, self.group, self.zero = list(parameters), group, zero
        self.locals = [local_of(one.detach()) for one in self.parameters]  # same storage
        self.ranks = dist.get_world_size(group)
        self.elements = sum(one.numel() for one in self.locals)
        self.padding = -self.elements % self.ranks
        own = self._flat(self.locals).chunk(self.ranks)
        self.shard = own[dist.get_rank(group)].clone()
        self.shard.grad = torch.zeros_like(self.shard) if zero == 2 else None
        self.adam = torch.optim.Adam([self.shard], lr=rate, eps=epsilon)

    def micro_batch_is_done(self) -> None:
        """Add the gradients to the shard and let go of them, with ZeRO-2."""
        if self.zero == 2:
            assert self.shard.grad is not None
            self.shard.grad += self._scattered()
            for one in self.parameters:
                one.grad = None

    def step(self) -> None:
        """Average gradients, update the shard and gather all parameters."""
        if self.zero == 1:
            self.shard.grad = self._scattered()
        self.adam.step()
        gathered = self.shard.new_empty(self.elements + self.padding)
        dist.all_gather_into_tensor(gathered, self.shard, group=self.group)
        parts = gathered[: self.elements].split([one.numel() for one in self.locals])
        for one, values in zip(self.locals, parts, strict=True):
            one.copy_(values.view_as(one))

    def zero_grad(self) -> None:
        """Forget all gradients; the shard of ZeRO-2 starts again from 0."""
        for one in self.parameters:
            one.grad = None
        self.shard.grad = torch.zeros_like(self.shard) if self.zero == 2 else None

    def gradient_bytes(self) -> int:
        """Return the bytes of gradients that outlive a backward pass."""
        whole = [local_of(one.grad) for one in self.parameters if one.grad is not None]
        kept = [self.shard.grad] if self.zero == 2 and self.shard.grad is not None else whole
        return sum(one.nbytes for one in kept)

    def _scattered(self) -> Tensor:
        """Return this rank's shard of the average gradients."""
        gradients = self._flat([_gradient(one) for one in self.parameters])
        shard = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(shard, gradients, group=self.group)
        return shard / self.ranks

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [one.flatten() for one in tensors]
        return torch.cat([*parts, parts[0].new_zeros(self.padding)])


def _gradient(parameter: nn.Parameter) -> Tensor:
    own = local_of(parameter.detach())
    return torch.zeros_like(own) if parameter.grad is None else local_of(parameter.grad)
