"""A model as its layers: what each stores, computes and keeps per sample, and what splits it.

Everything that a strategy says is a sum over these layers; no formula of it is of one architecture.
Transformers, GPT-like and Llama-like, dense and mixtures of experts, are made here, large ones by
name with the shapes that their authors publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ddlnb.errors import look_up, require, require_whole
from ddlnb.parallelism.parts import Attention, Kept, Region, Weight
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True, eq=False)  # compared by identity, which is quick: blocks are one object
class LayerShape:
    """One layer: an embedding, a block, a head. FLOPs and elements are those of one sample.

    ``core_flops``, a part of ``forward_flops``, is the core of attention. A backward pass takes
    twice the FLOPs of a forward pass. ``dispatched`` are elements that are sent to experts and come
    back. ``loss_values`` are values per sample which a loss over split logits adds up over ranks.
    """

    name: str
    weights: tuple[Weight, ...]
    forward_flops: float
    output_elements: int
    core_flops: float = 0.0
    kept: tuple[Kept, ...] = ()
    regions: tuple[Region, ...] = ()
    attention: Attention | None = None
    dispatched: int = 0
    loss_values: int = 0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """Layers in the order of the forward pass, and what must divide.

    ``blocks`` says which layers are alike and can be dealt to pipeline stages; those before them go
    to the first stage, those behind to the last one. ``divided`` names what an axis divides, such
    as ("tp", "heads", 32).
    """

    name: str
    layers: tuple[LayerShape, ...]
    blocks: tuple[int, int]  # the first, and the one after the last
    divided: tuple[tuple[str, str, int], ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.layers), f"model {self.name!r} has no layers")
        first, stop = self.blocks
        require(
            0 <= first < stop <= len(self.layers),
            f"blocks {self.blocks} are not layers of model {self.name!r}, 0 to {len(self.layers)}",
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, a tied embedding once."""
        tied = sum(one.elements for layer in self.layers for one in layer.weights if one.tied)
        return sum(layer.parameters for layer in self.layers) - tied // 2

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass of one sample, FMA = 2."""
        return sum(layer.forward_flops for layer in self.layers)

    def iteration_flops(self, samples: int, recomputation: str = "none") -> float:
        """Return the FLOPs of one iteration: 3 forward passes' worth, and what is recomputed.

        Whole layers are computed again in blocks only, as in arXiv 2104.04473, section 5.1 (there
        with the head's FLOPs once: 96 B q L h^2 (1 + q/(6h) + V/(16 L h))).
        """
        again = sum(recomputed_flops(layer, recomputation) for layer in self.block_layers)
        return samples * (3 * self.forward_flops + again)

    @property
    def block_layers(self) -> tuple[LayerShape, ...]:
        """The layers that are alike, such as the blocks of a transformer."""
        return self.layers[slice(*self.blocks)]


def recomputed_flops(layer: LayerShape, recomputation: str) -> float:
    """Return the FLOPs that one sample's backward pass computes again in a block."""
    return {"none": 0.0, "selective": layer.core_flops, "full": layer.forward_flops}[recomputation]


def model_of(workload: Workload, outputs: Mapping[str, int] | None = None) -> ModelShape:
    """Return the layers of a traced workload, for what splits no layer: data, ZeRO, pipelines.

    ``outputs`` gives the elements per sample that leave layers, by name: a pipeline that is cut
    behind a layer without them has unknown messages, and its volumes raise InputError. What layers
    keep for the backward pass is not traced.

    >>> import ddlnb
    >>> model_of(ddlnb.read_profile("small-conv_b64_cpu-1thread")).parameters
    954002
    """
    outputs = outputs or {}
    unknown = set(outputs) - set(workload.layer_position)
    require(not unknown, f"workload {workload.model!r} has no layers {', '.join(sorted(unknown))}")
    weights: dict[str, list[Weight]] = {}
    for gradient in workload.gradients:
        weights.setdefault(gradient.layer, []).append(Weight(gradient.name, gradient.elements))
    layers = tuple(
        LayerShape(
            layer.name,
            tuple(weights.get(layer.name, ())),
            layer.forward_flops / workload.local_batch,
            outputs.get(layer.name, 0),
        )
        for layer in workload.layers
    )
    divided = (("tp", "splittable layers", 1), ("cp", "splittable layers", 1))
    return ModelShape(workload.model, layers, (0, len(layers)), divided)


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
        return ModelShape(
            self.name,
            (self._embedding(), *[self._block()] * self.layers, self._head()),
            (1, 1 + self.layers),
            (
                ("tp", "heads", self.heads),
                ("tp", "ffn", self.ffn),
                ("sp", "sequence", self.sequence),
                ("cp", "sequence", self.sequence),
                ("ep", "experts" if self.experts else "experts (there are none)", self.copies),
                ("all-to-all", "key heads", self.kv_heads),
                ("kv", "kv_heads", self.kv_heads),
            ),
        )

    @property
    def copies(self) -> int:
        """How many feed-forward parts a block has: its experts, or one."""
        return max(1, self.experts)

    @property
    def width(self) -> int:
        """Elements of what a block takes and gives, per sample."""
        return self.sequence * self.hidden

    def _norm(self, name: str) -> Weight:
        return Weight(name, self.hidden * (2 if self.norm == "layer" else 1))

    def _vocabulary(self, name: str) -> Weight:
        return Weight(name, self.vocab * self.hidden, "tensor", tied=self.tied)

    def _embedding(self) -> LayerShape:
        return LayerShape(
            "embedding",
            (
                self._vocabulary("tokens"),
                *_if(self.learned_positions, Weight("positions", self.width)),
            ),
            0.0,
            self.width,
            kept=_if(self.dropout, Kept("dropout mask", self.width, "sequence", 1)),
            regions=(Region("embedding", leaves=self.width),),
        )

    def _head(self) -> LayerShape:
        logits = self.sequence * self.vocab
        return LayerShape(
            "head",
            (self._norm("norm"), self._vocabulary("head")),
            2.0 * self.hidden * logits,
            0,
            kept=(
                Kept("norm input", self.width, "sequence"),
                Kept("head input", self.width, "gathered"),
                Kept("logits", logits, "tensor", -1),
            ),
            regions=(Region("head", enters=self.width),),
            loss_values=3 * self.sequence,  # the largest, the sum, the one that is asked for
        )

    def _block(self) -> LayerShape:
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        matrices = 3 if self.gated else 2  # of a feed-forward part
        core_flops = 4.0 * self.sequence**2 * query
        attention = 4.0 * self.width * (query + key) + core_flops
        feed_forward = 2.0 * self.width * matrices * self.ffn * max(1, self.top_k)
        return LayerShape(
            "block",
            self._block_weights(query, key, matrices),
            attention + feed_forward + 2.0 * self.width * self.experts,
            self.width,
            core_flops,
            self._block_kept(query, key),
            tuple(Region(name, self.width, self.width) for name in ("attention", "feed-forward")),
            Attention(self.sequence * query, 2 * self.sequence * key, self.kv_heads),
            self.width * self.top_k,
        )

    def _block_weights(self, query: int, key: int, matrices: int) -> tuple[Weight, ...]:
        hidden, inner = self.hidden, self.copies * self.ffn
        split = "expert" if self.experts else "tensor"
        return (
            self._norm("attention norm"),
            Weight("query", hidden * query, "tensor"),
            Weight("key, value", 2 * hidden * key, "tensor", self.kv_heads),
            Weight("attention output", query * hidden, "tensor"),
            *_if(
                self.bias,
                Weight("query bias", query, "tensor"),
                Weight("key, value bias", 2 * key, "tensor", self.kv_heads),
                Weight("attention output bias", hidden),
            ),
            self._norm("feed-forward norm"),
            Weight("feed-forward", matrices * hidden * inner, split),
            *_if(
                self.bias,
                Weight("feed-forward bias", (matrices - 1) * inner, split),
                Weight("output bias", self.copies * hidden),
            ),
            *_if(self.experts, Weight("router", hidden * self.experts)),
        )

    def _block_kept(self, query: int, key: int) -> tuple[Kept, ...]:
        tokens, width, scores = self.sequence, self.width, self.heads * self.sequence**2
        dispatched, inner = width * max(1, self.top_k), tokens * max(1, self.top_k) * self.ffn
        return (
            Kept("attention norm input", width, "sequence"),
            Kept("attention input", width, "gathered"),
            Kept("query", tokens * query),
            Kept("key, value", 2.0 * tokens * key, pieces=self.kv_heads),
            *_if(self.flash, Kept("log sum of scores", self.heads * tokens, "tensor", 4)),
            *_if(not self.flash, Kept("scores", scores, core=True)),
            *_if(
                self.dropout and not self.flash,
                Kept("score mask", scores, "tensor", 1, core=True),
                Kept("dropped scores", scores, core=True),
            ),
            Kept("attention output", tokens * query),
            *_if(self.dropout, Kept("attention dropout mask", width, "sequence", 1)),
            Kept("feed-forward norm input", width, "sequence"),
            Kept("feed-forward input", width, "gathered"),
            *_if(
                self.experts,
                Kept("router scores", tokens * self.experts, "sequence"),
                Kept("dispatched", dispatched, "none"),
                Kept("combined", dispatched, "none"),
            ),
            # With a gate: gate and up, the activated gate and the product.
            Kept("before activation", (2.0 if self.gated else 1) * inner),
            Kept("activated", (2.0 if self.gated else 1) * inner),
            *_if(self.dropout, Kept("feed-forward dropout mask", width, "sequence", 1)),
        )


def _if(condition: object, *things: Any) -> tuple[Any, ...]:
    """Return these things where the condition holds, otherwise nothing."""
    return things if condition else ()


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


_SHAPES = (
    # The Llama 3 Herd of Models (arXiv 2407.21783), Table 3; Llama 3.2 model cards.
    llama("llama3-1b", 16, 2048, 32, 8, 8192, 128256, 8192, tied=True),
    llama("llama3-3b", 28, 3072, 24, 8, 8192, 128256, 8192, tied=True),
    llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192),
    llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192),
    llama("llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192),
    # Llama 2 (arXiv 2307.09288), appendix A.1.
    llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
    llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
    llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
    # Language Models are Few-Shot Learners (arXiv 2005.14165), Table 2.1.
    gpt("gpt3-1.3b", 24, 2048, 16, 51200, 2048),
    gpt("gpt3-6.7b", 32, 4096, 32, 51200, 2048),
    gpt("gpt3-13b", 40, 5120, 40, 51200, 2048),
    gpt("gpt3-175b", 96, 12288, 96, 51200, 2048),
)
SHAPES = {shape.name: shape for shape in _SHAPES}
OF_YOUR_OWN = (
    "a model of your own is given by its sizes (docs/large_scale.md#a-model-of-your-own); one that "
    "a GPU can hold alone, such as my.py:task, is for `ddlnb advise`"
)


def get_shape(name: str | Transformer) -> Transformer:
    """Return the shape of that name, or the shape itself; "llama-8b" is the newest Llama of it.

    Raises UnknownName.

    >>> get_shape("llama-8b").name
    'llama3-8b'
    """
    if isinstance(name, Transformer):
        return name
    known = SHAPES | {
        shape.name.replace("llama3-", "llama-").replace("gpt3-", "gpt-"): shape for shape in _SHAPES
    }
    found = known.get(name.casefold())
    return found or look_up("large model", name, SHAPES, OF_YOUR_OWN)
