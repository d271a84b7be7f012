"""What a fit is worth: trivial forecasts that it has to beat, and what each effect contributes.

A trivial forecast takes an observation of an iteration and the observations that were seen, and
returns the seconds that it expects, or NaN where it cannot say. How well fits predict what they
have not seen is measured by `benchmarks.held_out`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.calibration.observations import Observation, predictions
from ddlnb.calibration.parameters import ParameterValues
from ddlnb.clusters.effects import EFFECTS
from ddlnb.errors import require_known
from ddlnb.plans.alpha_beta import AlphaBeta, ring_all_reduce
from ddlnb.simulator.simulate import Cell
from ddlnb.units import bandwidth_from, seconds_from

TrivialForecast = Callable[[Observation, Sequence[Observation]], float]


def _link(latency: str, bandwidth: str) -> AlphaBeta:
    return AlphaBeta(seconds_from(latency), 1 / bandwidth_from(bandwidth))


# Bandwidths as sold. Latencies from the times of the survey's messages of 16 KB and 1 MB
# (A14, A15).
NOMINAL_LINKS = {
    "10GbE": _link("95.6 us", "10 Gb/s"),
    "100GbE": _link("22.4 us", "100 Gb/s"),
    "100GbIB": _link("6.5 us", "100 Gb/s"),
}
NOMINAL_INSIDE = _link("0 s", "15.75 GB/s")  # PCIe 3.0 x16 (survey, section 4.1)


def textbook_ring(
    links: Mapping[str, AlphaBeta] = NOMINAL_LINKS, inside: AlphaBeta = NOMINAL_INSIDE
) -> TrivialForecast:
    """Return the forecast of computation, then a ring all-reduce over the nominal link.

    ``links`` are those of networks by name; ``inside`` is that of workers in one node.
    """

    def forecast(observation: Observation, seen: Sequence[Observation]) -> float:
        cell = observation.quantity.simulated()
        if cell is None:
            return math.nan
        cluster, workload = cell.cluster, cell.workload
        link = inside if cluster.nodes_in_use == 1 else links.get(cluster.network)
        if link is None:
            return math.nan
        ring = ring_all_reduce(link, cluster.workers)
        return _alone(cell, seen) + ring.seconds(workload.gradient_bytes)

    return forecast


def linear_scaling(observation: Observation, seen: Sequence[Observation]) -> float:
    """Return the seconds with fewer workers: throughput grows with their number."""
    smaller = _smaller(observation, seen)
    return math.nan if smaller is None else smaller.value


def ring_scaling(observation: Observation, seen: Sequence[Observation]) -> float:
    """Return the seconds with fewer workers, of which communication grows as 2 (n-1) / n."""
    cell, smaller = observation.quantity.simulated(), _smaller(observation, seen)
    before = smaller.quantity.simulated() if smaller else None
    if cell is None or smaller is None or before is None or before.cluster.workers == 1:
        return math.nan
    compute = _alone(cell, seen)
    communication = max(0.0, smaller.value - compute)
    n, m = cell.cluster.workers, before.cluster.workers
    return compute + communication * ((n - 1) / n) / ((m - 1) / m)


TRIVIAL_FORECASTS: dict[str, TrivialForecast] = {
    "textbook ring": textbook_ring(),
    "linear scaling": linear_scaling,
    "ring scaling": ring_scaling,
}


def _alone(cell: Cell, seen: Sequence[Observation]) -> float:
    """Return the seconds of one worker of this workload: those seen, or those of its profile."""
    found = (
        other.value
        for other in seen
        if (there := other.quantity.simulated())
        and there.cluster.workers == 1
        and there.workload == cell.workload
    )
    return next(found, cell.workload.compute_seconds)


def _smaller(observation: Observation, seen: Sequence[Observation]) -> Observation | None:
    """Return the observation of the same cell with the most workers below its own."""
    if (cell := observation.quantity.simulated()) is None:
        return None
    found = {
        there.cluster.workers: other
        for other in reversed(seen)
        if (there := other.quantity.simulated()) and _configuration(there) == _configuration(cell)
    }
    below = [workers for workers in found if workers < cell.cluster.workers]
    return found[max(below)] if below else None


def _configuration(cell: Cell) -> tuple[object, ...]:
    """Return what cells share that differ in the number of workers alone."""
    workload, cluster = cell.workload, cell.cluster
    of = (workload.model, workload.local_batch, cluster.network, cluster.name)
    return (*of, cell.method.name)


FITTED = "fitted"  # the name of our own forecast beside the trivial ones


@dataclass(frozen=True)
class Ablation:
    """The mean absolute relative error of a fit, and what it becomes without one effect.

    ``growths`` says by how much that of each observation grows.
    """

    effect: str
    error: float
    error_without: float
    growths: tuple[float, ...]

    @property
    def growth(self) -> float:
        """Return how much the mean absolute relative error grows."""
        return self.error_without - self.error


def ablation(
    observations: Sequence[Observation],
    values: ParameterValues,
    effects: Sequence[str] | None = None,
) -> list[Ablation]:
    """Return the mean error without each effect, the most important effect first.

    An effect is taken away from all clusters: no latency, no limit, no factor. The other values
    stay as they are. ``effects`` are by default those of the parameters. Errors are those of
    iterations by a method if any were observed.
    """
    if effects is None:
        effects = list(dict.fromkeys(one.effect for one in values.parameters))
    for effect in effects:
        require_known("effect", effect, EFFECTS)
    changed = [values, *(replace(values, without=(effect,)) for effect in effects)]
    counted = [one for one in observations if one.labels.method is not None] or list(observations)
    predicted = predictions([observation.quantity for observation in counted], changed)
    observed = np.array([observation.value for observation in counted])
    with_all, *errors = np.abs(predicted / observed - 1)
    found = [
        Ablation(effect, float(with_all.mean()), float(one.mean()), tuple(one - with_all))
        for effect, one in zip(effects, errors, strict=True)
    ]
    return sorted(found, key=lambda one: -one.growth)
