"""A small transformer in torch whose layers are those of a `Transformer` shape, one to one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddlnb.parallelism.executed.experts import Experts
from ddlnb.parallelism.transformer import Transformer

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


class FeedForward(nn.Module):
    """Up, GELU, down."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(hidden)))


class Block(nn.Module):
    """Attention and a feed-forward part or experts, each behind a norm and beside a residual."""

    def __init__(self, shape: Transformer):
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.hidden)
        self.feed_forward = Experts(shape) if shape.experts else FeedForward(shape)
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
