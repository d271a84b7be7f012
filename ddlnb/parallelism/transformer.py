"""The layers of transformers: GPT-like and Llama-like, dense and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ddlnb.errors import require, require_whole
from ddlnb.parallelism.model import Attention, Kept, LayerShape, ModelShape, Region, Weight


@dataclass(frozen=True)
class Transformer:
    """The shape of a decoder. ``shape`` has its layers.

    - kv_heads 0: as many as heads; ffn 0: four times hidden; head_size 0: hidden / heads.
    - gated: the feed-forward part multiplies with a gate (SwiGLU), otherwise GELU.
    - tied: the head is the embedding; learned_positions: an embedding of positions is added.
    - bias: linear parts have biases; norm "layer" has scale and shift, "rms" only scale.
    - experts, top_k: a mixture of so many experts of which each token takes top_k.
    - flash: attention keeps no scores; dropout: masks are kept, a byte each.

    >>> gpt3 = gpt("gpt-3", layers=96, hidden=12288, heads=96, vocab=51200, sequence=2048)
    >>> f"{gpt3.shape.parameters / 1e9:.1f}"
    '174.6'
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    kv_heads: int = 0
    ffn: int = 0
    head_size: int = 0
    gated: bool = False
    tied: bool = False
    learned_positions: bool = False
    bias: bool = False
    norm: str = "rms"
    experts: int = 0
    top_k: int = 0
    flash: bool = True
    dropout: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("kv_heads", self.heads),
            ("ffn", 4 * self.hidden),
            ("head_size", self.hidden // max(1, self.heads)),
        ):
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        require_whole(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocab=self.vocab,
            sequence=self.sequence,
            kv_heads=self.kv_heads,
            ffn=self.ffn,
        )
        require(
            self.heads % self.kv_heads == 0,
            f"kv_heads {self.kv_heads} do not divide heads {self.heads}",
        )
        require(self.norm in ("rms", "layer"), f"norm {self.norm!r} must be 'rms' or 'layer'")
        require(
            (self.experts == 0 and self.top_k == 0) or 1 <= self.top_k <= self.experts,
            f"top_k {self.top_k} must be from 1 to the {self.experts} experts (both 0: dense)",
        )

    @cached_property
    def shape(self) -> ModelShape:
        """The layers: embedding, blocks, head; blocks are one object, ``layers`` times."""
        divided = [("tp", "heads", self.heads), ("tp", "ffn", self.ffn), ("sp", "sequence",
                   self.sequence), ("cp", "sequence", self.sequence)]  # fmt: skip
        if self.experts:
            divided.append(("ep", "experts", self.experts))
        else:
            divided.append(("ep", "experts (there are none)", 1))
        return ModelShape(
            self.name,
            (self._embedding(), *[self._block()] * self.layers, self._head()),
            (1, 1 + self.layers),
            (
                *divided,
                ("all-to-all", "key heads", self.kv_heads),
                ("kv", "kv_heads", self.kv_heads),
            ),
        )

    @property
    def _width(self) -> int:
        """Elements of what a block takes and gives, per sample."""
        return self.sequence * self.hidden

    def _norm(self, name: str) -> Weight:
        return Weight(name, self.hidden * (2 if self.norm == "layer" else 1))

    def _vocabulary(self, name: str) -> Weight:
        return Weight(name, self.vocab * self.hidden, "tensor", tied=self.tied)

    def _embedding(self) -> LayerShape:
        weights = [self._vocabulary("tokens")]
        if self.learned_positions:
            weights.append(Weight("positions", self._width))
        kept = (Kept("dropout mask", self._width, "sequence", 1),) if self.dropout else ()
        return LayerShape(
            "embedding",
            tuple(weights),
            0.0,
            self._width,
            kept=kept,
            regions=(Region("embedding", leaves=self._width),),
        )

    def _head(self) -> LayerShape:
        logits = self.sequence * self.vocab
        return LayerShape(
            "head",
            (self._norm("norm"), self._vocabulary("head")),
            2.0 * self.hidden * logits,
            0,
            kept=(
                Kept("norm input", self._width, "sequence"),
                Kept("head input", self._width, "gathered"),
                Kept("logits", logits, "tensor", -1),
            ),
            regions=(Region("head", enters=self._width),),
            loss_values=3 * self.sequence,  # the largest, the sum, the one that is asked for
        )

    def _block(self) -> LayerShape:
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        hidden, tokens, width = self.hidden, self.sequence, self._width
        weights = [
            self._norm("attention norm"),
            Weight("query", hidden * query, "tensor"),
            Weight("key, value", 2 * hidden * key, "tensor", self.kv_heads),
            Weight("attention output", query * hidden, "tensor"),
        ]
        if self.bias:
            weights += [
                Weight("query bias", query, "tensor"),
                Weight("key, value bias", 2 * key, "tensor", self.kv_heads),
                Weight("attention output bias", hidden),
            ]
        core_flops = 4.0 * tokens * tokens * query
        attention_flops = 2.0 * tokens * (2 * hidden * query + 2 * hidden * key) + core_flops
        kept = [
            Kept("attention norm input", width, "sequence"),
            Kept("attention input", width, "gathered"),
            Kept("query", tokens * query),
            Kept("key, value", 2.0 * tokens * key, pieces=self.kv_heads),
            *self._core(),
            Kept("attention output", tokens * query),
            *self._mask("attention dropout mask"),
        ]
        return LayerShape(
            "block",
            (*weights, self._norm("feed-forward norm"), *self._feed_forward_weights()),
            attention_flops + self._feed_forward_flops(),
            width,
            core_flops,
            (
                *kept,
                Kept("feed-forward norm input", width, "sequence"),
                *self._feed_forward_kept(),
            ),
            (Region("attention", width, width), Region("feed-forward", width, width)),
            Attention(tokens * query, 2 * tokens * key, self.kv_heads),
            tokens * self.top_k * hidden,
        )

    def _core(self) -> list[Kept]:
        if self.flash:
            return [Kept("log sum of scores", self.heads * self.sequence, "tensor", 4)]
        scores = self.heads * self.sequence**2
        kept = [Kept("scores", scores, core=True)]
        if self.dropout:
            kept.append(Kept("score mask", scores, "tensor", 1, core=True))
            kept.append(Kept("dropped scores", scores, core=True))
        return kept

    def _mask(self, name: str) -> list[Kept]:
        return [Kept(name, self._width, "sequence", 1)] if self.dropout else []

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    def _feed_forward_weights(self) -> list[Weight]:
        split, copies = ("expert", self.experts) if self.experts else ("tensor", 1)
        matrices = Weight("feed-forward", copies * self._matrices * self.hidden * self.ffn, split)
        weights = [matrices]
        if self.bias:
            into = self._matrices - 1
            weights.append(Weight("feed-forward bias", copies * into * self.ffn, split))
            out = copies * self.hidden
            weights.append(Weight("output bias", out, "none"))
        if self.experts:
            weights.append(Weight("router", self.hidden * self.experts))
        return weights

    def _feed_forward_flops(self) -> float:
        flops = 2.0 * self._width * self._matrices * self.ffn * max(1, self.top_k)
        return flops + 2.0 * self._width * self.experts

    def _feed_forward_kept(self) -> list[Kept]:
        tokens = self.sequence * max(1, self.top_k)
        kept = [Kept("feed-forward input", self._width, "gathered")]
        if self.experts:
            kept.append(Kept("router scores", self.sequence * self.experts, "sequence"))
            kept.append(Kept("dispatched", tokens * self.hidden, "none"))
            kept.append(Kept("combined", tokens * self.hidden, "none"))
        inner = tokens * self.ffn
        if self.gated:  # gate, up, activated gate, their product
            kept += [Kept("gate and up", 2.0 * inner), Kept("activated, product", 2.0 * inner)]
        else:
            kept += [Kept("before activation", inner), Kept("activated", inner)]
        return [*kept, *self._mask("feed-forward dropout mask")]


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int, sequence: int) -> Transformer:
    """Return a GPT as Megatron trains it: biases, learned positions, tied, scores kept, dropout."""
    return Transformer(
        name, layers, hidden, heads, vocab, sequence,
        tied=True, learned_positions=True, bias=True, norm="layer", flash=False, dropout=True,
    )  # fmt: skip


def llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    sequence: int,
    tied: bool = False,
) -> Transformer:
    """Return a Llama: gated, RMS norms, no biases, flash attention; kv_heads share key heads."""
    return Transformer(
        name, layers, hidden, heads, vocab, sequence, kv_heads, ffn, gated=True, tied=tied
    )
