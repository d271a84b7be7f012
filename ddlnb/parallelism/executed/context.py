"""Causal attention over a sequence that several ranks share: in a ring, or by all-to-all."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddlnb.parallelism.executed.exchanges import all_to_all, passed_on


class RingAttention(torch.autograd.Function):
    """Ring attention (arXiv 2310.01889): keys and values travel, queries stay.

    Rank r holds the r-th part of the sequence. The output is put together with the logarithm of
    the sum of scores; the backward pass sends keys and values around once more, with their
    gradients behind them.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys_values: Tensor, group: dist.ProcessGroup) -> Tensor:
        count, rank = dist.get_world_size(group), dist.get_rank(group)
        block = keys_values.contiguous()
        out = torch.zeros_like(query)
        total = query.new_full(query.shape[:-1], -math.inf)  # log of the sum of scores so far
        for hop in range(count):
            scores = _scores(query, block[0], rank, (rank - hop) % count)
            here = scores.logsumexp(-1)
            both = torch.logaddexp(total, here)
            seen = torch.where(here.isneginf(), 0.0, (here - both).exp())
            part = _finite_softmax(scores, here) @ block[1]
            out = out * (total - both).exp()[..., None] + part * seen[..., None]
            total = both
            if hop < count - 1:
                block = passed_on(block, group)
        out = out.transpose(1, 2).contiguous().transpose(1, 2)  # by tokens, as the next layer reads
        ctx.save_for_backward(query, keys_values, out, total)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        query, keys_values, out, total = ctx.saved_tensors
        group, upstream = ctx.group, gradients[0]
        count, rank = dist.get_world_size(group), dist.get_rank(group)
        scale = 1 / math.sqrt(query.shape[-1])
        block = keys_values.contiguous()
        of_block = torch.zeros_like(block)
        of_query = torch.zeros_like(query)
        of_out = (upstream * out).sum(-1, keepdim=True)
        for hop in range(count):
            weights = _finite_softmax(_scores(query, block[0], rank, (rank - hop) % count), total)
            of_scores = weights * (upstream @ block[1].transpose(-2, -1) - of_out)
            of_query += of_scores @ block[0] * scale
            of_block[0] += of_scores.transpose(-2, -1) @ query * scale
            of_block[1] += weights.transpose(-2, -1) @ upstream
            if hop < count - 1:
                block = passed_on(block, group)
            of_block = passed_on(of_block, group)  # the last time back to where they belong
        return of_query, of_block, None


def _scores(query: Tensor, key: Tensor, own: int, other: int) -> Tensor:
    """Return scores of own queries with another part's keys, minus infinity for later tokens."""
    length = query.shape[-2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    rows = own * length + torch.arange(length)
    columns = other * length + torch.arange(length)
    return scores.masked_fill(columns > rows[:, None], -math.inf)


def _finite_softmax(scores: Tensor, total: Tensor) -> Tensor:
    """Return exp(scores - total), and 0 where a query sees none of these keys."""
    return (scores - total.nan_to_num(neginf=0.0)[..., None]).exp()


def ring(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the attention of own queries to all tokens up to them."""
    # A copy of the query: a view would keep keys and values a second time.
    return RingAttention.apply(query.contiguous(), torch.stack((key, value)), group)


def by_heads(
    query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup, core: Any
) -> Tensor:
    """Return the same by Ulysses (arXiv 2309.14509): every rank has all tokens of some heads."""
    query, key_value = _to_heads(query, group), _to_heads(torch.cat((key, value), 0), group)
    out = core(query, *key_value.chunk(2))
    return _to_tokens(out, group)


def _to_heads(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Turn (batch, all heads, own tokens, d) into (batch, own heads, all tokens, d)."""
    count = dist.get_world_size(group)
    rows = tensor.unflatten(1, (count, -1)).movedim(1, 0)  # rank, batch, own heads, tokens, d
    received = all_to_all(rows, group, [1] * count, [1] * count)
    return received.movedim(0, 2).flatten(2, 3)


def _to_tokens(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Turn (batch, own heads, all tokens, d) into (batch, all heads, own tokens, d)."""
    count = dist.get_world_size(group)
    rows = tensor.unflatten(2, (count, -1)).movedim(2, 0)
    received = all_to_all(rows, group, [1] * count, [1] * count)
    return received.movedim(0, 1).flatten(1, 2)
