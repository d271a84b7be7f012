"""A stage's layers as pieces of work: seconds of computation, and what they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlnb.parallelism.groups import group_size
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import LayerShape, ModelShape, recomputed_flops
from ddlnb.parallelism.precision import Precision
from ddlnb.parallelism.shares import Share, shares_by_layer
from ddlnb.parallelism.simulated.seconds import Links
from ddlnb.parallelism.stages import PipelineStage
from ddlnb.parallelism.volumes import Exchange, within_layer


@dataclass(frozen=True)
class Wait:
    """An exchange that computation waits for."""

    axis: str
    name: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Piece:
    """One layer of one micro batch. Backward seconds are those of inputs; then those of weights.

    ``again`` are seconds of what is computed again. ``gather`` and ``reduce`` are exchanges of the
    layer's parameters and gradients among replicas, None where there are none.
    """

    name: str
    forward: float
    inputs: float
    weights: float
    again: float
    in_forward: tuple[Wait, ...]
    in_backward: tuple[Wait, ...]
    gather: Wait | None
    reduce: tuple[Wait, ...]


def pieces_of(
    stage: PipelineStage,
    model: ModelShape,
    layout: Layout,
    precision: Precision,
    links: Links,
    flops_per_second: float,
) -> list[list[Piece]]:
    """Return the pieces of every chunk of a stage, in the order of the forward pass."""
    blocks = set(map(id, model.block_layers))
    shares = iter(shares_by_layer(stage, layout))
    samples = layout.micro_batch / layout.cp / layout.tp
    chunks: list[list[Piece]] = []
    for chunk in stage.chunks:
        pieces: list[Piece] = []
        for layer, count in chunk:
            share, _ = next(shares)
            how = layout.recomputation if id(layer) in blocks else "none"
            forward = layer.forward_flops * samples / flops_per_second
            inside = _inside(layer, how == "full", layout, precision, links)
            piece = Piece(
                layer.name,
                forward,
                inputs=forward,
                weights=forward,
                again=recomputed_flops(layer, how) * samples / flops_per_second,
                in_forward=inside[0],
                in_backward=inside[1],
                gather=_gather(share, layout, precision, links),
                reduce=_reduce(share, layout, precision, links),
            )
            pieces += [piece] * count
        chunks.append(pieces)
    return chunks


def _inside(
    layer: LayerShape, again: bool, layout: Layout, precision: Precision, links: Links
) -> tuple[tuple[Wait, ...], tuple[Wait, ...]]:
    """Return what a micro batch waits for in the forward and in the backward pass of a layer."""
    waits: dict[str, list[Wait]] = {"forward": [], "backward": []}
    for one in within_layer(layer, 1, again, layout, precision):
        if one.ranks == 1 or not one.bytes or not one.times:
            continue
        often = one.times // layout.micro_batches
        wait = _wait(one, links)
        if again and one.when == "forward":  # half of them when it is computed again
            waits["backward"] += [wait] * (often // 2)
            often -= often // 2
        waits[one.when] += [wait] * often
    return tuple(waits["forward"]), tuple(waits["backward"])


def _gather(share: Share, layout: Layout, precision: Precision, links: Links) -> Wait | None:
    if layout.zero < 3 or layout.shards == 1:
        return None
    waits = _among_replicas("all-gather", "parameters", share, precision.parameter, layout, links)
    return Wait("data", "parameters", sum(w.bytes for w in waits), sum(w.seconds for w in waits))


def _reduce(share: Share, layout: Layout, precision: Precision, links: Links) -> tuple[Wait, ...]:
    primitive = "all-reduce" if layout.zero == 0 else "reduce-scatter"
    return _among_replicas(primitive, "gradients", share, precision.reduced, layout, links)


def _among_replicas(
    primitive: str, what: str, share: Share, width: int, layout: Layout, links: Links
) -> tuple[Wait, ...]:
    """Return the exchanges of a layer's tensors among those that hold them alike."""
    found: Sequence[Exchange] = [
        Exchange(what, primitive, axis, group_size(layout, axis), elements * width, 1, "update")
        for axis, elements in share.by_axis.items()
    ]
    return tuple(_wait(one, links) for one in found if one.ranks > 1 and one.bytes)


def _wait(one: Exchange, links: Links) -> Wait:
    return Wait(one.axis, f"{one.primitive} {one.what}", round(one.bytes), links.seconds(one))
