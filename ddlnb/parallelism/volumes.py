"""What one rank exchanges in an iteration: every collective primitive with its bytes, and why.

Bytes are those of the whole buffer: of an all-reduce, of what a reduce-scatter takes, of what an
all-gather gives, of what a rank puts into an all-to-all, of a sent message. ``sent_bytes`` are what
leaves one rank in the bandwidth-optimal (ring, pairwise) algorithm. `traffic_matrices` says who
sends how much to whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import require
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.parallelism.layout import Layout, group_size, groups, position
from ddlnb.parallelism.memory import (
    PipelineStage,
    Precision,
    Share,
    get_precision,
    pipeline_stages,
    require_fits,
    share_of,
    shares_by_layer,
)
from ddlnb.parallelism.model import LayerShape, ModelShape
from ddlnb.plans.transfers import Primitive


@dataclass(frozen=True)
class GroupExchange:
    """One kind of collective primitive: what is exchanged, along which axis, how often, when.

    ``bytes`` is the buffer of one call, ``times`` how often an iteration has it on one rank,
    ``ranks`` how many take part. ``forward`` and ``backward`` happen for micro batches, ``update``
    once per iteration.
    """

    what: str
    primitive: str
    axis: str
    ranks: int
    bytes: float
    times: int
    when: str

    @property
    def message_bytes(self) -> float:
        """Bytes of the message of a collective: of an all-to-all, what all ranks put into it."""
        return self.bytes * (self.ranks if self.primitive == "all-to-all" else 1)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one rank sends in an iteration: all-reduce 2(n-1)/n, others (n-1)/n of it."""
        share = {"send": 1.0, "all-reduce": 2 * (self.ranks - 1) / self.ranks}
        return self.times * self.bytes * share.get(self.primitive, (self.ranks - 1) / self.ranks)


def exchanges(
    model: ModelShape,
    layout: Layout,
    precision: str | Precision = "mixed",
    stage: int = 0,
) -> tuple[GroupExchange, ...]:
    """Return what a rank of this pipeline stage exchanges in one iteration.

    Sources: ZeRO (arXiv 1910.02054, section 7), Megatron-LM (1909.08053, section 3; 2104.04473,
    section 3.2; 2205.05198, section 4), GShard (2006.16668), ring attention (2310.01889), Ulysses
    (2309.14509). Raises InputError for a layout that does not divide the model.

    >>> from ddlnb.parallelism.model import gpt
    >>> gpt3 = gpt("gpt-3", layers=96, hidden=12288, heads=96, vocab=51200, sequence=2048).shape
    >>> found = exchanges(gpt3, Layout(tp=8))
    >>> blocks = [one for one in found if one.what in ("attention", "feed-forward")]
    >>> f"{sum(one.sent_bytes for one in blocks) / 96 / 1e9:.3f} GB per layer"
    '0.352 GB per layer'
    """
    require_fits(model, layout)
    precision = get_precision(precision)
    require(0 <= stage < layout.pp, f"stage {stage} must be one of 0 to {layout.pp - 1}")
    all_stages = pipeline_stages(model, layout.pp, layout.vpp)
    held = all_stages[stage]
    found = [
        *_within_layers(held, model, layout, precision),
        *_between_stages(held, all_stages, layout, precision),
        *_of_gradients(held, layout, precision),
        *_of_copies(held, layout, precision),
    ]
    return tuple(one for one in found if one.ranks > 1 and one.times and one.bytes)


def within_layer(
    layer: LayerShape, count: int, again: bool, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """Return what so many layers that are alike exchange inside of them, in one iteration.

    A layer that is computed ``again`` exchanges again what its forward pass exchanged.
    """
    yield from _tensor(layer, count, again, layout, precision)
    yield from _context(layer, count, again, layout, precision)
    yield from _experts(layer, count, again, layout, precision)


def _within_layers(
    stage: PipelineStage, model: ModelShape, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    blocks = set(map(id, model.block_layers))
    for layer, count in stage.layers:
        again = layout.recomputation == "full" and id(layer) in blocks
        yield from within_layer(layer, count, again, layout, precision)


def _tensor(
    layer: LayerShape, count: int, again: bool, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    times = count * layout.micro_batches
    forward = times * (1 + again)
    samples = layout.micro_batch / layout.cp
    for region in layer.regions:
        enters, leaves = (
            elements * samples * precision.activation for elements in (region.enters, region.leaves)
        )

        def one(
            primitive: str, size: float, often: int, when: str, what: str = region.name
        ) -> GroupExchange:
            return GroupExchange(what, primitive, "tp", layout.tp, size, often, when)

        if layout.sequence_parallel:
            yield one("all-gather", enters, forward, "forward")
            yield one("reduce-scatter", leaves, forward, "forward")
            yield one("all-gather", leaves, times, "backward")
            yield one("reduce-scatter", enters, times, "backward")
            if layout.gather_again:
                yield one("all-gather", enters, times, "backward")
        else:
            yield one("all-reduce", leaves, forward, "forward")
            yield one("all-reduce", enters, times, "backward")
    values = layer.loss_values / 3 * samples * precision.logit
    yield GroupExchange("loss", "all-reduce", "tp", layout.tp, values, 3 * times, "forward")


def _context(
    layer: LayerShape, count: int, again: bool, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    if layer.attention is None or layout.cp == 1:
        return
    times = count * layout.micro_batches
    forward = times * (1 + again)
    per_rank = layout.micro_batch * precision.activation / layout.cp
    pieces = min(layout.tp, layer.attention.pieces or layout.tp)
    query = layer.attention.query / layout.tp * per_rank
    keys = layer.attention.key_value / pieces * per_rank
    hops = layout.cp - 1

    def one(what: str, primitive: str, size: float, often: int, when: str) -> GroupExchange:
        return GroupExchange(what, primitive, "cp", layout.cp, size, often, when)

    if layout.context == "ring":
        yield one("keys, values", "send", keys, forward * hops, "forward")
        yield one("keys, values", "send", keys, times * hops, "backward")
        yield one("gradients of keys, values", "send", keys, times * (hops + 1), "backward")
    else:
        for when, often in (("forward", forward), ("backward", times)):
            yield one("queries", "all-to-all", query, often, when)
            yield one("keys, values", "all-to-all", keys, often, when)
            yield one("attention output", "all-to-all", query, often, when)


def _experts(
    layer: LayerShape, count: int, again: bool, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    size = layer.dispatched * layout.micro_batch / layout.cp * precision.activation
    times = count * layout.micro_batches
    for when, often in (("forward", times * (1 + again)), ("backward", times)):
        for what in ("dispatch", "combine"):
            yield GroupExchange(what, "all-to-all", "ep", layout.ep, size, often, when)


def _between_stages(
    stage: PipelineStage, every: tuple[PipelineStage, ...], layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """What this stage sends: outputs of its chunks forward, gradients of their inputs backward."""
    parts = layout.pp * layout.vpp
    split = layout.tp if layout.sequence_parallel else 1
    per_element = layout.micro_batch * precision.activation / layout.cp / split

    def sent(what: str, part: int, when: str) -> GroupExchange:
        """Return the messages over the boundary behind a part, one per micro batch."""
        number, index = divmod(part, layout.pp)
        layer = every[index].chunks[number][-1][0]
        require(
            layer.output_elements > 0,
            f"how much leaves layer {layer.name!r} is not known, and a pipeline of "
            f"{layout.pp} stages is cut there; give its output elements per sample",
        )
        size = layer.output_elements * per_element
        return GroupExchange(what, "send", "pp", layout.pp, size, layout.micro_batches, when)

    for number in range(len(stage.chunks)):
        part = stage.index + number * layout.pp
        if layout.pp > 1 and part < parts - 1:
            yield sent("activations", part, "forward")
        if layout.pp > 1 and part > 0:
            yield sent("gradients of activations", part - 1, "backward")


def _of_gradients(
    stage: PipelineStage, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """What replicas exchange: of ZeRO-3 a layer at a time, otherwise of the stage as a whole."""
    if layout.zero == 3:
        for share, count in shares_by_layer(stage, layout):
            yield from _gathered(share, count, layout, precision)
        return
    for axis, elements in share_of(stage, layout).by_axis.items():
        ranks = group_size(layout, axis)
        size = elements * precision.reduced
        if layout.zero == 0:
            yield GroupExchange("gradients", "all-reduce", axis, ranks, size, 1, "update")
            continue
        # With ZeRO-2 no rank can add up the gradients of micro batches alone.
        often, when = (1, "update") if layout.zero == 1 else (layout.micro_batches, "backward")
        yield GroupExchange("gradients", "reduce-scatter", axis, ranks, size, often, when)
        size = elements * precision.parameter
        yield GroupExchange("parameters", "all-gather", axis, ranks, size, 1, "update")


def _gathered(
    share: Share, count: int, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    times = count * layout.micro_batches
    for axis, elements in share.by_axis.items():
        ranks = group_size(layout, axis)
        parameters = elements * precision.parameter
        yield GroupExchange("parameters", "all-gather", axis, ranks, parameters, times, "forward")
        yield GroupExchange("parameters", "all-gather", axis, ranks, parameters, times, "backward")
        gradients = elements * precision.reduced
        yield GroupExchange(
            "gradients", "reduce-scatter", axis, ranks, gradients, times, "backward"
        )


def _of_copies(
    stage: PipelineStage, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """Gradients of parameters that several ranks hold without being replicas of each other."""
    share = share_of(stage, layout)
    if layout.sequence_parallel:  # each rank has seen other tokens
        size = share.repeated * precision.reduced
        yield GroupExchange("repeated", "all-reduce", "tp", layout.tp, size, 1, "update")
    if stage.index in (0, layout.pp - 1) and layout.pp > 1:
        size = share.tied * precision.reduced
        yield GroupExchange("tied embedding", "all-reduce", "ends", 2, size, 1, "update")


Numbers = NDArray[np.float64]

ALGORITHMS: Mapping[str, str] = {
    "all-reduce": "ring",
    "reduce-scatter": "ring",
    "all-gather": "ring",
    "all-to-all": "rotating",
}
"""The algorithm that carries out a primitive, by default."""


def traffic_matrices(
    model: ModelShape,
    layout: Layout,
    precision: str | Precision = "mixed",
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> dict[str, Numbers]:
    """Return the bytes that rank i sends to rank j in one iteration, as ``[i, j]``, by axis.

    The axes are those of `ddlnb.parallelism.layout.GROUPS` that exchange anything. Collectives are
    those of ``algorithms``, by primitive. Rows of the matrices add up to what `exchanges` says that
    a rank sends, with algorithms that send as little as rings. Raises InputError for a layout that
    does not divide the model.

    >>> from ddlnb.parallelism.model import llama
    >>> model = llama("small", 4, 512, 8, 8, 1536, 64, 512).shape
    >>> found = traffic_matrices(model, Layout.parse("dp2 tp2"))
    >>> {axis: (matrix > 0).astype(int).tolist()[0] for axis, matrix in found.items()}
    {'tp': [0, 1, 0, 0], 'data': [0, 0, 1, 0]}
    """
    matrices: dict[str, Numbers] = {}
    for stage in range(layout.pp):
        for one in exchanges(model, layout, precision, stage):
            matrix = matrices.setdefault(one.axis, np.zeros((layout.ranks, layout.ranks)))
            _add(matrix, one, layout, stage, algorithms)
    return matrices


def _add(
    matrix: Numbers, one: GroupExchange, layout: Layout, stage: int, algorithms: Mapping[str, str]
) -> None:
    """Add what the ranks of a stage send to the others of their groups."""
    between = _between(one, layout, stage, algorithms)
    for row in groups(layout, one.axis):
        senders = [rank for rank in row if position(layout, rank)["pp"] == stage]
        for rank in senders:
            matrix[rank, list(row)] += between[row.index(rank)]


def _between(
    one: GroupExchange, layout: Layout, stage: int, algorithms: Mapping[str, str]
) -> Numbers:
    """Return the bytes from each member of a group to each other one, in an iteration."""
    bytes_sent = np.zeros((one.ranks, one.ranks))
    if one.primitive == "send":
        step = -1 if one.axis == "pp" and one.when == "backward" else 1
        source = np.array([stage]) if one.axis == "pp" else np.arange(one.ranks)
        bytes_sent[source, (source + step) % one.ranks] = one.times * one.bytes
        return bytes_sent
    primitive = cast(Primitive, one.primitive)
    collective = get_collective(algorithms[primitive], one.ranks, primitive=primitive)
    rows = collective.transfers
    np.add.at(bytes_sent, (rows["source"], rows["target"]), rows["stop"] - rows["first"])
    return bytes_sent * (one.times * one.message_bytes / collective.parts)
