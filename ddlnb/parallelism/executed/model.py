"""A small transformer in torch whose layers are those of a `Transformer` shape, one to one.

Its attention may cover a sequence that several ranks share, in a ring or by all-to-all, and its
experts may be shared by ranks that send each other tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddlnb.parallelism.model import Transformer


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
    query = _dealt(query, 1, 2, group)
    out = core(query, *_dealt(torch.cat((key, value), 0), 1, 2, group).chunk(2))
    return _dealt(out, 2, 1, group)


def _dealt(tensor: Tensor, split: int, joined: int, group: dist.ProcessGroup) -> Tensor:
    """Deal one dimension to the ranks, and join along another one what they deal.

    Of batch, heads, tokens and d, splitting heads (1) and joining tokens (2) gives every rank all
    tokens of its own heads; the other way round, all heads of its own tokens.
    """
    count = dist.get_world_size(group)
    rows = tensor.unflatten(split, (count, -1)).movedim(split, 0)
    received = all_to_all(rows, group, [1] * count, [1] * count)
    return received.movedim(0, joined).flatten(joined, joined + 1)


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


Core = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value -> output, b x heads x s x d


class Embedding(nn.Module):
    """Tokens and positions. ``first`` is the position of the first token that this rank holds."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Parameter(torch.randn(shape.sequence, shape.hidden))
        self.first = 0

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens)
        return embedded + self.positions[self.first : self.first + embedded.shape[1]]


class Attention(nn.Module):
    """Causal attention. The rows of ``qkv`` are heads of (query, key, value): ranks take heads."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.head_size = shape.head_size
        width = shape.heads * shape.head_size
        self.qkv = nn.Linear(shape.hidden, 3 * width, bias=False)
        self.out = nn.Linear(width, shape.hidden, bias=False)
        self.core: Core = flash if shape.flash else by_scores

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.qkv(hidden).unflatten(-1, (-1, 3, self.head_size))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(3))
        return self.out(self.core(query, key, value).transpose(1, 2).flatten(2))


def feed_forward(shape: Transformer) -> nn.Sequential:
    """Return up, GELU, down."""
    up = nn.Linear(shape.hidden, shape.ffn, bias=False)
    down = nn.Linear(shape.ffn, shape.hidden, bias=False)
    return nn.Sequential(OrderedDict(up=up, gelu=nn.GELU(), down=down))


class Block(nn.Module):
    """Attention and a feed-forward part or experts, each behind a norm and beside a residual."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.hidden)
        self.feed_forward = Experts(shape) if shape.experts else feed_forward(shape)
        self.is_recomputed = False

    def forward(self, hidden: Tensor) -> Tensor:
        if self.is_recomputed:
            return checkpoint(self._forward, hidden, use_reentrant=True)
        return self._forward(hidden)

    def _forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class Head(nn.Module):
    """The last norm, and the logits of the next token."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden)
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.logits(self.norm(hidden))


def layers_of(shape: Transformer, seed: int) -> dict[str, nn.Module]:
    """Return embedding, blocks and head in order, in 8-byte numbers drawn from the seed."""
    torch.manual_seed(seed)
    layers: dict[str, nn.Module] = {"embedding": Embedding(shape)}
    layers |= {f"block {number}": Block(shape) for number in range(shape.layers)}
    layers["head"] = Head(shape)
    return {name: layer.double() for name, layer in layers.items()}


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention that keeps no scores."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def by_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention by its formula, which keeps the scores."""
    length = query.shape[-2]
    later = torch.full((length, length), -math.inf, dtype=query.dtype).triu(1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + later
    return scores.softmax(-1) @ value


def recomputed(core: Core) -> Core:
    """Return attention whose scores are not kept but computed again."""
    return lambda query, key, value: checkpoint(core, query, key, value, use_reentrant=True)
