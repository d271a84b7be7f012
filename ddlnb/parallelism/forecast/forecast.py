"""Throughput and memory of cases, with the interval and the chance that a run is slow.

In some runs every transfer between stages loses a quarter of a second. Which runs is not known
before: it is a chance. Every link between stages on different nodes has the same small one of being
slow, and a run is slow where any of its links is. It is higher where every replica keeps whole
optimizer states, and near one where a rank asks for more memory than there is.

Memory of a rank: first principles for states, fitted factors for what frameworks keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import FULL, NONE, Cases, Column
from ddlnb.parallelism.forecast.exchanges import (
    over_sockets,
    spans,
)
from ddlnb.parallelism.forecast.frameworks import (
    FRAMEWORKS,
    Fitted,
    Parameters,
    saved_fit,
)
from ddlnb.parallelism.forecast.step import (
    MEMORY_RESERVED,
    Step,
    step,
    values_of,
)
from ddlnb.parallelism.schedules import SCHEDULES
from ddlnb.units import GIB

MOST_LINKS = 512  # beyond which the chance is kept: runs of at most 60 links say no more
SHORT = 8  # micro batches: with fewer, no run with whole optimizer states was slow
WITHOUT_MEMORY = 0.97  # chance where a rank asks for more than there is: 12 of 13 runs


def chance_of_slow(cases: Cases, fitted: Fitted, lacking: NDArray[np.bool_]) -> Column:
    """Return the chance that a run of each case is slow; ``lacking`` marks a lack of memory.

    1 - exp(-q l) with l links across nodes, of which each is slow with the chance q (Poisson),
    times the chance that links of the cluster are ever slow. Zero with one stage or one node, where
    no run was slow that had all of its micro batches, with one replica on a cluster that had slow
    runs, and for frameworks without the mode.
    """
    values = fitted.parameters
    whole = (cases.zero == 0) & (cases.micro_batches > SHORT)
    each = np.exp(values.slow_link + values.slow_whole * whole)
    links = np.minimum(links_across(cases), MOST_LINKS)
    chance = np.where(lacking, WITHOUT_MEMORY, -np.expm1(-each * links)) * values.slow_cluster
    may = cases.way("slow_transfers") & (cases.pp > 1) & (cases.nodes > 1)
    may &= (cases.dp > 1) | (values.slow_cluster < 1)
    return np.asarray(np.where(may, chance, 0.0))


def links_across(cases: Cases) -> Column:
    """Return how many links between ranks of neighbouring stages lead to another node.

    Tensors, then replicas lie on neighbouring ranks: a stage that fills nodes is left by all links
    of its ranks, and of smaller stages only the last on a node is.
    """
    ranks = cases.gpus / cases.pp
    boundaries = np.where(ranks >= cases.gpus_per_node, cases.pp, cases.nodes) - 1
    return np.asarray(ranks * boundaries)


PARAMETER, MOMENTS = 2, 12  # bytes: a parameter; its copy in fp32 and Adam's two moments
HASTE = 7  # how sharply memory is held back where the GPU falls behind
# Bytes per element of the inputs of norms, attention and feed-forward part, which every rank of a
# tensor keeps unless sequences are split too (arXiv 2205.05198, equations 2 and 4).
REPEATED = 8
# Bytes per element of a copy that went to an expert, and of what came back. Selective recomputation
# keeps none, as Megatron-Core's modules and torchtitan's choice of operations can have it.
SENT_KEPT = 4
COMPUTED_AGAIN = 2  # bytes per element that full recomputation keeps: the input of a layer


def footprint(cases: Cases, fitted: Fitted, bound: Column) -> NDArray[np.float64]:
    """Return GiB of every stage's ranks, an array (cases, stages); 0 where there is no stage.

    ``bound`` says how far the GPU is behind its host (`Step.bound`): while it is, exchanges hold
    back the activations that they gathered.
    """
    values = values_of(cases, fitted)
    stages = cases.stages
    index = np.arange(stages.layers.shape[1])
    flying = micro_batches_kept(cases, index)
    width = cases.way("gradient_bytes")
    dense = state_bytes(cases, values, width, cases.shards)[:, None]
    own = state_bytes(cases, values, width, cases.shards / cases.ep)[:, None]
    states = (stages.parameters - stages.experts) * dense + stages.experts * own
    states = states / cases.tp[:, None]
    each = activation_bytes(cases, values, bound)
    each = each + cases.way("keeps_scores") * score_bytes(cases)
    activations = stages.layers * flying * each[:, None]
    logits = stages.heads * (values.logits * cases.tokens * cases.vocab / cases.tp)[:, None]
    again = values.kept * cases.halves / 2 / cases.tp + SENT_KEPT * cases.sent_copies
    working = (cases.recomputation == FULL) * again * cases.tokens * cases.hidden
    total = (states + activations + logits + working[:, None]) / GIB + np.asarray(values.context)[
        :, None
    ]
    return np.asarray(np.where(index < cases.pp[:, None], total, 0.0))


def reported(cases: Cases, gib: NDArray[np.float64]) -> Column:
    """Return GiB as runs report it, from those of every stage: of the first, or of the fullest."""
    return np.where(cases.way("reports_first"), gib[:, 0], gib.max(axis=1))


def micro_batches_kept(cases: Cases, stage: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return of how many micro batches stages keep activations at their peak: (cases, stages).

    `ddlnb.parallelism.schedules.in_flight` for whole stages instead of chunks. Interleaved, the
    first stage keeps 1 + (p-1)/(p v) times as many as with 1F1B (arXiv 2205.05198, section 4.2.3),
    and later ones hardly fewer: their first chunks run ahead, too.
    """
    pp, vpp, rounds = cases.pp[:, None], cases.vpp[:, None], cases.micro_batches[:, None]
    ahead = np.ones((len(cases), len(stage)))  # without stages, one after the other
    for name in np.unique(cases.schedule):
        own = ((cases.schedule == name) & (cases.pp > 1))[:, None]
        ahead = np.where(own, SCHEDULES[name].ahead(stage, pp, rounds, vpp) / vpp, ahead)
    return np.clip(np.minimum(rounds, ahead), 0, None)


def state_bytes(cases: Cases, values: Parameters, gradient_bytes: Column, shards: Column) -> Column:
    """Return bytes per parameter of a rank: ZeRO shards optimizer, gradients, parameters."""
    sharded = [np.where(cases.zero >= degree, shards, 1) for degree in (1, 2, 3)]
    optimizer, gradients, parameters = sharded
    kept = (gradient_bytes + values.states) / gradients + MOMENTS / optimizer
    return PARAMETER / parameters + kept * (1 - cases.adapters)


def activation_bytes(cases: Cases, values: Parameters, bound: Column) -> Column:
    """Return bytes that a layer keeps of a micro batch until its backward pass."""
    inner = values.kept_inner * cases.ffn * cases.top_k / cases.hidden
    held_back = np.where(cases.tp > 1, values.held_back * bound**HASTE, 0)
    repeated = np.where(cases.sequence_parallel > 0, 0, REPEATED * (1 - 1 / cases.tp))
    of_parts = (values.kept / cases.tp + repeated + held_back) * cases.halves / 2
    copies = SENT_KEPT * cases.sent_copies * (cases.recomputation == NONE)
    every = np.where(
        cases.recomputation == FULL,
        COMPUTED_AGAIN / cases.tp,
        of_parts + inner / cases.tp + copies,
    )
    return cases.tokens * cases.hidden * every


def score_bytes(cases: Cases) -> Column:
    """Return bytes that a layer keeps of scores, masks and dropped scores (2205.05198, eq. 2)."""
    scores = 5 * cases.scoring_heads * cases.sequence * cases.tokens / cases.tp
    return np.where(cases.recomputation == NONE, scores, 0.0)


FREEDOM = 2.0  # degrees of Student's t: tails are heavy
INTERVAL = 0.90
HALVINGS = 40
USABLE = 0.95  # of a GPU's memory, for what is needed at least
STRETCH = 1.06  # of it, for what is asked for where all that is held back counts
MEMORY_SPREAD = 0.08  # standard deviation of the log of forecast memory where it was fitted
MEMORY_ELSEWHERE = 0.25  # and of other frameworks, as those that print it show
MOST_SHOWN = 0.96  # of a GPU's memory, the most that a run ever reports
ALIKE = 0.02  # relative difference of rates that are the same
FITTED_GPUS = 128  # on more, the interval grows
WIDER = 0.25  # by this share with every doubling
SHARED_NETWORK = 0.5  # with every doubling of the nodes, by this share of one node's spread


@dataclass(frozen=True)
class Outlook:
    """What is forecast of every case.

    - step: seconds of a run that is not slow, by what they go to.
    - spread: the scale of Student's t of the logarithm of measured by forecast seconds.
    - chance: that a run is slow; seconds: the median of the two kinds of runs.
    - tokens_per_s_per_gpu: the median.
    - memory_gib: at the peak of a rank, as runs of the framework report it: nanotron's of the first
      stage, others of the fullest.
    - most_gib: what the fullest stage needs at least; chance_of_fit: that a GPU has that; fits:
      whether that is likely, also with what exchanges hold back, and no stage is without a layer.
    """

    cases: Cases
    step: Step
    spread: Column
    chance: Column
    seconds: Column
    memory_gib: Column
    most_gib: Column
    chance_of_fit: Column
    fits: NDArray[np.bool_]

    @property
    def tokens_per_s_per_gpu(self) -> Column:
        """The median of the forecast."""
        return rate(self.cases, self.seconds)

    @property
    def expected_seconds(self) -> Column:
        """Seconds at the mean throughput of slow runs and others."""
        quick = self.step.seconds
        return 1 / ((1 - self.chance) / quick + self.chance / (quick + self.step.slow))

    @cached_property
    def low(self) -> Column:
        """Tokens per second and GPU above which 95 % of runs are, quick or slow ones."""
        return self._end((1 + INTERVAL) / 2)

    @cached_property
    def high(self) -> Column:
        """Those above which 5 % are."""
        return self._end((1 - INTERVAL) / 2)

    def _end(self, share: float) -> Column:
        """Return tokens per second and GPU that so many runs do not take longer for."""
        every = np.arange(len(self.cases))
        return rate(self.cases, self.quantile(share, np.ones(len(every)), every))

    def quantile(self, share: float, weight: Column, owner: NDArray[np.intp]) -> Column:
        """Return the seconds below which a share of runs is: a mixture of log-t distributions.

        Two for every case, of runs that are slow and of others; cases of the same ``owner`` are
        mixed by their weights.
        """
        from scipy.special import stdtr

        quick, slow = np.log(self.step.seconds), np.log(self.step.seconds + self.step.slow)
        rows = int(owner[-1]) + 1
        low, high = np.full(rows, np.inf), np.full(rows, -np.inf)
        np.minimum.at(low, owner, quick - 60 * self.spread)
        np.maximum.at(high, owner, slow + 60 * self.spread)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = (1 - self.chance) * stdtr(FREEDOM, (middle[owner] - quick) / self.spread)
            below += self.chance * stdtr(FREEDOM, (middle[owner] - slow) / self.spread)
            is_below = np.bincount(owner, weight * below) < share
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return np.asarray(np.exp((low + high) / 2))

    @property
    def mfu(self) -> Column:
        """FLOPs of the model per second, as a share of the GPU's peak (`Cases.model_flops`)."""
        return self.tokens_per_s_per_gpu * self.cases.model_flops / self.cases.peak


def rate(cases: Cases, seconds: Column) -> Column:
    """Return tokens per second and GPU of steps that take so long."""
    return cases.step_tokens / (cases.gpus * seconds)


def forecast(cases: Cases, fitted: Fitted | None = None, spread: Column | None = None) -> Outlook:
    """Return what is forecast of all cases, by the saved fit unless another one is given.

    ``spread``: the scale of each case instead of what its framework and cluster say (`spread_of`).
    """
    from scipy.special import ndtr

    fitted = fitted or saved_fit()
    bound = step(cases, fitted).bound
    memory = cases.memory / GIB
    asked = footprint(cases, fitted, bound)
    lacking = asked[:, 0] > memory * (1 - MEMORY_RESERVED)
    found = step(cases, fitted, lacking)
    chance = chance_of_slow(cases, fitted, lacking)
    spread = spread_of(cases, fitted) if spread is None else spread
    least = footprint(cases, fitted, np.zeros(len(cases))).max(axis=1)
    return Outlook(
        cases=cases,
        step=found,
        spread=np.broadcast_to(spread, len(cases)),
        chance=chance,
        seconds=found.seconds + np.where(chance > 0.5, found.slow, 0),
        memory_gib=np.minimum(reported(cases, asked), memory * MOST_SHOWN),
        most_gib=least,
        chance_of_fit=ndtr(np.log(memory * USABLE / least) / memory_spread(cases)),
        fits=(least <= memory * USABLE) & (asked.max(axis=1) <= memory * STRETCH) & runs(cases),
    )


def memory_spread(cases: Cases) -> Column:
    """Return the standard deviation of the logarithm of forecast memory."""
    return np.where(cases.way("reports_first"), MEMORY_SPREAD, MEMORY_ELSEWHERE)


def runs(cases: Cases) -> NDArray[np.bool_]:
    """Return whether no more than one stage is empty: runs with more of them have all crashed."""
    stages = cases.stages
    there = np.arange(stages.layers.shape[1]) < cases.pp[:, None]
    return np.asarray(((stages.layers + stages.heads == 0) & there).sum(axis=1) < 2)


def spread_of(cases: Cases, fitted: Fitted) -> Column:
    """Return the scale of the logarithm of measured by forecast seconds.

    Of the one cluster that a framework was fitted to, that of its runs; elsewhere that of sources
    that were left out, and no less.
    """
    elsewhere = fitted.spread["elsewhere"]
    found = np.full(len(cases), elsewhere)
    names, which = cases.frameworks
    for at, name in enumerate(names):
        rows, one = np.flatnonzero(which == at), FRAMEWORKS[name]
        own = cases.select(rows)
        if one.network:
            seen = alike(own.core_peak, one.gpus[0])
            home = (own.nodes == 1) | alike(own.across, one.network) & ~over_sockets(own)
            at_home = (
                np.where(spans(own), fitted.spread["across"], fitted.spread["inside"])
                * by_nodes(own)
                if one.shared
                else fitted.spread[name] * by_gpus(own)
            )
            found[rows] = np.where(seen & home, at_home, np.maximum(elsewhere, at_home * seen))
    return found


def by_gpus(cases: Cases) -> Column:
    """Return by which factor runs differ more on more GPUs than any fit has seen."""
    return 1 + WIDER * np.log2(np.maximum(cases.gpus / FITTED_GPUS, 1))


def by_nodes(cases: Cases) -> Column:
    """Return by which factor runs on a shared network differ more than those on one node."""
    return 1 + SHARED_NETWORK * np.log2(cases.nodes)


def alike(column: Column, value: float | Column) -> NDArray[np.bool_]:
    """Return which rates are the same, up to what data sheets round."""
    return np.asarray(np.abs(column / value - 1) < ALIKE)
