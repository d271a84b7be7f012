"""Cells played in draws of what is uncertain: seconds as they may be, and not only as expected.

Every draw takes other effects from the intervals of the cluster, another speed from the spread of
the workload, and another error of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import UNITS
from ddlnb.errors import require, require_whole
from ddlnb.progress import Show, bar
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.workloads.workload import Workload

DRAWS = 200
LEAST_DRAWS = 20  # of which one lies beyond either end of a 90 % interval
CELLS_AT_ONCE = 512  # simulated together
MOST_MESSAGES_PLAYED = (
    100_000_000  # a stated budget: a core plays some 30,000 a second of large plans
)
ROUNDING = 1e-9  # relative: seconds that differ by less do so by rounding
# A 90 % interval of a normal distribution reaches this many standard deviations to each side.
Z90 = 1.6448536269514722


def require_draws(draws: int) -> None:
    """Raise InputError unless this many draws make a 90 % interval, or none is asked for."""
    require_whole(0, draws=draws)
    require(
        draws == 0 or draws >= LEAST_DRAWS,
        f"draws {draws} are too few for a 90 % interval, which leaves out one draw in twenty on "
        f"each side; take at least {LEAST_DRAWS}, or 0 for no interval",
    )


@dataclass(frozen=True)
class Played:
    """Seconds of cells: those of a steady iteration, what of them is exposed, and every draw's.

    ``drawn`` has a row for every draw and a column for every cell. Cells that share fitted effects
    share their draws, so that a row compares them under the same circumstances.
    """

    seconds: NDArray[np.floating[Any]]
    exposed: NDArray[np.floating[Any]]
    drawn: NDArray[np.floating[Any]]

    def quantile(self, number: int, share: float) -> float:
        """Return a quantile of a cell's drawn seconds, NaN where nothing about it is uncertain."""
        return _quantile(self.drawn, number, share)


def play_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> Played:
    """Return the seconds of cells, and those of every draw of their effects.

    ``drawn`` are the cells with the effects of every draw, by default from the intervals of their
    clusters. Raises InputError for fewer than LEAST_DRAWS draws, and for more than an hour's work.
    """
    require_draws(draws)
    messages = sum(len(cell.plan.messages) for cell in cells) * (draws + 1)
    require(
        messages <= MOST_MESSAGES_PLAYED,
        f"{draws:,} draws of {len(cells)} cells would play {messages:,} messages, and more than "
        f"{MOST_MESSAGES_PLAYED:,} take an hour; ask for fewer draws, methods or numbers of GPUs, "
        f"or for larger messages",
    )
    seconds = np.array([found.iteration_seconds for found in steady_seconds(cells, keep=True)])
    exposed = [found.exposed_seconds for found in steady_seconds(cells, keep=True)]
    each_draw = _drawn_cells(cells, draws, seed) if drawn is None else drawn
    errors = [cell.cluster.model_error for cell in cells]
    taken = np.array(list(_drawn_seconds(each_draw, draws, errors, seed, progress)))
    return Played(seconds, np.array(exposed), taken.reshape(draws, len(cells)))


def draw_clusters(cluster: Cluster, count: int, seed: int = 0) -> list[Cluster]:
    """Return the cluster with effects drawn from their intervals, within physical bounds.

    Intervals are those of `Cluster.intervals`, which assumes one where none is given. An effect is
    drawn by its name and seed alone, so two clusters with the same fit of an effect get the same
    draws of it.
    """
    values = {
        effect: _draw(effect, getattr(cluster.effects, effect), fit, count, seed)
        for effect, fit in cluster.intervals.items()
    }
    return [
        cluster.with_effects(**{effect: float(drawn[i]) for effect, drawn in values.items()})
        for i in range(count)
    ]


def _draw(effect: str, value: float, fit: Fit, count: int, seed: int) -> np.ndarray:
    """Log-normal draws around the value; an interval that reaches zero is drawn uniformly."""
    generator = np.random.default_rng([seed, *f"{effect}|{fit.source}".encode()])
    unit = UNITS[effect]
    if fit.low == fit.high:
        return np.full(count, value)
    if fit.low <= 0 or math.isinf(fit.high):
        top = fit.high if math.isfinite(fit.high) else 2 * value
        drawn = generator.uniform(fit.low, top, count)
    else:
        spread = math.log(fit.high / fit.low) / (2 * Z90)
        drawn = value * np.exp(spread * generator.standard_normal(count))
    return np.clip(drawn, unit.least, unit.most)


def _drawn_cells(cells: Sequence[Cell], draws: int, seed: int) -> Iterator[list[Cell]]:
    """Yield the cells with the effects of every draw; methods keep the plans of the cluster."""
    clusters = {cell.cluster: draw_clusters(cell.cluster, draws, seed) for cell in cells}
    models = sorted({cell.workload.model for cell in cells})
    for i in range(draws):
        generator = np.random.default_rng([seed, i])
        speed = {model: generator.standard_normal() for model in models}
        yield [
            replace(
                cell,
                cluster=_at_speed(clusters[cell.cluster][i], cell.workload, speed),
                planned_on=cell.planned_on or cell.cluster,
            )
            for cell in cells
        ]


def _drawn_seconds(
    drawn: Iterable[Sequence[Cell]], draws: int, errors: list[float], seed: int, progress: Show
) -> Iterator[np.ndarray]:
    """Seconds of all cells, once for every draw, each with an error of the model of its own."""
    generator = np.random.default_rng([seed, draws])
    at_once = math.ceil(CELLS_AT_ONCE / len(errors))  # draws
    with bar(total=draws, unit="draw", progress=progress) as shown:
        for some in batched(drawn, at_once):
            found = steady_seconds([cell for cells in some for cell in cells])
            seconds = np.array([one.iteration_seconds for one in found]).reshape(len(some), -1)
            yield from seconds * np.exp(errors * generator.standard_normal(seconds.shape))
            shown.update(len(some))


def batched(values: Iterable[Sequence[Cell]], count: int) -> Iterator[list[Sequence[Cell]]]:
    """Yield lists of this many values; the last one may be shorter. (itertools has it from 3.12.)

    >>> [len(some) for some in batched([[], [], []], 2)]
    [2, 1]
    """
    iterator = iter(values)
    while some := list(islice(iterator, count)):
        yield some


def _at_speed(cluster: Cluster, workload: Workload, speed: dict[str, float]) -> Cluster:
    factor = math.exp(workload.spread * speed[workload.model])
    return cluster.with_effects(compute_factor=cluster.effects.compute_factor * factor)


def _quantile(drawn: np.ndarray, number: int, share: float) -> float:
    if not len(drawn) or is_certain(drawn[:, number]):
        return math.nan
    return float(np.quantile(drawn[:, number], share))


def is_certain(drawn: np.ndarray) -> bool:
    """Return whether all draws are the same but for rounding: nothing uncertain was drawn."""
    return bool(np.ptp(drawn) <= ROUNDING * drawn.max())
