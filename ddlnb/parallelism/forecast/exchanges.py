"""Seconds of what ranks exchange in a training step, for all cases at once.

Inside a layer activations of tensor parallelism, keys and values of context parallelism, and tokens
on the way to their experts; between the stages of a pipeline activations; among replicas gradients
and parameters.

Shares of links were fitted to networks with RDMA. Over TCP the software of
the sockets is the limit, whatever the framework: what data/hardware/protocols.yaml says of it, as
in every forecast of a cluster by name.

A framework that overlaps exchanges among replicas while the GPU computes: gradients are reduced
during the last backward pass of a step, parameters are gathered during its first forward pass, and
with ZeRO-3 both during every pass. Chunks of an interleaved pipeline take turns: beside the
exchanges of one are the passes of several micro batches through the others. What takes longer than
the computation beside it is exposed, and so is the layer that has none beside it: the last whose
gradients are ready, the first whose parameters are needed. A part of what is hidden comes back:
exchanges take multiprocessors and memory bandwidth of the GPU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import FULL, SELECTIVE, Cases, Column
from ddlnb.parallelism.forecast.frameworks import Parameters

ACTIVATION = 2  # bytes of an element that is exchanged
PARAMETER = 2  # bytes of a parameter that is gathered, and of a gradient that ZeRO-3 scatters
LINE = 0.9  # of a network with RDMA, what large messages reach: data/hardware/protocols.yaml
# Share of a hidden exchange by which the kernels beside it take longer: a judgement. NCCL takes 16
# to 32 of 108 to 132 multiprocessors (0.2); FSDP on two nodes lost as if nothing were hidden (1).
TAKEN = 0.2


def over_sockets(cases: Cases) -> NDArray[np.bool_]:
    """Return which cases have several nodes that speak TCP."""
    return np.asarray(np.isfinite(cases.sockets) & (cases.nodes > 1))


def reached(cases: Cases, share: float) -> Column:
    """Return bytes/s of a node to others: this share of the line, or what sockets leave of it."""
    return np.where(over_sockets(cases), cases.sockets, share * cases.across)


def spans(cases: Cases) -> NDArray[np.bool_]:
    """Return whether groups of tensor parallelism span nodes."""
    return np.asarray(cases.tp > cases.gpus_per_node)


def crowded(cases: Cases) -> NDArray[np.bool_]:
    """Return whether several groups of tensor parallelism exchange across nodes, all the time."""
    return np.asarray(spans(cases) & (cases.gpus > cases.tp) & (cases.pp == 1))


EXCHANGES = 8  # activations that a layer moves per rank: four all-reduces, each twice (Megatron-LM)
GATHERED_AGAIN = 2  # further ones with sequence parallelism: inputs are gathered once more


def exchange_seconds(cases: Cases, values: Parameters) -> Column:
    """Return seconds of a layer's tensor-parallel exchanges, of keys and values, and of experts.

    Keys and values go around a ring (cp); tokens go to their experts and back, twice (ep).
    """
    activations = ACTIVATION * cases.tokens * cases.hidden
    tensor = tensor_bytes(cases) * (cases.tp - 1) / cases.tp
    across = reached(cases, values.across_share) / np.where(crowded(cases), values.neighbours, 1)
    inside = values.inside_share * cases.inside
    ring = np.where(cases.tp * cases.cp > cases.gpus_per_node, across, inside)
    tensor = tensor / np.where(spans(cases), across, inside)
    return np.asarray(
        tensor + key_bytes(cases) / ring + dispatch_seconds(cases, activations, inside)
    )


def tensor_bytes(cases: Cases) -> Column:
    """Return the bytes of a layer's activations that tensor parallelism adds up or gathers."""
    passes = np.where(cases.recomputation == FULL, 1.5, 1)
    moved = EXCHANGES * passes + GATHERED_AGAIN * cases.sequence_parallel
    return moved * cases.halves / 2 * ACTIVATION * cases.tokens * cases.hidden


ROUNDS = 3  # of keys and values: forward, again for the backward pass, and their gradients


def key_bytes(cases: Cases) -> Column:
    """Return the bytes that a rank sends round a ring of sequences (cp), per layer.

    Of more ranks of a tensor than heads of keys some hold the same.
    """
    own = cases.shared_width / np.minimum(cases.tp, cases.kv_heads)
    rounds = ROUNDS + (cases.recomputation == FULL)
    return np.asarray(rounds * ACTIVATION * cases.tokens * own * (cases.cp - 1))


def dispatch_seconds(cases: Cases, activations: Column, inside: Column) -> Column:
    """Return seconds in which tokens go to their experts and back, forward and backward.

    Copies for experts on the same node go through NVLink while the others go through the GPU's
    port to other nodes: all, or one for every node of which the token has an expert. Selective
    recomputation keeps no copies, and sends them again.
    """
    often = np.select([cases.recomputation == FULL, cases.recomputation == SELECTIVE], [6, 5], 4)
    sent = often * cases.sent_copies * activations / cases.tp / cases.ep  # to each expert's rank
    near = np.clip(cases.gpus_per_node / cases.tp, 1, cases.ep)
    nodes = cases.ep / near
    distinct = nodes * (1 - (1 - 1 / nodes) ** cases.top_k) / cases.top_k
    apart = sent * (cases.ep - near) * np.where(cases.way("sends_once"), distinct, 1)
    port = reached(cases, LINE) / cases.gpus_per_node
    return np.maximum(sent * (near - 1) / inside, apart / port)


def exchange_latency(cases: Cases, values: Parameters) -> Column:
    """Return the latency of a layer's tensor-parallel exchanges for one micro batch."""
    nodes = np.ceil(cases.tp / cases.gpus_per_node)
    apart = values.hop * cases.tp * nodes * spans(cases)
    pipelined = (cases.pp > 1) & (cases.nodes > 1)
    per_rank = values.pipelined_hop * (1 + values.pipelined_node * (nodes - 1))
    return np.where(cases.tp > 1, apart + pipelined * per_rank * cases.tp, 0) * cases.halves / 2


def boundary_seconds(cases: Cases) -> Column:
    """Return what the activations take that the stages on a node send to the next ones.

    All ranks of a stage send at once through the ports of their node: each its part, where
    sequences are split or the framework splits what it sends, otherwise the same.
    """
    split = np.where(cases.way("splits_transfers") | (cases.sequence_parallel > 0), cases.tp, 1)
    senders = np.minimum(cases.tp * cases.replicas, cases.gpus_per_node)
    sent = senders * ACTIVATION * cases.tokens * cases.hidden / split
    return np.where(cases.nodes > 1, sent / reached(cases, LINE), 0)


def transferred(cases: Cases) -> Column:
    """Return how many transfers between stages a step waits for: 1F1B has four per micro batch.

    The first and the last of two stages have two. None with one stage. With chunks of a stage as
    many for each of them, or, where a framework hides them beside other chunks (Megatron-Core),
    those by which the pipeline fills and drains, as if a step had one micro batch.
    """
    each = np.select([cases.pp == 1, cases.pp == 2], [0, 2], 4)
    beside = are_beside(cases)
    rounds = np.where(beside, 1, cases.micro_batches)
    return each * (rounds + cases.pp - 2) * np.where(beside, 1, cases.vpp)


def are_beside(cases: Cases) -> NDArray[np.bool_]:
    """Return where transfers between stages go beside the computation of other chunks."""
    return np.asarray(cases.way("hides_transfers") & (cases.vpp > 1) & (cases.pp > 1))


def transfers_beyond(cases: Cases, computed: Column) -> Column:
    """Return how much longer hidden transfers take than what is computed beside them.

    A stage sends what each of its chunks makes of a micro batch in both passes, but for the last
    chunk's outputs. On a slow network that takes longer than computing it.
    """
    sent = cases.micro_batches * (2 * cases.vpp - 1) * boundary_seconds(cases)
    return np.where(are_beside(cases), np.maximum(sent - computed, 0), 0)


REDUCED = 2  # passes of an all-reduce: bytes are scattered, then gathered


def replica_seconds(cases: Cases, values: Parameters, stage: Column, forward: Column) -> Column:
    """Return seconds of a step in which replicas exchange and nothing is computed.

    Gradients are reduced, and those of a shard summed over its copies; with ZeRO-1 and 2 parameters
    are gathered. ZeRO-3 does all of it with every micro batch instead (`gathered_beside`).
    ``stage``: seconds of a micro batch on the slowest stage, forward and backward; ``forward``: the
    share of the forward pass.
    """
    stages = cases.stages
    rate = group_rate(cases, values, *shard_group(cases))
    of_experts = group_rate(cases, values, *shard_group(cases, cases.ep))
    dense = (stages.parameters - stages.experts) * rate[:, None]
    each = (dense + stages.experts * of_experts[:, None]).max(axis=1) / cases.tp * cases.trained
    summed = stages.parameters.max(axis=1) / cases.tp * cases.trained * copies_rate(cases, values)
    beside = stage * passes_beside(cases)
    width = cases.way("gradient_bytes")
    reduced = np.select([cases.zero >= 3, cases.zero >= 1], [0, width], REDUCED * width)
    copied = np.where(cases.zero >= 3, 0, REDUCED * width)
    gathered = np.where((cases.zero >= 1) & (cases.zero < 3), PARAMETER, 0)
    hides = (cases.overlap > 0) | (cases.way("hides_gradients") & (cases.zero == 0))
    backward = exposed(cases, each * reduced + summed * copied, beside * (1 - forward), hides)
    return backward + exposed(cases, each * gathered, beside * forward, cases.overlap > 0)


def passes_beside(cases: Cases) -> Column:
    """Return how many passes through a stage are beside what its replicas exchange once per step.

    One, without chunks. With v of them the last backward pass of the chunk that is ready first is
    followed by those of p micro batches (p stages) through every other chunk: 1 + p (v - 1) passes
    through a chunk, on the first stage. The first forward passes are the same the other way round.
    """
    others = np.minimum(cases.pp, cases.micro_batches) * (cases.vpp - 1)
    return np.asarray((1 + others) / cases.vpp)


def exposed(cases: Cases, seconds: Column, beside: Column, hides: NDArray[np.bool_]) -> Column:
    """Return what of an exchange is not hidden by the computation ``beside`` it.

    All of it where the framework does not hide it; otherwise one layer's part at least, what takes
    longer than the computation, and what the computation loses.
    """
    one_layer = seconds / np.maximum(cases.stages.layers.max(axis=1), 1)
    hidden = (1 - TAKEN) * np.minimum(seconds - one_layer, beside)
    return seconds - np.where(hides, hidden, 0)


Group = tuple[Column, Column]  # how many ranks exchange, and how many of them share a node


def shard_group(cases: Cases, ep: Column | float = 1.0) -> Group:
    """Return the ranks that shard; of an expert's replicas, every ``ep``-th of them."""
    ranks = cases.shards / ep
    per_node = np.maximum(cases.gpus_per_node / (cases.tp * ep), 1)
    return ranks, np.minimum(ranks, np.where(cases.nodes > 1, per_node, ranks))


def copy_group(cases: Cases) -> Group:
    """Return the ranks that hold the same shard (HSDP): one of so many, as many ranks apart."""
    copies = cases.replicas / cases.shards
    per_node = np.maximum(cases.gpus_per_node / (cases.tp * cases.shards), 1)
    return copies, np.minimum(copies, np.where(cases.nodes > 1, per_node, copies))


def copies_rate(cases: Cases, values: Parameters) -> Column:
    """Return seconds per gathered byte of a pass over the copies of a shard; 0 where it has none.

    A rank has one of so many shards.
    """
    return group_rate(cases, values, *copy_group(cases)) / cases.shards


def group_rate(cases: Cases, values: Parameters, ranks: Column, near: Column) -> Column:
    """Return seconds per byte of a gather over so many ranks, of which ``near`` share a node."""
    apart = np.maximum(ranks / near, 1)
    inside = (near - 1) / near / (values.inside_share * cases.inside)
    # What grows with nodes is latency where nothing else is measured, which gathers count by hops.
    growth = 1 + np.where(cases.zero >= 3, 0, values.reduction_growth) * (apart - 1)
    groups = cases.gpus_per_node / near  # of a node, which share its network
    across = groups * (apart - 1) / apart * growth / reached(cases, values.reduction_share)
    return np.asarray(inside + across)


GATHERS = 3  # passes of ZeRO-3 per micro batch: parameters are gathered twice, gradients once


def gathered_seconds(cases: Cases, values: Parameters) -> tuple[Column, NDArray[np.float64]]:
    """Return seconds of the bytes of gathered parameters and scattered gradients (ZeRO-3, FSDP).

    Of a layer, and of the embedding and the head of every stage. With hybrid sharding those of the
    shard are summed over its copies, with every micro batch, too.
    """
    dense = GATHERS * group_rate(cases, values, *shard_group(cases))
    experts = GATHERS * group_rate(cases, values, *shard_group(cases, cases.ep))
    summed = REDUCED * copies_rate(cases, values) * cases.trained
    held = cases.held_layer_parameters - cases.attention_parameters
    layer = cases.attention_parameters * dense + held * experts
    layer = layer + cases.held_layer_parameters * summed
    width = np.where(cases.zero >= 3, PARAMETER / cases.tp, 0)
    return width * layer, (width * (dense + summed))[:, None] * cases.stages.others


def gather_latency(cases: Cases) -> tuple[Column, NDArray[np.float64]]:
    """Return the latency of these exchanges, of a layer, and of embedding and head of every stage.

    A layer is a message, and its experts another one: gathers go round all ranks, sums of copies
    up and down a tree.
    """
    copies, near = copy_group(cases)
    levels = np.log2(np.maximum(copies / near, 1))
    dense = GATHERS * round_seconds(cases, *shard_group(cases))
    dense = dense + REDUCED * levels * between_seconds(cases) * cases.trained
    experts = GATHERS * round_seconds(cases, *shard_group(cases, cases.ep)) * (cases.experts > 1)
    dense, layer = (np.where(cases.zero >= 3, one, 0) for one in (dense, dense + experts))
    return layer, dense[:, None] * cases.stages.tables


# Seconds of a hop of a ring that gathers: NCCL's own over NVLink (LL128, tuning.cc; PCIe counts the
# same), and beside the protocol's what published collectives need from node to node over
# InfiniBand. A test compares `ddlnb.collectives`.
HOP, HOP_BETWEEN = 1.9e-6, 8e-6
SHORTEST = 1e-9


def between_seconds(cases: Cases) -> Column:
    """Return the latency of a hop between nodes: none where a what-if has hops of nothing."""
    return np.where(cases.hop > SHORTEST, HOP_BETWEEN + cases.hop, 0)


def round_seconds(cases: Cases, ranks: Column, near: Column) -> Column:
    """Return the latency of a gather round so many ranks, of which ``near`` share a node."""
    apart = np.maximum(ranks / near, 1)
    inside = np.where(cases.hop > SHORTEST, HOP, 0)
    return np.asarray(inside * (ranks - apart) + between_seconds(cases) * (apart - 1))
