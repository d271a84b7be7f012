"""Cells played in draws of what is uncertain: seconds as they may be, and not only as expected.

Every draw takes other effects from the intervals of the cluster, another speed from the spread of
the workload, and another error of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import EFFECTS
from ddlnb.errors import require, require_whole
from ddlnb.progress import Show, bar
from ddlnb.simulator.questions import DRAWS
from ddlnb.simulator.simulate import Cell, steady_seconds

LEAST_DRAWS = 20  # of which one lies beyond either end of a 90 % interval
MOST_MESSAGES_PLAYED = (
    100_000_000  # a stated budget: a core plays some 30,000 a second of large plans
)
ROUNDING = 1e-9  # relative: seconds that differ by less do so by rounding
# A 90 % interval of a normal distribution reaches this many standard deviations to each side.
Z90 = 1.6448536269514722
SECONDS = ("iteration_seconds", "exposed_seconds")


def require_draws(draws: int) -> None:
    """Raise InputError unless this many draws make a 90 % interval, or none is asked for."""
    require_whole(0, draws=draws)
    require(
        draws == 0 or draws >= LEAST_DRAWS,
        f"draws {draws} are too few for a 90 % interval, which leaves out one draw in twenty on "
        f"each side; take at least {LEAST_DRAWS}, or 0 for no interval",
    )


@dataclass(frozen=True)
class DrawnSeconds:
    """Seconds of cells: those of a steady iteration, what of them is exposed, and every draw's.

    ``drawn`` has a row for every draw and a column for every cell, NaN where a cell was not played
    in a draw. Cells that share fitted effects share their draws, so that a row compares them under
    the same circumstances.
    """

    seconds: NDArray[np.floating[Any]]
    exposed: NDArray[np.floating[Any]]
    drawn: NDArray[np.floating[Any]]

    def quantile(self, number: int, share: float) -> float:
        """Return a quantile of a cell's drawn seconds, NaN where nothing about it is uncertain."""
        own = self._drawn(number)
        return float(np.quantile(own, share)) if len(own) and not is_certain(own) else math.nan

    def draws(self, number: int) -> int:
        """Return in how many draws a cell was played."""
        return len(self._drawn(number))

    def _drawn(self, number: int) -> NDArray[np.floating[Any]]:
        column = self.drawn[:, number]
        played: NDArray[np.floating[Any]] = column[~np.isnan(column)]
        return played


def play_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> DrawnSeconds:
    """Return the seconds of cells, and those of every draw of their effects.

    ``drawn`` are the cells with the effects of every draw, by default from the intervals of their
    clusters. Raises InputError for fewer than LEAST_DRAWS draws, and for more than an hour's work.
    """
    require_feasible(cells, draws)
    each_draw = Circumstances(cells, draws, seed).each_draw() if drawn is None else drawn
    taken = seconds_in_draws(each_draw, (draws, len(cells)), progress)
    return with_expected(cells, taken * model_errors(cells, draws, seed))


def require_feasible(cells: Sequence[Cell], draws: int) -> None:
    """Raise InputError for draws that would take an hour, before any is made."""
    require_draws(draws)
    messages = sum(len(cell.plan.messages) for cell in cells) * (draws + 1)
    require(
        messages <= MOST_MESSAGES_PLAYED,
        f"{draws:,} draws of {len(cells)} cells would play {messages:,} messages, and more than "
        f"{MOST_MESSAGES_PLAYED:,} take an hour; ask for fewer draws, methods or numbers of GPUs, "
        f"or for larger messages",
    )


def with_expected(cells: Sequence[Cell], taken: NDArray[np.floating[Any]]) -> DrawnSeconds:
    """Return drawn seconds beside those that are expected."""
    found = steady_seconds(cells, keep=True)
    seconds, exposed = ([getattr(one, name) for one in found] for name in SECONDS)
    return DrawnSeconds(np.array(seconds), np.array(exposed), taken)


def draw_clusters(cluster: Cluster, count: int, seed: int = 0) -> list[Cluster]:
    """Return the cluster with effects drawn from their intervals, within physical bounds.

    Intervals are those of `Cluster.intervals`, which assumes one where none is given. An effect is
    drawn by its name and seed alone, so two clusters with the same fit of an effect get the same
    draws of it. They keep what they are drawn around: collectives on a graph are played
    with it once, and taken as linear around it.
    """
    values = {
        effect: _draw(effect, getattr(cluster.effects, effect), fit, count, seed)
        for effect, fit in cluster.intervals.items()
    }
    drawn = (
        cluster.with_effects(**{effect: float(one[i]) for effect, one in values.items()})
        for i in range(count)
    )
    if cluster.has_closed_form:
        return list(drawn)
    return [replace(one, drawn_around=cluster.effects) for one in drawn]


def _draw(effect: str, value: float, fit: Fit, count: int, seed: int) -> np.ndarray:
    """Log-normal draws around the value; an interval that reaches zero is drawn uniformly."""
    generator = np.random.default_rng([seed, *f"{effect}|{fit.source}".encode()])
    unit = EFFECTS[effect].unit
    if fit.low == fit.high:
        return np.full(count, value)
    if fit.low <= 0 or math.isinf(fit.high):
        top = fit.high if math.isfinite(fit.high) else 2 * value
        drawn = generator.uniform(fit.low, top, count)
    else:
        spread = math.log(fit.high / fit.low) / (2 * Z90)
        drawn = value * np.exp(spread * generator.standard_normal(count))
    return np.clip(drawn, unit.least, unit.most)


class Circumstances:
    """Cells under what is drawn: other effects, another speed. Methods keep their plans."""

    def __init__(self, cells: Sequence[Cell], draws: int, seed: int):
        self._cells = cells
        self._draws = draws
        # Clusters that compare equal may differ in their intervals.
        keys = [
            (one.cluster, tuple(sorted(one.cluster.fits.items())), of.model, of.spread)
            for one, of in ((cell, cell.workload) for cell in cells)
        ]
        models = sorted({cell.workload.model for cell in cells})
        speed = [
            {model: one.standard_normal() for model in models}
            for one in (np.random.default_rng([seed, draw]) for draw in range(draws))
        ]
        drawn = {
            key: [
                replace(
                    one,
                    effects=one.effects.but(
                        compute_factor=one.effects.compute_factor
                        * math.exp(key[3] * by_model[key[2]])
                    ),
                )
                for one, by_model in zip(draw_clusters(key[0], draws, seed), speed, strict=True)
            ]
            for key in dict.fromkeys(keys)
        }
        self._clusters = [drawn[key] for key in keys]

    def each_draw(
        self, start: int = 0, stop: int | None = None, numbers: Sequence[int] | None = None
    ) -> Iterator[list[Cell]]:
        """Yield the cells of these numbers, by default all, in every draw from start to stop."""
        chosen = range(len(self._cells)) if numbers is None else numbers
        for draw in range(start, self._draws if stop is None else stop):
            yield [
                replace(
                    self._cells[number],
                    cluster=self._clusters[number][draw],
                    planned_on=self._cells[number].planned_on or self._cells[number].cluster,
                )
                for number in chosen
            ]


def model_errors(cells: Sequence[Cell], draws: int, seed: int) -> NDArray[np.floating[Any]]:
    """Return a factor of the seconds of every draw and cell: the error of the model in it."""
    generator = np.random.default_rng([seed, draws])
    errors = np.array([cell.cluster.error for cell in cells])
    found: NDArray[np.floating[Any]] = np.exp(
        errors * generator.standard_normal((draws, len(cells)))
    )
    return found


def seconds_in_draws(
    drawn: Iterable[Sequence[Cell]], shape: tuple[int, int], progress: Show = None
) -> NDArray[np.floating[Any]]:
    """Return the seconds of so many draws (rows) of so many cells.

    They are played cell by cell: all draws of a cell share its plan, which is lowered at once.
    """
    found = np.empty(shape)
    with bar(total=shape[1], unit="cell", progress=progress) as shown:
        for column, in_draws in enumerate(zip(*drawn, strict=True)):
            found[:, column] = [one.iteration_seconds for one in steady_seconds(in_draws)]
            shown.update(1)
    return found


def is_certain(drawn: np.ndarray) -> bool:
    """Return whether all draws are the same but for rounding: nothing uncertain was drawn."""
    return bool(np.ptp(drawn) <= ROUNDING * drawn.max())
