"""Memory of a rank: first principles for states, fitted factors for what frameworks keep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import FULL, GPIPE, NONE, Cases, Column
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Framework
from ddlnb.parallelism.forecast.parameters import Fitted, Parameters
from ddlnb.units import GIB

PARAMETER, MOMENTS = 2, 12  # bytes: a parameter; its copy in fp32 and Adam's two moments
HASTE = 7  # how sharply memory is held back where the GPU falls behind
# Bytes per element of the inputs of norms, attention and feed-forward part, which every rank of a
# tensor keeps unless sequences are split too (arXiv 2205.05198, equations 2 and 4).
REPEATED = 8
COMPUTED_AGAIN = 2  # bytes per element that full recomputation keeps: the input of a layer


def footprint(cases: Cases, fitted: Fitted, bound: Column) -> NDArray[np.float64]:
    """Return GiB of every stage's ranks, an array (cases, stages); 0 where there is no stage.

    ``bound`` says how far the GPU is behind its host (`Step.bound`): while it is, exchanges hold
    back the activations that they gathered.
    """
    found = np.zeros(cases.stages.layers.shape)
    for index, framework in enumerate(FRAMEWORKS):
        which = np.flatnonzero(cases.framework == index)
        if len(which):
            gib = of_framework(
                cases.select(which), fitted.of(framework.name), framework, bound[which]
            )
            found[which, : gib.shape[1]] = gib
    return found


def of_framework(
    cases: Cases, values: Parameters, framework: Framework, bound: Column
) -> NDArray[np.float64]:
    """Return GiB of the stages of cases that share a framework."""
    stages = cases.stages
    index = np.arange(stages.layers.shape[1])
    flying = micro_batches_kept(cases, index)
    states = (
        stages.parameters
        * (state_bytes(cases, values, framework.gradient_bytes) / cases.tp)[:, None]
    )
    each = activation_bytes(cases, values, bound)
    if framework.keeps_scores:
        each = each + score_bytes(cases)
    activations = stages.layers * flying * each[:, None]
    logits = stages.heads * (values.logits * cases.tokens * cases.vocab / cases.tp)[:, None]
    working = (cases.recomputation == FULL) * values.kept * cases.tokens * cases.hidden / cases.tp
    total = (states + activations + logits + working[:, None]) / GIB + values.context
    return np.asarray(np.where(index < cases.pp[:, None], total, 0.0))


def reported(cases: Cases, gib: NDArray[np.float64]) -> Column:
    """Return GiB as runs report it, from those of every stage: of the first, or of the fullest."""
    of_first = np.array([framework.reports_first for framework in FRAMEWORKS])
    return np.where(of_first[cases.framework.astype(int)], gib[:, 0], gib.max(axis=1))


def micro_batches_kept(cases: Cases, stage: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return of how many micro batches stages keep activations at their peak: (cases, stages).

    `ddlnb.parallelism.schedules.in_flight` in closed form, for whole stages instead of chunks. With
    1F1B as many as stages follow, and itself. Interleaved, the first stage keeps 1 + (p-1)/(p v)
    times as many (arXiv 2205.05198, section 4.2.3), and later ones hardly fewer: their first chunks
    run ahead, too. GPipe keeps all.
    """
    pp, vpp, rounds = cases.pp[:, None], cases.vpp[:, None], cases.micro_batches[:, None]
    behind = pp - stage - 1
    interleaved = (2 * behind + (vpp - 1) * pp + 1) / vpp
    ahead = np.where(vpp > 1, interleaved, behind + 1)
    all_at_once = (cases.schedule == GPIPE) & (cases.pp > 1)
    ahead = np.where(all_at_once[:, None], rounds, ahead)
    return np.clip(np.minimum(rounds, ahead), 0, None)


def state_bytes(cases: Cases, values: Parameters, gradient_bytes: int) -> Column:
    """Return bytes per parameter of a rank: ZeRO shards optimizer, gradients, parameters."""
    shards = cases.replicas
    sharded = [np.where(cases.zero >= degree, shards, 1) for degree in (1, 2, 3)]
    optimizer, gradients, parameters = sharded
    return (
        PARAMETER / parameters + (gradient_bytes + values.states) / gradients + MOMENTS / optimizer
    )


def activation_bytes(cases: Cases, values: Parameters, bound: Column) -> Column:
    """Return bytes that a layer keeps of a micro batch until its backward pass."""
    width = values.kept + values.kept_inner * cases.ffn / cases.hidden
    held_back = np.where(cases.tp > 1, values.held_back * bound**HASTE, 0)
    repeated = np.where(cases.sequence_parallel > 0, 0, REPEATED * (1 - 1 / cases.tp))
    every = np.where(
        cases.recomputation == FULL,
        COMPUTED_AGAIN / cases.tp,
        width / cases.tp + repeated + held_back,
    )
    return cases.tokens * cases.hidden * every


def score_bytes(cases: Cases) -> Column:
    """Return bytes that a layer keeps of scores, masks and dropped scores (2205.05198, eq. 2)."""
    scores = 5 * cases.heads * cases.sequence * cases.tokens / cases.tp
    return np.where(cases.recomputation == NONE, scores, 0.0)
