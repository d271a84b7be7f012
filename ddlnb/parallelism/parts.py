"""What a layer is made of: parameter tensors, what is kept of samples, what is exchanged.

A kind of part is a class: attention, with keys of their own or out of a latent, a state space, a
feed-forward part, experts. It says its parameters, FLOPs, what it keeps and exchanges, and what
divides it. A layer is any number of them, each behind a norm and beside a residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Weight:
    """A parameter tensor. ``split`` is what divides it: tensor, expert (and tensor), or none.

    ``pieces`` is the most ways that tensor parallelism can divide it (0: no limit); with more
    ranks some hold the same piece, as with fewer key heads than ranks. ``tied``: the first and the
    last layer both use it; a stage that has both holds it once. ``idle``: elements that one token
    does not meet, those of experts that it is not sent to.
    """

    name: str
    elements: int
    split: str = "none"
    pieces: int = 0
    tied: bool = False
    idle: int = 0


@dataclass(frozen=True)
class Kept:
    """Something that the backward pass needs of every sample, ``elements`` of it.

    ``bytes`` each, 0 for those of the precision's activations and -1 for those of its logits.
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


@dataclass(frozen=True)
class Stream:
    """What all layers of a model share: tokens of a sample, elements of a token, and habits.

    ``norm``: "rms" has a scale, "layer" a shift too, "none" neither. ``flash``: attention keeps no
    scores. ``dropout``: masks are kept, a byte each.
    """

    sequence: int
    hidden: int
    norm: str = "rms"
    flash: bool = True
    dropout: bool = False

    @property
    def width(self) -> int:
        """Elements of what a layer takes and gives, per sample."""
        return self.sequence * self.hidden

    def norm_weight(self, name: str, count: int = 1) -> Weight:
        """Return the parameters of so many norms of a token's elements."""
        return Weight(name, count * self.hidden * NORMS[self.norm])


NORMS = {"none": 0, "rms": 1, "layer": 2}  # parameters of an element


@dataclass(frozen=True)
class Described:
    """A part of a layer in numbers, per sample.

    ``flops`` are of the forward pass with ``core_flops``, those of the core of attention or of the
    scan of a state space. ``inner``: elements between its matrices that a token keeps.
    ``dispatched``: elements that are sent to experts.
    """

    weights: tuple[Weight, ...]
    flops: float
    kept: tuple[Kept, ...]
    core_flops: float = 0.0
    attention: Attention | None = None
    dispatched: int = 0
    inner: int = 0


class LayerPart(Protocol):
    """A kind of part: register your own by using it in ``Transformer.blocks``."""

    name: ClassVar[str]

    def describe(self, stream: Stream) -> Described:
        """Return its numbers."""

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """What axes divide: axis, what, and how many there are."""


def present(condition: object, *things: Any) -> tuple[Any, ...]:
    """Return these things where the condition holds, otherwise nothing."""
    return things if condition else ()


def attended(sequence: int, window: int = 0, chunked: bool = False) -> float:
    """Return twice the pairs of a token and one that it attends to, itself counted half.

    All of them, s^2, of causal attention without a window of w tokens; with one that slides
    s^2 - (s - w)^2, and s w where sequences are cut into chunks.

    >>> attended(8), attended(8, 2), attended(8, 2, chunked=True)
    (64, 28, 16)
    """
    if not 0 < window < sequence:
        return sequence**2
    return sequence * window if chunked else sequence**2 - (sequence - window) ** 2


@dataclass(frozen=True)
class SelfAttention:
    """Heads that attend to earlier tokens; ``kv_heads`` share keys and values.

    ``window``: to so many tokens only, 0 for all; ``chunked``: of the same chunk. ``normed``: norms
    of queries and keys, "head" for one that all heads share, "all" for one over heads. ``sinks``: a
    learned score beside those of tokens. ``norms``: of the part; 0 where another part's is used.
    """

    name: ClassVar[str] = "attention"
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

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """Heads are divided, and keys where all-to-all gives every rank some."""
        return (
            ("tp", "heads", self.heads),
            ("all-to-all", "key heads", self.kv_heads),
            ("kv", "kv_heads", self.kv_heads),
        )

    def describe(self, stream: Stream) -> Described:
        """Return its numbers."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        tokens, hidden = stream.sequence, stream.hidden
        core = 4.0 * attended(tokens, self.window, self.chunked) * query
        norm = {"": 0, "head": 2 * self.head_size, "all": query + key}[self.normed]
        weights = (
            stream.norm_weight("attention norm", self.norms),
            Weight("query", hidden * query, "tensor"),
            Weight("key, value", 2 * hidden * key, "tensor", self.kv_heads),
            Weight("attention output", query * hidden, "tensor"),
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
            weights,
            4.0 * stream.width * (query + key) + core,
            self._kept(stream, query, key),
            core,
            Attention(tokens * query, 2 * tokens * key, self.kv_heads),
        )

    def _kept(self, stream: Stream, query: int, key: int) -> tuple[Kept, ...]:
        tokens, width, scores = stream.sequence, stream.width, self.heads * stream.sequence**2
        return (
            Kept("attention norm input", width, "sequence"),
            Kept("attention input", width, "gathered"),
            Kept("query", tokens * query),
            Kept("key, value", 2.0 * tokens * key, pieces=self.kv_heads),
            *present(stream.flash, Kept("log sum of scores", self.heads * tokens, "tensor", 4)),
            *present(not stream.flash, Kept("scores", scores, core=True)),
            *present(
                stream.dropout and not stream.flash,
                Kept("score mask", scores, "tensor", 1, core=True),
                Kept("dropped scores", scores, core=True),
            ),
            Kept("attention output", tokens * query),
            *present(stream.dropout, Kept("attention dropout mask", width, "sequence", 1)),
        )


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries come out of a latent of ``query_rank`` elements (0: straight from the token), keys and
    values out of one of ``key_rank``, beside ``rotated`` elements of a key that all heads share.
    """

    name: ClassVar[str] = "attention"
    heads: int
    query_rank: int
    key_rank: int
    plain: int
    rotated: int
    value: int
    bias: bool = False
    norms: int = 1

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """Heads are divided; latents are not."""
        return (("tp", "heads", self.heads), ("all-to-all", "key heads", self.heads))

    def describe(self, stream: Stream) -> Described:
        """Return its numbers."""
        tokens, hidden, rank = stream.sequence, stream.hidden, self.query_rank
        query, value = self.heads * (self.plain + self.rotated), self.heads * self.value
        key = self.heads * self.plain
        latent = self.key_rank + self.rotated
        matrices = (
            *present(rank, Weight("query down", hidden * rank)),
            Weight("query up" if rank else "query", (rank or hidden) * query, "tensor"),
            Weight("key, value down", hidden * latent),
            Weight("key, value up", self.key_rank * (key + value), "tensor"),
            Weight("attention output", value * hidden, "tensor"),
        )
        core = 2.0 * attended(tokens) * (query + value)
        return Described(
            (
                stream.norm_weight("attention norm", self.norms),
                *matrices,
                Weight("norms of latents", rank + self.key_rank),
                *present(self.bias, Weight("attention bias", rank + latent + hidden)),
            ),
            2.0 * tokens * sum(one.elements for one in matrices) + core,
            (
                Kept("attention norm input", stream.width, "sequence"),
                Kept("attention input", stream.width, "gathered"),
                Kept("latents", 2.0 * tokens * (rank + latent), "sequence"),
                Kept("query, key", 2.0 * tokens * query),
                Kept("value", tokens * value),
                Kept("log sum of scores", self.heads * tokens, "tensor", 4),
                Kept("attention output", tokens * value),
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

    name: ClassVar[str] = "state space"
    heads: int
    head_size: int
    groups: int
    state: int
    kernel: int = 4
    chunk: int = 256
    bias: bool = False
    kernel_bias: bool = True
    norms: int = 1

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """Heads are divided."""
        return (("tp", "state heads", self.heads), ("all-to-all", "state heads", self.heads))

    def describe(self, stream: Stream) -> Described:
        """Return its numbers.

        The scan: within chunks scores of tokens by group, and their products by head; between
        chunks states that are written and read.
        """
        tokens, hidden = stream.sequence, stream.hidden
        inner, shared = self.heads * self.head_size, 2 * self.groups * self.state
        mixed, entering = inner + shared, 2 * inner + shared + self.heads
        chunk = min(self.chunk, tokens)
        scan = tokens * (chunk * (shared + 2.0 * inner) + 4.0 * self.state * inner)
        biases = self.bias * (entering + hidden) + self.kernel_bias * mixed
        return Described(
            (
                stream.norm_weight("state space norm", self.norms),
                Weight("entering", hidden * entering, "tensor"),
                Weight("convolution", mixed * self.kernel, "tensor"),
                Weight("steps, decays, skips", 3 * self.heads, "tensor"),
                Weight("norm of heads", inner, "tensor"),
                Weight("leaving", inner * hidden, "tensor"),
                *present(biases, Weight("state space bias", biases, "tensor")),
            ),
            2.0 * tokens * (hidden * (entering + inner) + mixed * self.kernel) + scan,
            (
                Kept("state space norm input", stream.width, "sequence"),
                Kept("state space input", stream.width, "gathered"),
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

    name: ClassVar[str] = "feed-forward"
    ffn: int
    gated: bool = True
    bias: bool = False
    norms: int = 1

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """What is between the matrices is divided."""
        return (("tp", "ffn", self.ffn),)

    def describe(self, stream: Stream) -> Described:
        """Return its numbers."""
        matrices = 3 if self.gated else 2
        return Described(
            (
                stream.norm_weight("feed-forward norm", self.norms),
                Weight("feed-forward", matrices * stream.hidden * self.ffn, "tensor"),
                *present(
                    self.bias,
                    Weight("feed-forward bias", (matrices - 1) * self.ffn, "tensor"),
                    Weight("output bias", stream.hidden),
                ),
            ),
            2.0 * stream.width * matrices * self.ffn,
            _kept_between(stream, self.ffn, self.gated),
            inner=self.ffn,
        )


@dataclass(frozen=True)
class Experts:
    """A mixture: a router sends each token to ``top_k`` of the experts, which are feed-forward.

    ``shared``: width of what every token meets besides, 0 for nothing; ``weighed``: by a gate.
    """

    name: ClassVar[str] = "feed-forward"
    experts: int
    top_k: int
    ffn: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared: int = 0
    weighed: bool = False
    norms: int = 1

    @property
    def divided(self) -> tuple[tuple[str, str, int], ...]:
        """Experts are divided, and what is between their matrices."""
        return (
            ("tp", "ffn", self.ffn),
            *present(self.shared, ("tp", "ffn of shared experts", self.shared)),
            ("ep", "experts", self.experts),
        )

    def describe(self, stream: Stream) -> Described:
        """Return its numbers."""
        hidden, count, matrices = stream.hidden, self.experts, 3 if self.gated else 2
        each, biases = matrices * hidden * self.ffn, (matrices - 1) * self.ffn
        resting, sent = count - self.top_k, stream.width * self.top_k
        inner = self.top_k * self.ffn + self.shared
        router = hidden * (count + self.weighed)
        return Described(
            (
                stream.norm_weight("feed-forward norm", self.norms),
                Weight("feed-forward", count * each, "expert", idle=resting * each),
                *present(
                    self.bias,
                    Weight("feed-forward bias", count * biases, "expert", idle=resting * biases),
                    Weight("output bias", count * hidden, idle=resting * hidden),
                ),
                Weight("router", router + self.router_bias * count),
                *present(
                    self.shared,
                    Weight("shared experts", matrices * hidden * self.shared, "tensor"),
                ),
            ),
            2.0 * stream.sequence * (matrices * hidden * inner + router),
            (
                *_kept_between(stream, inner, self.gated),
                Kept("router scores", stream.sequence * count, "sequence"),
                Kept("dispatched", sent, "none"),
                Kept("combined", sent, "none"),
            ),
            dispatched=sent,
            inner=inner,
        )


def _kept_between(stream: Stream, inner: int, gated: bool) -> tuple[Kept, ...]:
    """What is kept around an activation; with a gate: gate and up, gate and product behind it."""
    elements = (2.0 if gated else 1.0) * stream.sequence * inner
    return (
        Kept("feed-forward norm input", stream.width, "sequence"),
        Kept("feed-forward input", stream.width, "gathered"),
        Kept("before activation", elements),
        Kept("activated", elements),
        *present(stream.dropout, Kept("feed-forward dropout mask", stream.width, "sequence", 1)),
    )
