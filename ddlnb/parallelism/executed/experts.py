"""A mixture of experts: on one rank, or shared by ranks that send each other tokens."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.parallelism.executed.exchanges import all_to_all
from ddlnb.parallelism.transformer import Transformer


class Experts(nn.Module):
    """A router gives every token ``top_k`` experts; their outputs are added, weighted.

    ``share`` leaves each rank of a group its part of the experts; tokens then travel to them and
    back (GShard, arXiv 2006.16668).
    """

    def __init__(self, shape: Transformer):
        super().__init__()
        self.top_k = shape.top_k
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        scale = shape.hidden**-0.5
        self.up = nn.Parameter(torch.randn(shape.experts, shape.hidden, shape.ffn) * scale)
        self.down = nn.Parameter(torch.randn(shape.experts, shape.ffn, shape.hidden) * scale)
        self.group: dist.ProcessGroup | None = None

    def share(self, group: dist.ProcessGroup) -> None:
        """Keep the experts of this rank of the group."""
        count, rank = dist.get_world_size(group), dist.get_rank(group)
        self.group = group
        self.up = nn.Parameter(self.up.detach().chunk(count)[rank].clone())
        self.down = nn.Parameter(self.down.detach().chunk(count)[rank].clone())

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k)
        order = chosen.flatten().argsort(stable=True)  # copies of tokens, by expert
        rows = tokens[order // self.top_k]
        numbers = chosen.flatten().bincount(minlength=self.router.out_features)
        rows = self._there_and_back(rows, numbers)
        back = rows[order.argsort()]
        mixed = (back.unflatten(0, (-1, self.top_k)) * weights[..., None]).sum(1)
        return mixed.view_as(hidden)

    def _there_and_back(self, rows: Tensor, numbers: Tensor) -> Tensor:
        if self.group is None:
            return self._computed(rows, numbers)
        count = dist.get_world_size(self.group)
        arriving = torch.empty_like(numbers)
        dist.all_to_all_single(arriving, numbers, group=self.group)
        sent = numbers.view(count, -1).sum(1).tolist()
        received = arriving.view(count, -1).sum(1).tolist()
        rows = all_to_all(rows, self.group, sent, received)
        # From every rank come rows by expert; each expert takes them together.
        experts = torch.arange(len(self.up)).repeat(count).repeat_interleave(arriving)
        order = experts.argsort(stable=True)
        out = self._computed(rows[order], experts.bincount(minlength=len(self.up)))
        return all_to_all(out[order.argsort()], self.group, received, sent)

    def _computed(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return what the experts make of their rows: the first so many are of the first."""
        parts = rows.split(numbers.tolist())
        return torch.cat(
            [F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down,
                                                              strict=True)]
        )  # fmt: skip
