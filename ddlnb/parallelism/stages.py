"""Which layers a pipeline stage holds, and whether a layout divides a model at all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from ddlnb.errors import InputError
from ddlnb.parallelism.layout import Layout, require_divides
from ddlnb.parallelism.model import LayerShape, ModelShape


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

    >>> from ddlnb.parallelism.transformer import llama
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
    if parts > blocks:
        raise InputError(
            f"pp {layout.pp} times vpp {layout.vpp} is more than the {blocks} layers of model "
            f"{model.name!r}; use at most pp {blocks // layout.vpp} or fewer chunks"
        )


@lru_cache(maxsize=4096)
def pipeline_stages(model: ModelShape, pp: int, vpp: int = 1) -> tuple[PipelineStage, ...]:
    """Return the stages: blocks dealt evenly, one more to later chunks where some are left over.

    But never to the last chunk, which has the head. Chunk number c belongs to stage c mod pp. What
    is before the blocks goes to the first chunk, what is behind them to the last one.
    """
    first, stop = model.blocks
    parts = pp * vpp
    each, left = divmod(stop - first, parts)
    counts = [each] * parts
    for chunk in range(left):
        counts[-2 - chunk if parts > 1 else 0] += 1
    chunks: list[list[LayerShape]] = []
    for count in counts:
        chunks.append(list(model.layers[first : first + count]))
        first += count
    chunks[0][:0] = model.layers[: model.blocks[0]]
    chunks[-1].extend(model.layers[stop:])
    return tuple(
        PipelineStage(index, tuple(_counted(chunks[part]) for part in range(index, parts, pp)))
        for index in range(pp)
    )


def _counted(layers: list[LayerShape]) -> tuple[tuple[LayerShape, int], ...]:
    """Return neighbours that are the same object once, with how many they are."""
    runs = [list(run) for _, run in groupby(layers, key=id)]
    return tuple((run[0], len(run)) for run in runs)
