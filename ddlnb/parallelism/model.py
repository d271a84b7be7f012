"""A model as its layers: what each stores, computes and keeps per sample, and what splits it.

Everything that a strategy says is a sum over these layers; no formula of it is of one architecture.
Transformers, GPT-like and Llama-like, dense and mixtures of experts, are made here, large ones by
name with the shapes that their authors publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ddlnb.errors import require, require_whole
from ddlnb.parallelism.parts import (
    LOGIT,
    Attention,
    Described,
    Experts,
    FeedForward,
    Kept,
    LayerPart,
    Region,
    SelfAttention,
    Weight,
    present,
)
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True, eq=False)  # compared by identity, which is quick: blocks are one object
class LayerShape:
    """One layer: an embedding, a block, a head. FLOPs and elements are those of one sample.

    ``core_flops``, a part of ``forward_flops``, is the core of attention. A backward pass takes
    twice the FLOPs of a forward pass. ``dispatched`` are elements that are sent to experts and come
    back. ``loss_values`` are values per sample which a loss over split logits adds up over ranks.
    ``inner``: elements between the matrices of feed-forward parts that one token keeps.
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
    inner: int = 0

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
    def active_parameters(self) -> int:
        """Number of parameters that one token meets, the whole embedding included."""
        return self.parameters - sum(one.idle for layer in self.layers for one in layer.weights)

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


Block = tuple[LayerPart, ...]
NORMS = {"none": 0, "rms": 1, "layer": 2}  # parameters of an element: none, a scale, a shift too


MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Transformer:
    """The shape of a decoder. ``shape`` has its layers.

    - kv_heads 0: as many as heads; ffn 0: four times hidden; head_size 0: hidden / heads.
    - gated: the feed-forward part multiplies with a gate (SwiGLU), otherwise GELU.
    - tied: the head is the embedding; learned_positions: an embedding of positions is added.
    - bias: linear parts have biases; norm "layer" has scale and shift, "rms" only scale.
    - experts, top_k: a mixture of so many experts of which each token takes top_k.
    - flash: attention keeps no scores; dropout: masks are kept, a byte each.
    - positions: how many learned positions there are; 0: as many as a sequence has tokens.
    - blocks: the parts of every layer, where layers differ or have further kinds of parts; what is
      said above of heads and experts then stands for most of them.

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
    positions: int = 0
    blocks: tuple[Block, ...] = ()

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
            self.layers <= MOST_LAYERS,
            f"layers {self.layers:,} exceed {MOST_LAYERS:,}, the most that are played one by one",
        )
        require(
            self.heads % self.kv_heads == 0,
            f"kv_heads {self.kv_heads} do not divide heads {self.heads}",
        )
        require(self.norm in NORMS, f"norm {self.norm!r} must be one of {', '.join(NORMS)}")
        require(
            (self.experts == 0 and self.top_k == 0) or 1 <= self.top_k <= self.experts,
            f"top_k {self.top_k} must be from 1 to the {self.experts} experts (both 0: dense)",
        )
        require(
            len(self.blocks) in (0, self.layers),
            f"{len(self.blocks)} blocks do not make {self.layers} layers; give one for each",
        )

    @cached_property
    def shape(self) -> ModelShape:
        """The layers: embedding, blocks, head; equal blocks are one object."""
        blocks = self.blocks or (self._usual_block(),) * self.layers
        found = {block: [part.describe(self) for part in block] for block in dict.fromkeys(blocks)}
        made = {block: self._block(parts) for block, parts in found.items()}
        divided = [one for parts in found.values() for part in parts for one in part.divided]
        return ModelShape(
            self.name,
            (self._embedding(), *[made[block] for block in blocks], self._head()),
            (1, 1 + self.layers),
            (
                *dict.fromkeys(divided),
                ("sp", "sequence", self.sequence),
                ("cp", "sequence", self.sequence),
                *present(not self.experts, ("ep", "experts (there are none)", 1)),
            ),
        )

    @property
    def width(self) -> int:
        """Elements of what a block takes and gives, per sample."""
        return self.sequence * self.hidden

    def norm_weight(self, name: str, count: int = 1) -> Weight:
        """Return the parameters of so many norms of a token's elements."""
        return Weight(name, count * self.hidden * NORMS[self.norm])

    def _usual_block(self) -> Block:
        attention = SelfAttention(
            self.heads, self.kv_heads, self.head_size,
            qkv_bias=self.bias, output_bias=self.bias,
        )  # fmt: skip
        if self.experts:
            return attention, Experts(self.experts, self.top_k, self.ffn, self.gated, self.bias)
        return attention, FeedForward(self.ffn, self.gated, self.bias)

    def _vocabulary(self, name: str) -> Weight:
        return Weight(name, self.vocab * self.hidden, "tensor", tied=self.tied)

    def _embedding(self) -> LayerShape:
        positions = (self.positions or self.sequence) * self.hidden
        return LayerShape(
            "embedding",
            (
                self._vocabulary("tokens"),
                *present(self.learned_positions, Weight("positions", positions)),
            ),
            0.0,
            self.width,
            kept=present(self.dropout, Kept("dropout mask", self.width, "sequence", 1)),
            regions=(Region("embedding", leaves=self.width),),
        )

    def _head(self) -> LayerShape:
        logits = self.sequence * self.vocab
        return LayerShape(
            "head",
            (self.norm_weight("norm"), self._vocabulary("head")),
            2.0 * self.hidden * logits,
            0,
            kept=(
                Kept("norm input", self.width, "sequence"),
                Kept("head input", self.width, "gathered"),
                Kept("logits", logits, "tensor", LOGIT),
            ),
            regions=(Region("head", enters=self.width),),
            loss_values=3 * self.sequence,  # the largest, the sum, the one that is asked for
        )

    def _block(self, found: list[Described]) -> LayerShape:
        return LayerShape(
            "block",
            tuple(weight for one in found for weight in one.weights),
            sum(one.flops for one in found),
            self.width,
            sum(one.core_flops for one in found),
            tuple(kept for one in found for kept in one.kept),
            tuple(Region(one.name, self.width, self.width) for one in found),
            next((one.attention for one in found if one.attention), None),
            sum(one.dispatched for one in found),
            inner=sum(one.inner for one in found),
        )


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
