"""What one rank stores: its stage's layers, its share of their parameters, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, pairwise

from ddlnb.errors import look_up, require
from ddlnb.parallelism.layout import Layout, require_divides
from ddlnb.parallelism.model import LayerShape, ModelShape
from ddlnb.parallelism.partition import even_partition
from ddlnb.parallelism.parts import LOGIT, MULTIPLIED, Kept, Weight
from ddlnb.parallelism.schedules import (
    SCHEDULES,
    in_flight,
    most_kept,
    schedule,
)
from ddlnb.registry import CACHES


@dataclass(frozen=True)
class Precision:
    """Bytes per parameter, gradient, its optimizer states, activation, and loss input (logits).

    ``reduced`` is what a gradient takes while it is exchanged, ``multiplied`` an input of matrices
    that is kept, ``dispatched`` an element that is sent to experts. Norms, routers, the core of
    attention, the embedding, the head and what goes between stages stay as wide as activations.
    """

    name: str
    parameter: float
    gradient: float
    optimizer: float
    activation: float
    reduced: float
    logit: float = 4
    multiplied: float = 0  # 0: as activations
    dispatched: float = 0

    @property
    def states(self) -> float:
        """Bytes of a parameter with its gradient and its optimizer states."""
        return self.parameter + self.gradient + self.optimizer


PRECISIONS = {
    one.name: one
    for one in (
        # Adam keeps a copy of the parameters and two moments, each in 4 bytes (ZeRO, section 3.1).
        Precision("mixed", 2, 2, 12, 2, 2),
        # Gradients are added up in 4 bytes, and exchanged so.
        Precision("mixed, fp32 gradients", 2, 4, 12, 2, 4),
        # Transformer Engine in Megatron-Core: parameters in bf16, what matrices multiply in fp8.
        Precision("fp8", 2, 4, 12, 2, 4, multiplied=1),
        # DeepSeek-V3 (2412.19437, section 3.3): parameters in fp8 beside those of the optimizer,
        # its moments in bf16, tokens are sent to experts in fp8 and come back in bf16.
        Precision("fp8, DeepSeek-V3", 1, 4, 8, 2, 4, multiplied=1, dispatched=1),
        # NVFP4 (2509.25149, section 4): 4 bits and a scale of 8 bits for every 16 elements.
        Precision("nvfp4", 2, 4, 12, 2, 4, multiplied=9 / 16),
        Precision("fp32", 4, 4, 8, 4, 4),
        Precision("fp64", 8, 8, 16, 8, 8, 8),
    )
}


def get_precision(name: str | Precision) -> Precision:
    """Return the precision of this name; raises look_up for another one.

    >>> get_precision("mixed").optimizer
    12
    """
    return name if isinstance(name, Precision) else look_up("precision", name, PRECISIONS)


@dataclass(frozen=True)
class PipelineStage:
    """What one pipeline stage holds: its chunks of layers in order, each with how many alike."""

    index: int
    chunks: tuple[tuple[tuple[LayerShape, int], ...], ...]

    @property
    def layers(self) -> tuple[tuple[LayerShape, int], ...]:
        """All layers of all chunks, each with how many alike."""
        return tuple(one for chunk in self.chunks for one in chunk)

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum(layer.forward_flops * count for layer, count in self.layers)


def require_fits(model: ModelShape, layout: Layout) -> None:
    """Raise InputError, with the numbers that would do, if the layout does not divide the model.

    >>> from ddlnb.parallelism.model import llama
    >>> model = llama("small", 4, 64, 6, 6, 256, 1000, 128).shape
    >>> require_fits(model, Layout(tp=4))
    Traceback (most recent call last):
    ddlnb.errors.InputError: tp 4 does not divide heads 6 of model 'small'; use one of 1, 2, 3, 6
    """
    degrees = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep}
    degrees["sp"] = layout.tp * layout.cp if layout.sequence_parallel else 1
    # All-to-all context parallelism divides the heads that tensor parallelism has left.
    degrees["all-to-all"] = layout.cp * layout.tp if layout.context == "all-to-all" else 1
    names = {"sp": "tp * cp", "all-to-all": "tp * cp"}
    for axis, what, number in model.divided:
        if axis in degrees:
            require_divides(names.get(axis, axis), degrees[axis], what, number, model.name)
    heads = {what: number for axis, what, number in model.divided if axis == "kv"}
    for what, number in heads.items():
        if number % layout.tp and layout.tp % number:
            require_divides("tp", layout.tp, what, number, model.name)
    blocks, parts = len(model.block_layers), layout.pp * layout.vpp
    require(
        parts <= blocks,
        f"pp {layout.pp} times vpp {layout.vpp} is more than the {blocks} layers of model "
        f"{model.name!r}; use at most pp {blocks // layout.vpp} or fewer chunks",
    )


@lru_cache(maxsize=4096)
def pipeline_stages(
    model: ModelShape, pp: int, vpp: int = 1, schedule: str = "interleaved"
) -> tuple[PipelineStage, ...]:
    """Return the stages: blocks partitioned evenly (`even_partition`).

    Chunk number c belongs to stage c mod pp, or where the schedule puts it. What is before the
    blocks goes to the first chunk, what is behind them to the last one.
    """
    first, stop = model.blocks
    parts = pp * vpp
    ends = list(accumulate(even_partition(stop - first, parts), initial=first))
    ends[0], ends[-1] = 0, len(model.layers)
    chunks = [_counted(model.layers[start:end]) for start, end in pairwise(ends)]
    kind = SCHEDULES[schedule]
    return tuple(
        PipelineStage(index, tuple(chunks[kind.part(index, number, pp)] for number in range(vpp)))
        for index in range(pp)
    )


CACHES.append(pipeline_stages.cache_clear)


def _counted(layers: Sequence[LayerShape]) -> tuple[tuple[LayerShape, int], ...]:
    """Return neighbours that are the same object once, with how many they are."""
    runs = [list(run) for _, run in groupby(layers, key=id)]
    return tuple((run[0], len(run)) for run in runs)


@dataclass(frozen=True)
class Share:
    """Elements of parameters on one rank, before ZeRO shards them.

    ``dense`` are held alike by all ranks of ``data``, ``experts`` by those of ``expert-data``.
    ``repeated`` is the part of dense that all ranks of tp hold alike; ``tied`` the part that the
    first and the last stage hold alike.
    """

    dense: int
    experts: int
    repeated: int
    tied: int

    @property
    def elements(self) -> int:
        """All elements on this rank."""
        return self.dense + self.experts

    @property
    def by_axis(self) -> dict[str, int]:
        """Elements by the axis of the ranks that hold them alike."""
        return {"data": self.dense, "expert-data": self.experts}


def elements_on_rank(weight: Weight, layout: Layout, adapters: bool = False) -> int:
    """Return the elements of a tensor on one rank, rounded up where ranks have different many.

    Or those of its adapters, which are divided like it.
    """
    elements = layout.lora * weight.sides if adapters else weight.elements
    ways = {
        "tensor": min(layout.tp, weight.pieces or layout.tp),
        "expert": layout.ep * layout.tp,
        "none": 1,
    }[weight.split]
    return -(-elements // ways)


def shares_by_layer(
    stage: PipelineStage, layout: Layout, adapters: bool = False
) -> list[tuple[Share, int]]:
    """Return what one rank holds of each layer of a stage, and how many layers are alike.

    Of its parameters, or of their ``adapters``.

    A tied tensor is held once by a stage that has both of its layers, with the first of them.
    """
    shares = []
    has_tied = False
    for layer, count in stage.layers:
        held = {"tensor": 0, "expert": 0, "none": 0}
        tied = 0
        for weight in layer.weights:
            elements = elements_on_rank(weight, layout, adapters)
            if weight.tied and has_tied:
                continue
            if weight.tied:
                tied, has_tied = elements, True
            held[weight.split] += elements
        dense = held["tensor"] + held["none"]
        shares.append((Share(dense, held["expert"], held["none"], tied), count))
    return shares


def share_of(stage: PipelineStage, layout: Layout, adapters: bool = False) -> Share:
    """Return the elements of parameters, or of adapters, that one rank of this stage holds."""
    shares = shares_by_layer(stage, layout, adapters)
    return Share(
        sum(share.dense * count for share, count in shares),
        sum(share.experts * count for share, count in shares),
        sum(share.repeated * count for share, count in shares),
        sum(share.tied * count for share, count in shares),
    )


def sharded(elements: int, ways: int) -> int:
    """Return the elements of the largest of equal shards.

    >>> sharded(10, 4)
    3
    """
    return -(-elements // ways)


def left_of(share: Share, layout: Layout, zero: int) -> int:
    """Return the elements that a rank keeps of what is sharded from this degree of ZeRO on.

    Experts have fewer replicas to be sharded over than the rest.
    """
    if layout.zero < zero:
        return share.elements
    dense = sharded(share.dense, layout.shards)
    return dense + sharded(share.experts, layout.shards // layout.ep)


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, and how many chunks of micro batches are in flight at the peak.

    ``gathered`` is what ZeRO-3 gathers of the largest layer: its parameters and whole gradients.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    in_flight: int

    @property
    def states(self) -> float:
        """Parameters, gradients and optimizer states together."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of them. What allocators waste and libraries take comes on top."""
        return self.states + self.activations + self.gathered


def memory(
    model: ModelShape,
    layout: Layout,
    precision: str | Precision = "mixed",
    stage: int = 0,
) -> Memory:
    """Return the bytes on a rank of this pipeline stage.

    Model states as in ZeRO (arXiv 1910.02054, section 5), activations as in 2205.05198, section 4,
    each summed over the layers of the stage. With zero-bubble a micro batch counts until its
    weights' gradients are there; with full recomputation it is computed again for both. Raises
    InputError for a layout that does not divide the model.

    >>> from ddlnb.parallelism.model import gpt
    >>> model = gpt("7.5 B", layers=36, hidden=4096, heads=32, vocab=51200, sequence=2048).shape
    >>> [f"{memory(model, Layout(dp=64, zero=zero)).states / 1e9:.1f}" for zero in range(4)]
    ['119.5', '31.3', '16.6', '1.9']
    """
    require_fits(model, layout)
    precision = get_precision(precision)
    require(0 <= stage < layout.pp, f"stage {stage} must be one of 0 to {layout.pp - 1}")
    held = pipeline_stages(model, layout.pp, layout.vpp, layout.schedule)[stage]
    trained = share_of(held, layout, adapters=bool(layout.lora))

    flying = in_flight(layout.schedule, layout.pp, layout.micro_batches, layout.vpp, stage)
    return Memory(
        parameters=(
            left_of(share_of(held, layout), layout, 3)
            + left_of(trained, layout, 3) * (layout.lora > 0)
        )
        * precision.parameter,
        gradients=left_of(trained, layout, 2) * precision.gradient,
        optimizer=left_of(trained, layout, 1) * precision.optimizer,
        activations=_activations(model, held, layout, precision),
        gathered=_gathered(held, layout, precision),
        in_flight=flying,
    )


def kept_bytes(
    layer: LayerShape, layout: Layout, precision: Precision, recomputation: str = "none"
) -> float:
    """Return the bytes that one micro batch keeps of a layer until its backward pass."""
    samples = layout.micro_batch / layout.cp
    if recomputation == "full":
        ways = layout.tp if layout.sequence_parallel else 1
        return layer.output_elements * samples * precision.activation / ways
    found = sum(
        _bytes(kept, layout, precision)
        for kept in layer.kept
        if not (recomputation == "selective" and kept.core)
    )
    if layout.cp > 1 and layout.context == "all-to-all" and layer.attention:
        # The core of attention keeps its output by heads, what follows the same by tokens.
        found += layer.attention.query * precision.activation / layout.tp
    return samples * found


def _bytes(kept: Kept, layout: Layout, precision: Precision) -> float:
    """Return the bytes of a sample's part on one rank."""
    by_sequence = layout.tp if layout.sequence_parallel else 1
    ways = {
        "tensor": min(layout.tp, kept.pieces or layout.tp),
        "sequence": by_sequence,
        "gathered": by_sequence if layout.gather_again else 1,
        "none": 1,
    }[kept.split]
    special = {LOGIT: precision.logit, MULTIPLIED: precision.multiplied}
    width = special.get(int(kept.bytes), kept.bytes) or precision.activation
    return kept.elements * width / ways


def _activations(
    model: ModelShape, stage: PipelineStage, layout: Layout, precision: Precision
) -> float:
    """Return the peak: what micro batches in flight keep, and what is computed again.

    Layers are computed again when those behind them have let go of what they kept.
    """
    blocks = set(map(id, model.block_layers))
    kept: list[float] = []  # of every chunk
    peak = 0.0
    before = 0.0
    for chunk in stage.chunks:
        for layer, count in chunk:
            how = layout.recomputation if id(layer) in blocks else "none"
            each, whole = (kept_bytes(layer, layout, precision, one) for one in (how, "none"))
            before += count * each
            peak = max(peak, before + whole - each)
        kept.append(before - sum(kept))
    kind, rounds = SCHEDULES[layout.schedule], layout.micro_batches
    if kind.splits:  # gradients of weights need no logits
        samples = layout.micro_batch / layout.cp
        logits = [
            samples
            * sum(
                _bytes(one, layout, precision)
                for layer, _ in chunk
                for one in layer.kept
                if one.bytes == LOGIT
            )
            for chunk in stage.chunks
        ]
        passes = schedule(kind.name, layout.pp, rounds, layout.vpp)[stage.index]
        return most_kept(passes, kept, logits) + peak - before
    if layout.vpp > 1:  # of chunks that differ, which are in flight decides
        passes = schedule(kind.name, layout.pp, rounds, layout.vpp)[stage.index]
        return most_kept(passes, kept, kept) + peak - before
    flying = in_flight(kind.name, layout.pp, rounds, 1, stage.index)
    return flying * sum(kept) + peak - before


def _gathered(stage: PipelineStage, layout: Layout, precision: Precision) -> float:
    if layout.zero < 3 or layout.shards == 1:
        return 0.0
    largest = max(
        sum(elements_on_rank(weight, layout) for weight in layer.weights)
        for layer, _ in stage.layers
    )
    return float(largest * (precision.parameter + precision.reduced))
