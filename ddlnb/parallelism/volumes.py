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
from ddlnb.parallelism.schedules import SCHEDULES
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
    stages = pipeline_stages(model, layout.pp, layout.vpp, layout.schedule)
    held, blocks = stages[stage], set(map(id, model.block_layers))
    is_again = layout.recomputation == "full"
    found = [
        *(
            one
            for layer, count in held.layers
            for one in within_layer(
                layer, count, is_again and id(layer) in blocks, layout, precision
            )
        ),
        *_between_stages(held, stages, layout, precision),
        *_of_replicas(held, layout, precision),
        *_of_copies(held, layout, precision),
    ]
    return tuple(one for one in found if one.ranks > 1 and one.times and one.bytes)


# What, primitive, bytes, when, and how often in a pass of a micro batch, or in an update.
Call = tuple[str, str, float, str, int]


def within_layer(
    layer: LayerShape, count: int, again: bool, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """Return what so many layers that are alike exchange inside of them, in one iteration.

    A layer that is computed ``again`` exchanges again what its forward pass exchanged.
    """
    passes = {"backward": count * layout.micro_batches}
    passes["forward"] = passes["backward"] * (1 + again)
    calls = {
        "tp": _tensor(layer, layout, precision),
        "cp": _context(layer, layout, precision),
        "ep": _experts(layer, layout, precision),
    }
    for axis, calls_of in calls.items():
        for what, primitive, size, when, often in calls_of:
            ranks, times = group_size(layout, axis), often * passes[when]
            yield GroupExchange(what, primitive, axis, ranks, size, times, when)


def _tensor(layer: LayerShape, layout: Layout, precision: Precision) -> Iterator[Call]:
    samples = layout.micro_batch / layout.cp
    for region in layer.regions:
        name, width = region.name, samples * precision.activation
        enters, leaves = region.enters * width, region.leaves * width
        if layout.sequence_parallel:
            yield name, "all-gather", enters, "forward", 1
            yield name, "reduce-scatter", leaves, "forward", 1
            yield name, "all-gather", leaves, "backward", 1
            yield name, "reduce-scatter", enters, "backward", 1
            yield name, "all-gather", enters, "backward", int(layout.gather_again)
        else:
            yield name, "all-reduce", leaves, "forward", 1
            yield name, "all-reduce", enters, "backward", 1
    yield "loss", "all-reduce", layer.loss_values / 3 * samples * precision.logit, "forward", 3


def _context(layer: LayerShape, layout: Layout, precision: Precision) -> Iterator[Call]:
    if layer.attention is None:
        return
    per_rank = layout.micro_batch * precision.activation / layout.cp
    pieces = min(layout.tp, layer.attention.pieces or layout.tp)
    query = layer.attention.query / layout.tp * per_rank
    keys = layer.attention.key_value / pieces * per_rank
    if layout.context == "ring":
        yield "keys, values", "send", keys, "forward", layout.cp - 1
        yield "keys, values", "send", keys, "backward", layout.cp - 1
        yield "gradients of keys, values", "send", keys, "backward", layout.cp
    else:
        for when in ("forward", "backward"):
            yield "queries", "all-to-all", query, when, 1
            yield "keys, values", "all-to-all", keys, when, 1
            yield "attention output", "all-to-all", query, when, 1


def _experts(layer: LayerShape, layout: Layout, precision: Precision) -> Iterator[Call]:
    elements = layer.dispatched * layout.micro_batch / layout.cp
    for when in ("forward", "backward"):
        sent = precision.dispatched or precision.activation
        yield "dispatch", "all-to-all", elements * sent, when, 1
        yield "combine", "all-to-all", elements * precision.activation, when, 1


def boundary_bytes(layer: LayerShape, layout: Layout, precision: Precision) -> float:
    """Return the bytes of the message to the next stage, behind a layer, of one micro batch."""
    require(
        layer.output_elements > 0,
        f"how much leaves layer {layer.name!r} is not known, and a pipeline of "
        f"{layout.pp} stages is cut there; give its output elements per sample",
    )
    split = layout.tp if layout.sequence_parallel else 1
    return layer.output_elements * (layout.micro_batch * precision.activation / layout.cp / split)


def _between_stages(
    stage: PipelineStage, every: tuple[PipelineStage, ...], layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """What this stage sends: outputs of its chunks forward, gradients of their inputs backward."""
    if layout.pp == 1:
        return
    last, kind = layout.pp * layout.vpp - 1, SCHEDULES[layout.schedule]
    for part in (kind.part(stage.index, chunk, layout.pp) for chunk in range(layout.vpp)):
        for what, when, boundary in (
            ("activations", "forward", part),
            ("gradients of activations", "backward", part - 1),
        ):
            number, index = kind.home(boundary, layout.pp)
            if 0 <= boundary < last and index != kind.home(boundary + 1, layout.pp)[1]:
                size = boundary_bytes(every[index].chunks[number][-1][0], layout, precision)
                yield GroupExchange(what, "send", "pp", layout.pp, size, layout.micro_batches, when)


def _of_replicas(
    stage: PipelineStage, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """What replicas exchange: of ZeRO-3 a layer at a time, otherwise of the stage as a whole.

    With adapters of these, and of all other parameters what is gathered for passes.
    """
    for adapters in (False, True)[: 2 if layout.lora else 1]:
        shares = shares_by_layer(stage, layout, adapters)
        if layout.zero < 3:
            shares = [(share_of(stage, layout, adapters), 1)]
        for share, count in shares:
            for one in among_replicas(share, count, layout, precision):
                is_gathered = layout.zero == 3 and one.what == "parameters"
                if adapters or not layout.lora or is_gathered:
                    yield one


def among_replicas(
    share: Share, count: int, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """Return what replicas exchange of so many equal shares of parameters in one iteration.

    With ZeRO-2 no rank can add up the gradients of micro batches alone; ZeRO-3 gathers parameters
    for every pass. Hybrid sharding does so within groups, whose sums are then added up.
    """
    often = layout.micro_batches
    calls = {
        0: [("gradients", "all-reduce", 1, "update")],
        1: [
            ("gradients", "reduce-scatter", 1, "update"),
            ("parameters", "all-gather", 1, "update"),
        ],
        2: [
            ("gradients", "reduce-scatter", often, "backward"),
            ("parameters", "all-gather", 1, "update"),
        ],
        3: [
            ("parameters", "all-gather", often, "forward"),
            ("parameters", "all-gather", often, "backward"),
            ("gradients", "reduce-scatter", often, "backward"),
        ],
    }[layout.zero]
    width = {"gradients": precision.reduced, "parameters": precision.parameter}
    for axis, elements in ({"shard": share.dense} if layout.shard else share.by_axis).items():
        for what, primitive, times, when in calls:
            ranks, size, often = group_size(layout, axis), elements * width[what], count * times
            yield GroupExchange(what, primitive, axis, ranks, size, often, when)
            if layout.shard and what == "gradients":  # the sum over all is that of the copies
                ranks, size = group_size(layout, "copies"), size / layout.shards
                yield GroupExchange(what, "all-reduce", "copies", ranks, size, often, when)


def _of_copies(
    stage: PipelineStage, layout: Layout, precision: Precision
) -> Iterator[GroupExchange]:
    """Gradients of parameters that several ranks hold without being replicas of each other."""
    share = share_of(stage, layout, adapters=bool(layout.lora))
    if layout.sequence_parallel:  # each rank has seen other tokens
        size = share.repeated * precision.reduced
        yield GroupExchange("repeated", "all-reduce", "tp", layout.tp, size, 1, "update")
    if stage.index in (0, layout.pp - 1) and layout.pp > 1 and not SCHEDULES[layout.schedule].vee:
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
    require(
        not SCHEDULES[layout.schedule].vee,
        f"schedule {layout.schedule} sends both ways, of which no matrix is made; use another one",
    )
    matrices: dict[str, Numbers] = {}
    for stage in range(layout.pp):
        for one in exchanges(model, layout, precision, stage):
            matrix = matrices.setdefault(one.axis, np.zeros((layout.ranks, layout.ranks)))
            between = _between(one, layout, stage, algorithms)
            for row in groups(layout, one.axis):
                for rank, sent in zip(row, between, strict=True):
                    if position(layout, rank)["pp"] == stage:
                        matrix[rank, list(row)] += sent
    return matrices


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
