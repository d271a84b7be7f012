"""Seconds of a training step, by what they go to: one formula for all cases at once.

The physics is that of a step whose ranks wait for each other: a stage takes the longer of what the
GPU computes and what it takes to start kernels and exchanges; a pipeline takes as long as its
slowest stage per micro batch, and once through all stages; reduction and optimizer come on top.
What exchanges take is in `exchanges`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import FULL, SELECTIVE, Cases, Column
from ddlnb.parallelism.forecast.exchanges import (
    EXCHANGES,
    GATHERED_AGAIN,
    PARAMETER,
    TAKEN,
    boundary_seconds,
    crowded,
    exchange_latency,
    exchange_seconds,
    gather_latency,
    gathered_seconds,
    replica_seconds,
    spans,
    transferred,
    transfers_beyond,
)
from ddlnb.parallelism.forecast.frameworks import (
    LIMITS,
    Fitted,
    Parameters,
    matrix_flops,
)
from ddlnb.parallelism.schedules import SCHEDULES, SHIPPED, idle_shares

LEAST = 1e-30  # seconds: against dividing by the 0 of stages that are not there
SHARPNESS = 8  # of the maximum: a norm of this order


def soft_maximum(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the longer of two times, more where they are alike: a norm of order `SHARPNESS`."""
    longer = np.maximum(one, other)
    ratio = np.minimum(one, other) / np.maximum(longer, LEAST)
    return np.asarray(longer * (1 + ratio**SHARPNESS) ** (1 / SHARPNESS))


def gathered_beside(
    cases: Cases,
    busy: NDArray[np.float64],
    held: NDArray[np.float64],
    gathered: Column,
    others: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return seconds of stages that hold so many layers and gather each of them (ZeRO-3).

    ``busy``: what they compute and exchange otherwise, beside which frameworks that overlap gather
    a layer in so many seconds, and embedding and head in ``others``.
    """
    whole = held * gathered[:, None] + others
    apart = busy + whole
    first = np.where(held > 0, gathered[:, None], 0)
    together = np.minimum(soft_maximum(busy + TAKEN * whole, whole) + first, apart)
    return np.where(cases.overlap[:, None] > 0, together, apart)


# Of the elementwise traffic of a layer, that of norms and residuals: 20 of about 65 bytes forward.
# Tensor parallelism repeats it on every rank unless sequences are split too (arXiv 2205.05198).
REPEATED = 0.3
# And that of the feed-forward part's activation, of a width of four times the model's: it reads and
# writes 5 elements forward and backward (40 of about 200 bytes). A gated one that a kernel fuses
# does 8; product and activation by kernels of their own do 13.
INNER, WIDER, GATED, GATED_APART = 0.2, 4, 1.6, 2.6
# Norms and positions of models that have gates (Llama's kind), where no kernel fuses them: their
# steps one by one, half of them in fp32. By torch's dispatcher a layer of transformers' Llama moves
# 485 bytes per token and width beside its products, one of GPT-2's kind 120.
SMALL = 1.7
# Bytes per logit: written (2), cast to fp32 (6), read by the loss, which writes their gradient (8),
# which is cast back (6), and read by two products of matrices (4).
LOGIT_TRAFFIC = 26
# Bytes per parameter and micro batch, where gradients are added up after the backward pass: written
# in bf16 (2), read again (2), and added to a sum in fp32 that is read and written (8).
ADDED_TRAFFIC = 12
# Bytes that attention moves per score where no kernel fuses it (fp16, a byte of dropout's mask):
# forward, scores are written, scaled and masked in one kernel, dropped, and multiplied by values;
# backward, gradients of values, dropped and kept scores, queries and keys read and write 19 more.
SCORE_FORWARD, SCORE_BACKWARD = 13, 19
OPTIMIZER_TRAFFIC = 28  # bytes per parameter: states read and written, gradient read
NEAR = 0.2  # of the latency of a transfer between stages, where both are on one node
MEMORY_RESERVED = 0.10  # of a GPU's memory: more is never measured without a stall


@dataclass(frozen=True)
class Step:
    """Seconds of a step by what they go to, one element per case; ``slow`` is added in a slow run.

    ``bound`` says how far the first stage's GPU is behind its host, from 0 to 1 (`behind`).
    """

    compute: Column
    tensor: Column
    bubble: Column
    transfers: Column
    reduction: Column
    optimizer: Column
    other: Column
    slow: Column
    bound: Column

    @property
    def parts(self) -> dict[str, Column]:
        """What adds up to the step, by name."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def seconds(self) -> Column:
        """All of the step in a run that is not slow."""
        return sum(self.parts.values(), np.zeros(1))


PARTS = ("compute", "tensor", "bubble", "transfers", "reduction", "optimizer", "other")


def values_of(cases: Cases, fitted: Fitted, off: Mapping[str, Column] | None = None) -> Parameters:
    """Return the parameters of the framework of every case, as columns.

    Times the factors by which parameters are ``off``, within their limits.
    """
    names, which = cases.frameworks
    own, off = [vars(fitted.of(name)) for name in names], off or {}
    columns = {name: np.array([one[name] for one in own])[which] for name in LIMITS}
    columns |= {name: np.clip(columns[name] * far, *LIMITS[name]) for name, far in off.items()}
    return cast(Parameters, SimpleNamespace(**columns))


def step(
    cases: Cases,
    fitted: Fitted,
    stalled: NDArray[np.bool_] | None = None,
    off: Mapping[str, Column] | None = None,
) -> Step:
    """Return the seconds of every case's step; ``stalled`` marks cases that lack memory.

    ``off`` are factors of parameters (`values_of`).
    """
    values = values_of(cases, fitted, off)
    stalled = np.zeros(len(cases), bool) if stalled is None else stalled
    layer, head = layer_seconds(cases, values), head_seconds(cases, values)
    layer = layer + cases.way("keeps_scores") * score_seconds(cases)
    apart = cases.way("adds_apart")
    layer = layer + apart * added_seconds(cases, cases.held_layer_parameters)
    head = head + apart * added_seconds(cases, cases.head_parameters)
    exchanged = exchange_seconds(cases, values)
    latency = exchange_latency(cases, values) * cases.way("pipelined_latency")
    held, heads = cases.stages.layers, cases.stages.heads
    alone = held * layer[:, None] + heads * head[:, None]  # what one GPU would compute
    gpu = alone + held * exchanged[:, None]
    (gathered, others), late = gathered_seconds(cases, values), gather_latency(cases)
    gpu = gathered_beside(cases, gpu, held, gathered + late[0], others + late[1])
    starting = values.launch * operations_of(cases)
    host = (
        held * (starting + latency)[:, None]
        + heads * np.asarray(values.launch * sum(PLAIN))[:, None]
    )
    stage = soft_maximum(gpu, host)
    stage = stage * np.where(stalled & (cases.pp == 1) & spans(cases), values.stall, 1)[:, None]
    slowest, work = stage.max(axis=1), alone.max(axis=1)
    rounds = cases.micro_batches
    transfers = transferred(cases)
    seconds = np.minimum(work, slowest)
    return Step(
        compute=rounds * seconds,
        tensor=rounds * (slowest - seconds),
        bubble=bubble_seconds(cases, stage, later_share(cases, values, gpu)),
        transfers=transfers * values.transfer * np.where(cases.nodes > 1, 1, NEAR)
        + transfers * boundary_seconds(cases)
        + transfers_beyond(cases, rounds * slowest),
        reduction=replica_seconds(cases, values, slowest, 1 / passes_of(cases)),
        optimizer=optimizer_seconds(cases),
        other=values.fixed + values.launch * OF_STEP * cases.stages.layers.max(axis=1),
        slow=transfers * values.slow_transfer * cases.way("slow_transfers"),
        bound=behind(cases, (gpu / np.maximum(stage, LEAST))[:, 0]),
    )


def bubble_seconds(cases: Cases, stage: NDArray[np.float64], later: NDArray[np.float64]) -> Column:
    """Return how long a pipeline fills and drains: once through all stages but the slowest.

    Interleaved chunks divide it (arXiv 2104.04473). The zero-bubble schedule (ZB-H1, 2401.10241)
    puts off the gradients of weights, a share ``later`` of every stage: the pipeline drains without
    them, and they fill what is left, one per micro batch. F + B - W of F + B + W remain of every
    stage, more with fewer micro batches than stages. Somebody's own is played (`idle_shares`).
    """
    others = np.maximum(cases.pp - 1, 1)
    filled = 1 + np.minimum((cases.micro_batches - 1) / others, 1)
    splitting = [name for name, one in SHIPPED.items() if one.splits]
    filled = np.where(np.isin(cases.schedule, splitting), filled, 0)
    through = stage * (1 - later * filled[:, None])
    slowest = stage.argmax(axis=1)[:, None]
    rest = through.sum(axis=1) - np.take_along_axis(through, slowest, axis=1)[:, 0]
    bubble = np.asarray(rest / cases.vpp)
    for name in set(np.unique(cases.schedule)) - set(SHIPPED):
        for one in np.flatnonzero((cases.schedule == name) & (cases.pp > 1)):
            numbers = (int(of[one]) for of in (cases.pp, cases.micro_batches, cases.vpp))
            whole, split = idle_shares(SCHEDULES[name], *numbers)
            times = stage[one] * (whole + (split - whole) * 3 * later[one])
            bubble[one] = times.sum() - times[slowest[one, 0]]
    return bubble


def later_share(cases: Cases, values: Parameters, gpu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which share of a stage's seconds goes to gradients of weights, which can wait."""
    weights = cases.stages.layers * weight_seconds(cases, values, cases.layer_parameters)[:, None]
    heads = cases.head_parameters * cases.peak / cases.core_peak
    weights += cases.stages.heads * weight_seconds(cases, values, heads)[:, None]
    return np.asarray(weights / np.maximum(gpu, LEAST))


def weight_seconds(cases: Cases, values: Parameters, parameters: Column) -> Column:
    """Return what the GPU computes for the gradients of so many weights and a micro batch."""
    rate = matrix_flops(cases.peak, cases.sustained, values)
    return 2 * parameters * cases.tokens / cases.tp / rate * cases.trained


def in_small_kernels(cases: Cases) -> NDArray[np.bool_]:
    """Return where the norms, positions and gates of a model of Llama's kind are not fused."""
    return np.asarray((cases.gated > 0) & ~cases.way("fuses"))


def passes_of(cases: Cases) -> Column:
    """Return how many forward passes a micro batch takes as long as: 3, with recomputation 4."""
    return np.where(cases.recomputation == FULL, 4, 3)


def behind(cases: Cases, busy: Column) -> Column:
    """Return how far the first stage's GPU falls behind its host; ``busy`` is its busy share.

    In 1F1B the first stage starts pp - 1 forward passes in a row, so that its host runs ahead of a
    GPU that is less busy. Where crowded exchanges hold up the GPU, they hold up its host too.
    """
    return np.where(crowded(cases), 0, np.minimum(busy * np.maximum(cases.pp - 1, 1), 1))


# A fused kernel keeps no scores and computes them again: seven products of matrices instead of six,
# two of them forward.
FUSED_PASSES = 3.5
# Instructions of Ampere reach this share of the peak of Hopper's matrix units (arXiv 2402.13499).
OLDER = 0.63


def layer_seconds(cases: Cases, values: Parameters) -> Column:
    """Return what the GPU computes for a layer and a micro batch, forward and backward."""
    passes = passes_of(cases)
    core_passes = np.where(cases.way("keeps_scores"), 3, FUSED_PASSES)
    core_passes = core_passes + (cases.recomputation >= SELECTIVE)
    rate = matrix_flops(cases.peak, cases.sustained, values)
    share = cases.tokens / cases.tp
    matrices = 2 * (passes - cases.adapters) * cases.layer_parameters * share / rate
    context = cases.core_width  # half of what is not masked
    older = (cases.newer > 0) & cases.way("older_attention")
    core_rate = matrix_flops(cases.core_peak, cases.core_sustained, values) * values.attention_share
    core_rate = core_rate * np.where(older, OLDER, 1)
    core = 2 * core_passes * context * share / core_rate
    repeated = cases.tokens * np.where(cases.sequence_parallel > 0, 1 / cases.tp, 1)
    norms = REPEATED + SMALL * (in_small_kernels(cases) & ~cases.way("fuses_norms"))
    elements = cases.hidden * norms * repeated * cases.halves / 2
    elements = elements + cases.mixed_width * (1 - REPEATED - INNER) * share
    gates = np.where(cases.gated > 0, np.where(cases.way("fuses"), GATED, GATED_APART), 1)
    elements = elements + INNER * gates * cases.ffn * cases.top_k / WIDER * share
    traffic = values.elementwise * passes / 3 * elements / cases.memory_bandwidth
    sizes = wave_seconds(cases, rate) + cast_seconds(cases)
    return np.asarray(matrices + sizes + core + traffic + expert_seconds(cases, rate, passes))


# Operations that a host hands over for a layer, forward and backward, as torch's dispatcher counts
# them in bf16, views left out: 40 where norms, positions and activations are one each and gradients
# are added up; 118 in transformers' layer of Llama. Kernels in Triton, which fuse some, take a host
# as long as what they replace: Python starts them. Attention that keeps scores is of programs with
# dropout: 22 more, and the states of random numbers are taken and put back around two of them.
PLAIN, SCORES, APART = (12, 28), (14, 16), (26, 52)
CHECKPOINT = 12  # full recomputation: three states of random numbers, four times each
# Once per step and layer: an operation for each of its twelve tensors, beside what optimizers do to
# all of them at once.
OF_STEP = 12
# Those of a layer with experts beside one without: the router, copies in the order of experts and
# back, products by groups, exchanges with their sizes first. A judgement.
EXPERT_OPERATIONS = 7


def operations_of(cases: Cases) -> Column:
    """Return how many operations a host hands over for a layer and micro batch.

    Exchanges of tensor parallelism are operations, too: all-reduces, or twice as many scatters and
    gathers, and a few more gathers, where sequences are split.
    Layers of hybrid models, which have one part, count as others: a state space is scanned by
    kernels that Python starts, and the open runs of Nemotron 3 Nano are no faster.
    """
    apart = in_small_kernels(cases)
    full = cases.recomputation == FULL
    forward, backward = (
        plain + scores * cases.way("keeps_scores") + small * apart
        for plain, scores, small in zip(PLAIN, SCORES, APART, strict=True)
    )
    layer = forward + backward + np.where(full, forward + CHECKPOINT, 0)
    layer = layer * np.where(cases.experts > 1, EXPERT_OPERATIONS, 1)
    moved = EXCHANGES * np.where(full, 1.5, 1)
    exchanges = np.where(cases.sequence_parallel > 0, moved + GATHERED_AGAIN, moved / 2)
    return np.asarray(layer + exchanges * cases.halves / 2 * (cases.tp > 1))


# Bytes per element of a copy that is sent to an expert: put in the order of experts and back, each
# read and written, forward and backward.
PERMUTED = 16
# What many small products in a kernel reach of what one reaches, on ranks with more tokens than
# others: chosen so that the open runs of mixtures (SimuMax, NVIDIA) take as long as they did.
GROUPED = 0.75
TILE = 128  # rows that a kernel of grouped products computes together: CUTLASS's usual tile


def expert_seconds(cases: Cases, rate: Column, passes: Column) -> Column:
    """Return what experts of a layer take beyond their FLOPs, for a micro batch.

    Copies of tokens are permuted; products are small, and the last tile of every expert's rows is
    half empty; and where few tokens meet an expert, its weights are read for longer than they are
    multiplied.
    """
    share = cases.tokens / cases.tp
    own = cases.experts / cases.ep * cases.expert_parameters / cases.tp
    computing = 2 * passes * cases.top_k * cases.expert_parameters * share / rate
    filled = (computing + 2 * passes * own * TILE / 2 / rate) / GROUPED
    reading = passes * PARAMETER * own / cases.memory_bandwidth
    permuted = PERMUTED * cases.sent_copies * share * cases.hidden / cases.memory_bandwidth
    return np.where(cases.experts > 1, np.maximum(filled, reading) - computing + permuted, 0)


# Elements of a product that a GPU's multiprocessors compute in one go: about 120 of them, a tile of
# 128 x 256 each. Products fill a whole number of such waves: half of one is lost on average, in
# those that are smaller than a wave half of the product, as they are cut into smaller tiles.
WAVE, LOST = 120 * 128 * 256, 0.5


def wave_seconds(cases: Cases, rate: Column) -> Column:
    """Return what the products of a layer lose with every micro batch because tiles are whole."""
    tokens, hidden, tp = cases.tokens, cases.hidden, cases.tp
    queries = hidden * (1 + 2 * cases.kv_heads / cases.heads) / tp
    inner = cases.ffn * cases.top_k / tp
    # Inputs and outputs of the products: queries to values, projection, feed-forward up and down.
    widths = ((hidden, queries), (hidden / tp, hidden), (hidden, (1 + cases.gated) * inner),
              (inner, hidden))  # fmt: skip
    lost: Column = np.zeros(len(cases))
    for inputs, outputs in widths:
        forward = inputs * np.minimum(WAVE, tokens * outputs) * (passes_of(cases) - 2)
        backward = outputs * np.minimum(WAVE, tokens * inputs)
        weights = tokens * np.minimum(WAVE, inputs * outputs) * cases.trained
        lost = lost + forward + backward + weights
    return LOST * 2 * lost / rate * cases.halves / 2


# Bytes to cast an element to fp8 for one product: read in bf16 (2), written in both orders (2).
CAST = 4


def cast_seconds(cases: Cases) -> Column:
    """Return what casting a layer's operands to fp8 takes with every micro batch.

    Inputs of its matrices and gradients of their outputs; weights are cast once per step. What fp8
    gains is the larger the wider the model, as products grow with the square of its width.
    """
    inputs = 3 * cases.hidden * cases.halves / 2 + cases.ffn * cases.top_k
    outputs = 4 * cases.hidden * cases.halves / 2 + (1 + cases.gated) * cases.ffn * cases.top_k
    elements = cases.tokens * (inputs * passes_of(cases) / 3 + outputs) / cases.tp
    is_fp8 = cases.peak > cases.core_peak
    return np.where(is_fp8, CAST * elements / cases.memory_bandwidth, 0)


def score_seconds(cases: Cases) -> Column:
    """Return what the GPU takes to move a layer's scores, where its attention keeps them.

    Those of all pairs of tokens, also of masked ones, as the kernels do not leave them out. Any
    recomputation computes attention again.
    """
    scores = cases.scoring_heads * cases.sequence * cases.tokens / cases.tp
    again = np.where(cases.recomputation >= SELECTIVE, SCORE_FORWARD, 0)
    return (SCORE_FORWARD + SCORE_BACKWARD + again) * scores / cases.memory_bandwidth


def added_seconds(cases: Cases, parameters: Column) -> Column:
    """Return what adding up the gradients of so many parameters takes with every micro batch."""
    return ADDED_TRAFFIC * parameters / cases.tp / cases.memory_bandwidth * cases.trained


def head_seconds(cases: Cases, values: Parameters) -> Column:
    """Return what the GPU computes for the head, never in fp8, and the loss of a micro batch."""
    rate = matrix_flops(cases.core_peak, cases.sustained, values)
    share = cases.tokens / cases.tp
    traffic = LOGIT_TRAFFIC * cases.vocab * share / cases.memory_bandwidth
    return 2 * (3 - cases.adapters) * cases.head_parameters * share / rate + traffic


def optimizer_seconds(cases: Cases) -> Column:
    """Return seconds of the optimizer, which reads and writes its states once."""
    stages, shards = cases.stages, np.where(cases.zero >= 1, cases.shards, 1)
    own = np.where(cases.zero >= 1, cases.ep, 1)[:, None]  # experts have fewer replicas
    most = (stages.parameters + (own - 1) * stages.experts).max(axis=1) / cases.tp
    return np.asarray(OPTIMIZER_TRAFFIC * most / shards / cases.memory_bandwidth * cases.trained)
