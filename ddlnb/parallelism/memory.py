"""What one rank stores: parameters, gradients, optimizer states, activations, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.errors import require
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Kept, LayerShape, ModelShape
from ddlnb.parallelism.precision import Precision, get_precision
from ddlnb.parallelism.schedules import chunks_in_flight, in_flight
from ddlnb.parallelism.shares import elements_on_rank, sharded, share_of
from ddlnb.parallelism.stages import PipelineStage, pipeline_stages, require_fits


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
    weights' gradients are there. Raises InputError for a layout that does not divide the model.

    >>> from ddlnb.parallelism.transformer import gpt
    >>> model = gpt("7.5 B", layers=36, hidden=4096, heads=32, vocab=51200, sequence=2048).shape
    >>> [f"{memory(model, Layout(dp=64, zero=zero)).states / 1e9:.1f}" for zero in range(4)]
    ['119.5', '31.3', '16.6', '1.9']
    """
    require_fits(model, layout)
    precision = get_precision(precision)
    require(0 <= stage < layout.pp, f"stage {stage} must be one of 0 to {layout.pp - 1}")
    held = pipeline_stages(model, layout.pp, layout.vpp)[stage]
    share = share_of(held, layout)

    def elements(zero: int) -> int:
        """Return the elements on one rank of what is sharded from this degree of ZeRO on."""
        if layout.zero < zero:
            return share.elements
        dense = sharded(share.dense, layout.shards)
        return dense + sharded(share.experts, layout.shards // layout.ep)

    flying = in_flight(layout.schedule, layout.pp, layout.micro_batches, layout.vpp, stage)
    return Memory(
        parameters=elements(3) * precision.parameter,
        gradients=elements(2) * precision.gradient,
        optimizer=elements(1) * precision.optimizer,
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
        kept.elements * _width(kept, precision) / _ways(kept, layout)
        for kept in layer.kept
        if not (recomputation == "selective" and kept.core)
    )
    if layout.cp > 1 and layout.context == "all-to-all" and layer.attention:
        # The core of attention keeps its output by heads, what follows the same by tokens.
        found += layer.attention.query * precision.activation / layout.tp
    return samples * found


def _width(kept: Kept, precision: Precision) -> float:
    if kept.bytes < 0:
        return precision.logit
    return kept.bytes or precision.activation


def _ways(kept: Kept, layout: Layout) -> int:
    by_sequence = layout.tp if layout.sequence_parallel else 1
    return {
        "tensor": min(layout.tp, kept.pieces or layout.tp),
        "sequence": by_sequence,
        "gathered": by_sequence if layout.gather_again else 1,
        "none": 1,
    }[kept.split]


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
    flying = chunks_in_flight(
        layout.schedule, layout.pp, layout.micro_batches, layout.vpp, stage.index
    )
    in_flight = sum(each * count for each, count in zip(kept, flying, strict=True))
    if layout.schedule == "zero-bubble":  # gradients of weights need no logits
        until_b = min(layout.micro_batches, layout.pp - stage.index)
        in_flight -= (flying[0] - until_b) * _logit_bytes(stage, layout, precision)
    return in_flight + peak - before


def _logit_bytes(stage: PipelineStage, layout: Layout, precision: Precision) -> float:
    logits = [kept for layer, _ in stage.layers for kept in layer.kept if kept.bytes < 0]
    samples = layout.micro_batch / layout.cp
    return samples * sum(
        kept.elements * _width(kept, precision) / _ways(kept, layout) for kept in logits
    )


def _gathered(stage: PipelineStage, layout: Layout, precision: Precision) -> float:
    if layout.zero < 3 or layout.shards == 1:
        return 0.0
    largest = max(
        sum(elements_on_rank(weight, layout) for weight in layer.weights)
        for layer, _ in stage.layers
    )
    return float(largest * (precision.parameter + precision.reduced))
