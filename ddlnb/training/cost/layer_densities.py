"""A density of top-k for every layer, chosen from its communication-to-computation ratio.

The idea is that of LAGS-SGD (Shi et al. 2019, arXiv 1911.08727, adaptive selection of ratios): a
layer may send as much as the computation that is left can hide. What is hidden is free, and what
is sent more is learnt sooner. The formula here is our own. Message m, in the order in which the
backward pass makes messages ready, is ready at r_m and takes

    t_m(d) = seconds to compress + latencies / a + seconds of the bytes / b

at density d, where a and b are the shares of their rate that computation leaves. One after the
other, messages have all arrived at

    E(d) = max over m of r_m + t_m(d_m) + t_{m+1}(d_{m+1}) + ... + t_M(d_M).

Densities are raised from the least one, all alike, as long as E grows by no more than a given share
of the computation. Where one of these sums allows no more, the layers in it stay, and those that
are ready earlier go on: the earlier a gradient is ready, the more computation is left to hide it.
So no density can be raised without lowering one that is no larger, and none is smaller than the
largest fixed density that ends as soon. Where all entries cost less than some, all are sent.

Which gradients make a message depends on what is sent of them (`Compressing.plans`): of all plans
that a fixed density may have, the one is taken on which the least density is largest, and then
most entries are sent, if the whole iteration, played, takes no longer; else the largest fixed
density of which this is so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.profile import FREE, CompressionProfile, compression_profile
from ddlnb.compression.top_k import TopK
from ddlnb.errors import require
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.simulator.program import Program, lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.tasks import Numbers
from ddlnb.training.cost.estimate import BASE
from ddlnb.training.cost.overlapped import (
    Compressing,
    IterationCost,
    compressed_message,
    overlapped_cost,
    pieces_of_messages,
    require_all_to_all,
    with_own_plans,
)
from ddlnb.training.cost.requests import Shape, compressed_pieces, is_built_in, tensor_shapes
from ddlnb.training.method import training_method
from ddlnb.training.worker import Compression
from ddlnb.workloads.workload import Workload

LEAST, MOST = 0.001, 1.0  # at MOST a layer is not compressed
DENSITIES = (LEAST, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, MOST)
HIDDEN = 0.01  # of an iteration's computation: what counts as nothing


class Level(NamedTuple):
    """Densities of the messages, and the seconds that each message then takes."""

    seconds: Numbers
    densities: Numbers


def layer_densities(
    workload: Workload,
    cluster: str | Cluster,
    profile: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    *,
    workers: int | None = None,
    longer: float = HIDDEN,
    feedback: bool = True,
    candidates: Sequence[float] = DENSITIES,
) -> LayerTopK:
    """Return top-k with a density for every layer, chosen among ``candidates`` as said above.

    ``longer`` is the share of the computation that an iteration may take longer than with the least
    density for all: more than HIDDEN buys entries with communication that nothing hides. Messages
    are those of ``base``; all tensors of one have one density. ``profile`` must have the seconds of
    top-k at every candidate below 1. What unpacking takes is hidden by nothing and does not count.
    Raises InputError for a workload of no built-in model, whose order of parameters is not known,
    for a base that cuts tensors or goes through servers, and for candidates that are not from LEAST
    to MOST.
    """
    cluster, base = get_cluster(cluster, workers), get_method(base)
    profile = compression_profile(profile)
    require(
        is_built_in(workload),
        f"workload {workload.model!r} is of no built-in model, so that the order of its parameters "
        f"is not known; write the densities yourself: {LayerTopK.name}((0.1, 0.001)), say",
    )
    require_all_to_all(base)
    require(
        len(candidates) > 0 and all(LEAST <= one <= MOST for one in candidates),
        f"candidates {list(candidates)} must be densities from {LEAST} to {MOST:g}",
    )
    require(0 <= longer < math.inf, f"longer {longer!r} must be a share of the computation")
    densities, shapes = sorted(set(candidates)), tensor_shapes(workload).values()
    chosen = _hidden(workload, cluster, profile, base, densities, longer, feedback)
    alike, here = [(one,) * len(shapes) for one in densities], with_own_plans(cluster)

    def cost(one: tuple[float, ...]) -> IterationCost:
        method = training_method(f"bsp + {LayerTopK(one)}" + " + feedback" * feedback)
        return overlapped_cost(workload, here, method, profile, base)

    least = cost(alike[0])
    allowed = least.iteration_seconds + longer * least.compute_seconds
    fixed = next(one for one in reversed(alike) if cost(one).iteration_seconds <= allowed)
    elements = [math.prod(shape) for shape in shapes]
    better = sorted(
        {one for one in chosen if min(one) >= fixed[0]},
        key=lambda one: (min(one), np.dot(one, elements)),
        reverse=True,
    )
    held = (one for one in better if cost(one).iteration_seconds <= allowed)
    return LayerTopK(next(held, fixed))


def _hidden(
    workload: Workload,
    cluster: Cluster,
    profile: CompressionProfile,
    base: Method,
    densities: Sequence[float],
    longer: float,
    feedback: bool,
) -> list[tuple[float, ...]]:
    """Return the densities by tensor that each plan has by the formula, where it ends in time."""
    found = []
    for plan in _plans(workload, cluster, profile, base, densities, feedback):
        program = lower(workload, cluster, plan)
        groups = pieces_of_messages(plan, tensor_shapes(workload))
        seconds = [
            [_seconds(group, density, program, cluster, profile, feedback) for group in groups]
            for density in densities
        ]
        found.append((plan, program, _cheapest(np.array(seconds), densities)))
    soonest = min(_end(_ready_seconds(program), first.seconds) for _, program, (first, *_) in found)
    chosen = []
    for plan, program, levels in found:
        latest = soonest + longer * program.compute_seconds
        if _end(_ready_seconds(program), levels[0].seconds) <= latest:
            chosen.append(_by_parameter(workload, plan, _raised(levels, program, latest)))
    return chosen


def _plans(
    workload: Workload,
    cluster: Cluster,
    profile: CompressionProfile,
    base: Method,
    densities: Sequence[float],
    feedback: bool,
) -> list[Plan]:
    """Return the plans that the base has for some density of all layers, each once."""
    dense = plan_on(with_own_plans(cluster), workload, base)
    found = {dense.messages: dense}
    for density in densities:
        if density < MOST:
            compression = Compression(TopK(density), feedback)
            made = Compressing(workload, cluster, profile, compression)
            found |= {plan.messages: plan for plan in made.plans(base)}
    return list(found.values())


def density_table(workload: Workload, chosen: LayerTopK) -> pd.DataFrame:
    """Return one row per tensor in the order of the backward pass: its elements and density."""
    densities = dict(zip(tensor_shapes(workload), chosen.densities, strict=True))
    rows = [
        (gradient.name, gradient.elements, densities[gradient.name])
        for gradient in workload.gradients
    ]
    return pd.DataFrame(rows, columns=["tensor", "elements", "density"])


def _raised(levels: Sequence[Level], program: Program, latest: float) -> Numbers:
    """Return the density of every message, raised from the first level as far as time allows."""
    ready = _ready_seconds(program)
    seconds, densities = levels[0].seconds.copy(), levels[0].densities.copy()
    rising = len(ready)  # the messages before this one
    for level in levels[1:]:
        while rising > 0:
            raised = seconds.copy()
            raised[:rising] = level.seconds[:rising]
            if _end(ready, raised) <= latest:
                seconds = raised
                densities[:rising] = level.densities[:rising]
                break
            rising -= 1
    return densities


def _end(ready: Numbers, seconds: Numbers) -> float:
    """Return when messages that take these seconds, one after the other, have all arrived."""
    return float((ready + seconds[::-1].cumsum()[::-1]).max())


def _cheapest(seconds: Numbers, densities: Sequence[float]) -> list[Level]:
    """Return, for every candidate, the quickest density of each message that is no smaller.

    Above a density of 1/n an all-reduce of all entries takes less time than gathering some.
    """
    levels = []
    for first in range(len(densities)):
        best = first + seconds[first:].argmin(0)
        levels.append(Level(seconds[best, np.arange(seconds.shape[1])], np.array(densities)[best]))
    return levels


def _ready_seconds(program: Program) -> Numbers:
    """Return when every message is ready if nothing but computation takes time."""
    done = program.task_seconds.cumsum()
    ready = np.empty(len(program.messages))
    for task, seconds in zip(program.tasks.listed, done, strict=True):
        ready[list(task.readies)] = seconds
    return ready


def _seconds(
    message: Sequence[Shape],
    density: float,
    program: Program,
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool,
) -> float:
    """Return the seconds to compress a message and to send it beside the computation."""
    compressor = LayerTopK((density,) * len(message))
    made = compressed_message(compressed_pieces(compressor, message), cluster, profile, feedback)
    stage = program.stages[0]
    before = (made.cost.latency + made.cost.copies) / stage.latency_share
    work = made.cost.work / float(stage.shares[0])
    return float(made.encode_seconds + before + work)


def _by_parameter(workload: Workload, plan: Plan, densities: Numbers) -> tuple[float, ...]:
    """Return the density of every tensor's message, in the order of the parameters."""
    found = {
        piece.gradient: float(density)
        for message, density in zip(plan.messages, densities, strict=True)
        for piece in message.pieces
    }
    return tuple(found[name] for name in tensor_shapes(workload))
