"""Throughput and memory of cases, with the interval and the chance that a run is slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.between import over_sockets
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.footprint import footprint, reported
from ddlnb.parallelism.forecast.frameworks import NAMES
from ddlnb.parallelism.forecast.parameters import Fitted, kept
from ddlnb.parallelism.forecast.slow_mode import chance_of_slow
from ddlnb.parallelism.forecast.step import MEMORY_RESERVED, Step, spans, step
from ddlnb.units import GIB

FREEDOM = 2.0  # degrees of Student's t: tails are heavy
INTERVAL = 0.90
HALVINGS = 40
USABLE = 0.95  # of a GPU's memory, for what is needed at least
STRETCH = 1.06  # of it, for what is asked for where all that is held back counts
MEMORY_SPREAD = 0.08  # standard deviation of the log of forecast memory
MOST_SHOWN = 0.96  # of a GPU's memory, the most that a run ever reports
A100, H100 = 312e12, 989.4e12  # FLOP/s
# What each framework was fitted to: the GPU, and bytes/s between nodes of the cluster, None where
# several papers were. NeMo was fitted to nothing.
FITTED_ON: dict[str, tuple[float, float | None]] = {
    "nanotron": (H100, 400e9),
    "fsdp": (A100, 200e9),
    "megatron": (A100, None),
}
ALIKE = 0.02  # relative difference of rates that are the same
FITTED_GPUS = 64  # on more, the interval grows
WIDER = 0.25  # by this share with every doubling
SHARED = "nanotron"  # its cluster's network was shared: the more nodes, the less runs are alike
SHARED_NETWORK = 0.5  # by this share of one node's spread with every doubling of the nodes


@dataclass(frozen=True)
class Outlook:
    """What is forecast of every case.

    - step: seconds of a run that is not slow, by what they go to.
    - chance: that a run is slow; seconds: the median of the two kinds of runs.
    - tokens_per_s_per_gpu, low, high: the median, and the 90 % interval over both kinds of runs.
    - memory_gib: at the peak of a rank, as runs of the framework report it: nanotron's of the first
      stage, others of the fullest.
    - most_gib: what the fullest stage needs at least; chance_of_fit: that a GPU has that; fits:
      whether that is likely, also with what exchanges hold back, and no stage is without a layer.
    """

    cases: Cases
    step: Step
    chance: Column
    seconds: Column
    low: Column
    high: Column
    memory_gib: Column
    most_gib: Column
    chance_of_fit: Column
    fits: NDArray[np.bool_]

    @property
    def tokens_per_s_per_gpu(self) -> Column:
        """The median of the forecast."""
        return rate(self.cases, self.seconds)

    @property
    def mfu(self) -> Column:
        """FLOPs of the model per second, as a share of the GPU's peak (`Cases.model_flops`)."""
        return self.tokens_per_s_per_gpu * self.cases.model_flops / self.cases.peak


def rate(cases: Cases, seconds: Column) -> Column:
    """Return tokens per second and GPU of steps that take so long."""
    return cases.step_tokens / (cases.gpus * seconds)


def forecast(cases: Cases, fitted: Fitted | None = None, spread: Column | None = None) -> Outlook:
    """Return what is forecast of all cases, by the kept fit unless another one is given.

    ``spread``: the scale of each case instead of what its framework and cluster say (`spread_of`).
    """
    from scipy.special import ndtr

    fitted = fitted or kept()
    bound = step(cases, fitted).bound
    memory = cases.memory / GIB
    asked = footprint(cases, fitted, bound)
    lacking = asked[:, 0] > memory * (1 - MEMORY_RESERVED)
    found = step(cases, fitted, lacking)
    chance = chance_of_slow(cases, fitted, lacking)
    quick, slow = found.seconds, found.seconds + found.slow
    spread = spread_of(cases, fitted) if spread is None else spread
    ends = [
        _quantile(share, quick, slow, chance, spread)
        for share in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
    ]
    least = footprint(cases, fitted, np.zeros(len(cases))).max(axis=1)
    return Outlook(
        cases=cases,
        step=found,
        chance=chance,
        seconds=np.where(chance > 0.5, slow, quick),
        low=rate(cases, ends[1]),
        high=rate(cases, ends[0]),
        memory_gib=np.minimum(reported(cases, asked), memory * MOST_SHOWN),
        most_gib=least,
        chance_of_fit=ndtr(np.log(memory * USABLE / least) / MEMORY_SPREAD),
        fits=(least <= memory * USABLE) & (asked.max(axis=1) <= memory * STRETCH) & runs(cases),
    )


def runs(cases: Cases) -> NDArray[np.bool_]:
    """Return whether no more than one stage is empty: runs with more of them have all crashed."""
    stages = cases.stages
    there = np.arange(stages.layers.shape[1]) < cases.pp[:, None]
    return np.asarray(((stages.layers + stages.heads == 0) & there).sum(axis=1) < 2)


def spread_of(cases: Cases, fitted: Fitted) -> Column:
    """Return the scale of the logarithm of measured by forecast seconds.

    Of a cluster that the framework was fitted to, that of its runs; of another one, that of papers
    that were left out; of a framework or GPU that nothing was fitted to, that of frameworks that
    were left out, and of both at once the sum of two such variances.
    """
    gpus = np.array([peak for peak, _ in FITTED_ON.values()])
    seen = alike(cases.core_peak[:, None], gpus).any(axis=1)
    unfitted = ~np.isin(cases.framework, [NAMES.index(name) for name in FITTED_ON])
    found = fitted.spread["elsewhere"] * np.where(unfitted & ~seen, np.sqrt(2), 1)
    beyond = by_gpus(cases)
    found = found * beyond
    for name, (peak, across) in FITTED_ON.items():
        if name == SHARED:
            own = np.where(spans(cases), fitted.spread["across"], fitted.spread["inside"])
            own = own * by_nodes(cases)
        else:
            own = fitted.spread[name] * beyond
        if across is None:
            cluster = np.zeros(len(cases), bool)
        else:
            cluster = (cases.nodes == 1) | alike(cases.across, across) & ~over_sockets(cases)
        own = np.where(cluster, own, np.maximum(own, fitted.spread["paper"] * beyond))
        here = (cases.framework == NAMES.index(name)) & alike(cases.core_peak, peak)
        found = np.where(here, own, found)
    return np.asarray(found)


def by_gpus(cases: Cases) -> Column:
    """Return by which factor runs differ more on more GPUs than any fit has seen."""
    return 1 + WIDER * np.log2(np.maximum(cases.gpus / FITTED_GPUS, 1))


def by_nodes(cases: Cases) -> Column:
    """Return by which factor runs on a shared network differ more than those on one node."""
    return 1 + SHARED_NETWORK * np.log2(cases.nodes)


def alike(column: Column, value: float | Column) -> NDArray[np.bool_]:
    """Return which rates are the same, up to what data sheets round."""
    return np.asarray(np.abs(column / value - 1) < ALIKE)


def _quantile(share: float, quick: Column, slow: Column, chance: Column, spread: Column) -> Column:
    """Return the seconds below which a share of runs is: a mixture of two log-t distributions."""
    from scipy.special import stdtr

    low, high = np.log(quick) - 60 * spread, np.log(slow) + 60 * spread
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = (1 - chance) * stdtr(FREEDOM, (middle - np.log(quick)) / spread)
        below += chance * stdtr(FREEDOM, (middle - np.log(slow)) / spread)
        low, high = np.where(below < share, middle, low), np.where(below < share, high, middle)
    return np.asarray(np.exp((low + high) / 2))
