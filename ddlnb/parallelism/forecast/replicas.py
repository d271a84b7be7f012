"""What replicas exchange: gradients that are reduced, sharded parameters that are gathered.

A framework that overlaps starts both while the GPU computes: gradients are reduced during the last
backward pass of a step, parameters are gathered during its first forward pass, and with ZeRO-3 both
during every pass. Chunks of an interleaved pipeline take turns: beside the exchanges of one are the
passes of several micro batches through the others. What takes longer than the computation beside it
is exposed, and so is the layer that has none beside it: the last whose gradients are ready, the
first whose parameters are needed. Half of what is hidden comes back: exchanges take multiprocessors
and memory bandwidth of the GPU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.between import reached
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.longer import longer_of
from ddlnb.parallelism.forecast.parameters import Parameters

PARAMETER = 2  # bytes of a parameter that is gathered, and of a gradient that ZeRO-3 scatters
# Share of a hidden exchange by which the kernels beside it take longer: a judgement. NCCL takes 16
# to 32 of 108 to 132 multiprocessors (0.2); FSDP on two nodes lost as if nothing were hidden (1).
TAKEN = 0.5
GATHERS = 3  # of ZeRO-3 per layer and micro batch: parameters twice, gradients once


def gathered_seconds(cases: Cases, values: Parameters) -> Column:
    """Return seconds of a layer's gathered parameters and scattered gradients (ZeRO-3, FSDP)."""
    per_layer = GATHERS * PARAMETER * cases.held_layer_parameters / cases.tp
    inside, across = replica_rates(cases, values)
    return np.where(cases.zero >= 3, per_layer * (inside + across), 0)


def replica_rates(cases: Cases, values: Parameters) -> tuple[Column, Column]:
    """Return seconds per byte of a gather over the replicas, inside nodes and across them."""
    per_node = np.maximum(cases.gpus_per_node / cases.tp, 1)
    near = np.minimum(cases.replicas, np.where(cases.nodes > 1, per_node, cases.replicas))
    apart = np.maximum(cases.replicas / near, 1)
    inside = (near - 1) / near / (values.inside_share * cases.inside)
    growth = 1 + values.reduction_growth * (apart - 1)
    groups = cases.gpus_per_node / near  # of a node, which share its network
    across = groups * (apart - 1) / apart * growth / reached(cases, values.reduction_share)
    return inside, across


def gathered_beside(
    cases: Cases, busy: NDArray[np.float64], held: NDArray[np.float64], gathered: Column
) -> NDArray[np.float64]:
    """Return seconds of stages that hold so many layers and gather each of them (ZeRO-3).

    ``busy``: what they compute and exchange otherwise, beside which frameworks that overlap gather.
    """
    whole = held * gathered[:, None]
    apart = busy + whole
    first = np.where(held > 0, gathered[:, None], 0)
    together = np.minimum(longer_of(busy + TAKEN * whole, whole) + first, apart)
    return np.where(cases.overlap[:, None] > 0, together, apart)


def replica_seconds(
    cases: Cases, values: Parameters, gradient_bytes: int, stage: Column, forward: Column
) -> Column:
    """Return seconds of a step in which replicas exchange and nothing is computed.

    Gradients are reduced, with ZeRO-1 and 2 parameters gathered; ZeRO-3 does both with every micro
    batch instead (`gathered_beside`). ``stage``: seconds of a micro batch on the slowest stage,
    forward and backward; ``forward``: the share of the forward pass.
    """
    inside, across = replica_rates(cases, values)
    each = cases.stages.parameters.max(axis=1) / cases.tp * (inside + across)
    beside = stage * passes_beside(cases)
    reduced = np.select([cases.zero >= 3, cases.zero >= 1], [0, gradient_bytes], 2 * gradient_bytes)
    gathered = np.where((cases.zero >= 1) & (cases.zero < 3), PARAMETER, 0)
    backward = exposed(cases, each * reduced, beside * (1 - forward))
    return backward + exposed(cases, each * gathered, beside * forward)


def passes_beside(cases: Cases) -> Column:
    """Return how many passes through a stage are beside what its replicas exchange once per step.

    One, without chunks. With v of them the last backward pass of the chunk that is ready first is
    followed by those of p micro batches (p stages) through every other chunk: 1 + p (v - 1) passes
    through a chunk, on the first stage. The first forward passes are the same the other way round.
    """
    others = np.minimum(cases.pp, cases.micro_batches) * (cases.vpp - 1)
    return np.asarray((1 + others) / cases.vpp)


def exposed(cases: Cases, seconds: Column, beside: Column) -> Column:
    """Return what of an exchange is not hidden by the computation ``beside`` it.

    All of it where the framework does not overlap; otherwise one layer's part at least, what takes
    longer than the computation, and what the computation loses.
    """
    one_layer = seconds / np.maximum(cases.stages.layers.max(axis=1), 1)
    hidden = (1 - TAKEN) * np.minimum(seconds - one_layer, beside)
    return seconds - np.where(cases.overlap > 0, hidden, 0)
