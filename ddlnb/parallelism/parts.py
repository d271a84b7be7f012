"""What a layer is made of: parameter tensors, what is kept of samples, what is exchanged.

A kind of part is a class: attention, with keys of their own or out of a latent, a state space, a
feed-forward part, experts. It says its parameters, FLOPs, what it keeps and exchanges, and what
divides it. A layer is any number of them, each behind a norm and beside a residual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True)
class Weight:
    """A parameter tensor. ``split`` is what divides it: tensor, expert (and tensor), or none.

    ``pieces`` is the most ways that tensor parallelism can divide it (0: no limit); with more
    ranks some hold the same piece, as with fewer key heads than ranks. ``tied``: the first and the
    last layer both use it; a stage that has both holds it once. ``sides``: rows and columns of its
    matrices, to which an adapter adds as many elements times its rank. ``idle``: elements that one
    token does not meet, those of experts that it is not sent to.
    """

    name: str
    elements: int
    split: str = "none"
    pieces: int = 0
    tied: bool = False
    idle: int = 0
    sides: int = 0


LOGIT, MULTIPLIED = -1, -2  # kinds of bytes that precisions say


@dataclass(frozen=True)
class Kept:
    """Something that the backward pass needs of every sample, ``elements`` of it.

    ``bytes`` each, 0 for those of the precision's activations, -1 for those of its logits, and -2
    for those of inputs that matrices multiply, which some precisions keep in fewer.
    ``split``: tensor parallelism divides it (tensor), sequence parallelism does (sequence), or only
    where gathered inputs are not kept (gathered). ``core``: belongs to the core of attention, which
    selective recomputation computes again. ``pieces`` as in Weight.
    """

    name: str
    elements: float
    split: str = "tensor"
    bytes: float = 0
    core: bool = False
    pieces: int = 0


@dataclass(frozen=True)
class Region:
    """Where tensor parallelism works: what enters and leaves it, in elements per sample.

    What enters is whole on every rank, and its gradients are added up; what leaves is added up, and
    its gradients are whole. 0 elements: nothing enters or leaves here.
    """

    name: str
    enters: int = 0
    leaves: int = 0


@dataclass(frozen=True)
class Attention:
    """What attention exchanges where a sequence is shared: elements of one sample."""

    query: int
    key_value: int
    pieces: int = 0  # the most ways that tensor parallelism divides keys and values


Transformer = Any  # that of model.py, which imports this module


@dataclass(frozen=True)
class Described:
    """A part of a layer in numbers, per sample.

    ``divided`` says what axes divide: axis, what, and how many there are. ``flops`` are of the
    forward pass with ``core_flops``, those of the core of attention or of the scan of a state
    space. ``inner``: elements between its matrices that a token keeps. ``dispatched``: elements
    that are sent to experts.
    """

    name: str
    divided: tuple[tuple[str, str, int], ...]
    weights: tuple[Weight, ...]
    flops: float
    kept: tuple[Kept, ...]
    core_flops: float = 0.0
    attention: Attention | None = None
    dispatched: int = 0
    inner: int = 0


class LayerPart(Protocol):
    """A kind of part: one of your own works wherever ``Transformer.blocks`` names it."""

    def describe(self, model: Transformer) -> Described:
        """Return its numbers in this model."""


def present(condition: object, *things: Any) -> tuple[Any, ...]:
    """Return these things where the condition holds, otherwise nothing."""
    return things if condition else ()


def matrix(
    name: str, rows: int, columns: int, count: int = 1, *, split: str = "tensor", pieces: int = 0
) -> Weight:
    """Return the parameters of so many matrices."""
    return Weight(name, count * rows * columns, split, pieces, sides=count * (rows + columns))


def attended(sequence: int, window: int = 0, chunked: bool = False) -> float:
    """Return twice the pairs of a token and one that it attends to, itself counted half.

    All of them, s^2, of causal attention without a window of w tokens; with one that slides
    s^2 - (s - w)^2, and w^2 for every chunk where sequences are cut into them.

    >>> attended(8), attended(8, 2), attended(8, 2, chunked=True), attended(12, 8, chunked=True)
    (64, 28, 16, 80)
    """
    if not 0 < window < sequence:
        return sequence**2
    if chunked:
        return sequence // window * window**2 + (sequence % window) ** 2
    return sequence**2 - (sequence - window) ** 2


@dataclass(frozen=True)
class SelfAttention:
    """Heads that attend to earlier tokens; ``kv_heads`` share keys and values.

    ``window``: to so many tokens only, 0 for all; ``chunked``: of the same chunk. ``normed``: norms
    of queries and keys, "head" for one that all heads share, "all" for one over heads. ``sinks``: a
    learned score beside those of tokens. ``norms``: of the part; 0 where another part's is used.
    """

    heads: int
    kv_heads: int
    head_size: int
    window: int = 0
    chunked: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    normed: str = ""
    sinks: bool = False
    norms: int = 1

    def describe(self, model: Transformer) -> Described:
        """Return its numbers."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        tokens, width, hidden = model.sequence, model.width, model.hidden
        scores, pairs = self.heads * tokens**2, attended(tokens, self.window, self.chunked)
        norm = {"": 0, "head": 2 * self.head_size, "all": query + key}[self.normed]
        weights = (
            model.norm_weight("attention norm", self.norms),
            matrix("query", hidden, query),
            matrix("key, value", hidden, key, 2, pieces=self.kv_heads),
            matrix("attention output", query, hidden),
            *present(
                self.qkv_bias,
                Weight("query bias", query, "tensor"),
                Weight("key, value bias", 2 * key, "tensor", self.kv_heads),
            ),
            *present(self.output_bias, Weight("attention output bias", hidden)),
            *present(norm, Weight("norms of heads", norm)),
            *present(self.sinks, Weight("sinks", self.heads, "tensor")),
        )
        return Described(
            "attention",
            (
                ("tp", "heads", self.heads),
                ("all-to-all", "key heads", self.kv_heads),
                ("kv", "kv_heads", self.kv_heads),
            ),
            weights,
            4.0 * model.width * (query + key) + 4.0 * pairs * query,
            (
                Kept("attention norm input", width, "sequence"),
                Kept("attention input", width, "gathered", MULTIPLIED),
                Kept("query", tokens * query),
                Kept("key, value", 2.0 * tokens * key, pieces=self.kv_heads),
                *present(model.flash, Kept("log sum of scores", self.heads * tokens, "tensor", 4)),
                *present(not model.flash, Kept("scores", scores, core=True)),
                *present(
                    model.dropout and not model.flash,
                    Kept("score mask", scores, "tensor", 1, core=True),
                    Kept("dropped scores", scores, core=True),
                ),
                Kept("attention output", tokens * query, bytes=MULTIPLIED),
                *present(model.dropout, Kept("attention dropout mask", width, "sequence", 1)),
            ),
            4.0 * pairs * query,
            Attention(tokens * query, 2 * tokens * key, self.kv_heads),
        )


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries come out of a latent of ``query_rank`` elements (0: straight from the token), keys and
    values out of one of ``key_rank``, beside ``rotated`` elements of a key that all heads share.
    """

    heads: int
    query_rank: int
    key_rank: int
    plain: int
    rotated: int
    value: int
    bias: bool = False
    norms: int = 1

    def describe(self, model: Transformer) -> Described:
        """Return its numbers."""
        tokens, hidden, rank = model.sequence, model.hidden, self.query_rank
        query, value = self.heads * (self.plain + self.rotated), self.heads * self.value
        key = self.heads * self.plain
        latent = self.key_rank + self.rotated
        matrices = (
            *present(rank, matrix("query down", hidden, rank, split="none")),
            matrix("query up" if rank else "query", rank or hidden, query),
            matrix("key, value down", hidden, latent, split="none"),
            matrix("key, value up", self.key_rank, key + value),
            matrix("attention output", value, hidden),
        )
        core = 2.0 * attended(tokens) * (query + value)
        return Described(
            "attention",
            (("tp", "heads", self.heads), ("all-to-all", "key heads", self.heads)),
            (
                model.norm_weight("attention norm", self.norms),
                *matrices,
                Weight("norms of latents", rank + self.key_rank),
                *present(self.bias, Weight("attention bias", rank + latent + hidden)),
            ),
            2.0 * tokens * sum(one.elements for one in matrices) + core,
            (
                Kept("attention norm input", model.width, "sequence"),
                Kept("attention input", model.width, "gathered", MULTIPLIED),
                Kept("latents", 2.0 * tokens * (rank + latent), "sequence"),
                Kept("query, key", 2.0 * tokens * query),
                Kept("value", tokens * value),
                Kept("log sum of scores", self.heads * tokens, "tensor", 4),
                Kept("attention output", tokens * value, bytes=MULTIPLIED),
            ),
            core,
            Attention(tokens * query, tokens * (query + value), self.heads),
        )


@dataclass(frozen=True)
class StateSpace:
    """Mamba-2 (arXiv 2405.21060): heads with a state each, scanned chunk by chunk (section 6).

    ``groups`` of heads share what is written to states and read from them; ``kernel`` is the width
    of the convolution before the scan.
    """

    heads: int
    head_size: int
    groups: int
    state: int
    kernel: int = 4
    chunk: int = 256
    bias: bool = False
    kernel_bias: bool = True
    norms: int = 1

    def describe(self, model: Transformer) -> Described:
        """Return its numbers.

        The scan: within chunks scores of tokens by group, and their products by head; between
        chunks states that are written and read.
        """
        tokens, hidden = model.sequence, model.hidden
        inner, shared = self.heads * self.head_size, 2 * self.groups * self.state
        mixed, entering = inner + shared, 2 * inner + shared + self.heads
        chunk = min(self.chunk, tokens)
        scan = tokens * (chunk * (shared + 2.0 * inner) + 4.0 * self.state * inner)
        biases = self.bias * (entering + hidden) + self.kernel_bias * mixed
        return Described(
            "state space",
            (("tp", "state heads", self.heads), ("all-to-all", "state heads", self.heads)),
            (
                model.norm_weight("state space norm", self.norms),
                matrix("entering", hidden, entering),
                Weight("convolution", mixed * self.kernel, "tensor"),
                Weight("steps, decays, skips", 3 * self.heads, "tensor"),
                Weight("norm of heads", inner, "tensor"),
                matrix("leaving", inner, hidden),
                *present(biases, Weight("state space bias", biases, "tensor")),
            ),
            2.0 * tokens * (hidden * (entering + inner) + mixed * self.kernel) + scan,
            (
                Kept("state space norm input", model.width, "sequence"),
                Kept("state space input", model.width, "gathered", MULTIPLIED),
                Kept("entered", tokens * entering),
                Kept("convolved", tokens * mixed),
                Kept("states", tokens / chunk * self.state * inner),
                Kept("scanned, normed", 2.0 * tokens * inner),
            ),
            scan,
            Attention(tokens * inner, self.state * inner),
            inner=inner,
        )


@dataclass(frozen=True)
class FeedForward:
    """Two matrices with an activation between them, or three with a gate."""

    ffn: int
    gated: bool = True
    bias: bool = False
    norms: int = 1

    def describe(self, model: Transformer) -> Described:
        """Return its numbers."""
        matrices = 3 if self.gated else 2
        return Described(
            "feed-forward",
            (("tp", "ffn", self.ffn),),
            (
                model.norm_weight("feed-forward norm", self.norms),
                matrix("feed-forward", model.hidden, self.ffn, matrices),
                *present(
                    self.bias,
                    Weight("feed-forward bias", (matrices - 1) * self.ffn, "tensor"),
                    Weight("output bias", model.hidden),
                ),
            ),
            2.0 * model.width * matrices * self.ffn,
            _kept_between(model, self.ffn, self.gated),
            inner=self.ffn,
        )


@dataclass(frozen=True)
class Experts:
    """A mixture: a router sends each token to ``top_k`` of the experts, which are feed-forward.

    ``shared``: width of what every token meets besides, 0 for nothing; ``weighed``: by a gate.
    """

    experts: int
    top_k: int
    ffn: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared: int = 0
    weighed: bool = False
    norms: int = 1

    def describe(self, model: Transformer) -> Described:
        """Return its numbers."""
        hidden, count, matrices = model.hidden, self.experts, 3 if self.gated else 2
        biases = (matrices - 1) * self.ffn
        resting, sent = count - self.top_k, model.width * self.top_k
        inner = self.top_k * self.ffn + self.shared
        router = hidden * (count + self.weighed)
        return Described(
            "feed-forward",
            (
                ("tp", "ffn", self.ffn),
                *present(self.shared, ("tp", "ffn of shared experts", self.shared)),
                ("ep", "experts", count),
            ),
            (
                model.norm_weight("feed-forward norm", self.norms),
                replace(
                    matrix("feed-forward", hidden, self.ffn, count * matrices, split="expert"),
                    idle=resting * matrices * hidden * self.ffn,
                ),
                *present(
                    self.bias,
                    Weight("feed-forward bias", count * biases, "expert", idle=resting * biases),
                    Weight("output bias", count * hidden, idle=resting * hidden),
                ),
                Weight("router", router + self.router_bias * count),
                *present(
                    self.shared,
                    matrix("shared experts", hidden, self.shared, matrices),
                ),
            ),
            2.0 * model.sequence * (matrices * hidden * inner + router),
            (
                *_kept_between(model, inner, self.gated),
                Kept("router scores", model.sequence * count, "sequence"),
                Kept("dispatched", sent, "none"),
                Kept("combined", sent, "none"),
            ),
            dispatched=sent,
            inner=inner,
        )


def _kept_between(model: Transformer, inner: int, gated: bool) -> tuple[Kept, ...]:
    """What is kept around an activation; with a gate: gate and up, gate and product behind it."""
    elements = 1.0 * model.sequence * inner
    return (
        Kept("feed-forward norm input", model.width, "sequence"),
        Kept("feed-forward input", model.width, "gathered", MULTIPLIED),
        Kept("before activation", (2 if gated else 1) * elements),
        *present(gated, Kept("activated gate", elements)),
        Kept("activated", elements, bytes=MULTIPLIED),
        *present(model.dropout, Kept("feed-forward dropout mask", model.width, "sequence", 1)),
    )
