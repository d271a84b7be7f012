"""Observations: what was seen, how exactly, and what a world predicts in its place.

A quantity is something that can be seen and predicted: the seconds of an iteration, of a hop, of
an all-reduce, or a speedup. An observation is a quantity with the value it was seen to have.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.calibration.parameters import NOMINAL, World
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.plans.methods import METHODS
from ddlnb.results.published import MOST_GPUS
from ddlnb.simulator.simulate import Cell, steady_seconds

SOURCES = ("published", "simulated", "emulated", "measured")
LABELS = ("model", "network", "method", "gpus", "group")
CELLS_AT_ONCE = 512  # of the largest plans this is about a hundred megabytes


@dataclass(frozen=True)
class Labels:
    """What an observation is of; None where a label means nothing.

    Observations of one ``group`` repeat one another and must not be told apart by a test.
    """

    model: str | None
    network: str
    method: str | None
    gpus: int | None
    group: str
    source: str = "simulated"

    def __post_init__(self) -> None:
        require(self.source in SOURCES, f"source {self.source!r} must be one of {SOURCES}")


class Quantity(ABC):
    """Something that can be seen, and predicted in any world."""

    def predict(self, world: World = NOMINAL) -> float:
        """Its seconds, or its ratio, in a world. For many of them use `predictions`."""
        return float(predictions([self], [world])[0, 0])

    def cells(self, world: World) -> tuple[Cell, ...]:
        """What has to be simulated to predict it."""
        return ()

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """What it is of."""

    @abstractmethod
    def value(self, world: World, seconds: Sequence[float]) -> float:
        """Its value, given the iteration seconds of its cells."""


@dataclass(frozen=True)
class IterationTime(Quantity):
    """Seconds of one steady iteration of a cell."""

    cell: Cell

    @property
    def labels(self) -> Labels:
        """Those of the cell; within one node its network does not matter to the group."""
        cell = self.cell
        group = f"{_what(cell)} {cell.method.name}, {_where(cell.cluster)}"
        return _labels(cell, cell.method.name, group)

    def cells(self, world: World) -> tuple[Cell, ...]:
        """The cell itself."""
        return (_in_world(self.cell, world),)

    def value(self, world: World, seconds: Sequence[float]) -> float:
        """Its seconds."""
        return seconds[0]


@dataclass(frozen=True)
class BestSpeedup(Quantity):
    """How much faster the fastest of these cells trains than one worker alone, at most workers."""

    rivals: tuple[Cell, ...]

    def __post_init__(self) -> None:
        require(bool(self.rivals), "a speedup needs at least one cell")
        first = self.rivals[0]
        for cell in self.rivals:
            require(
                cell.workload == first.workload and cell.cluster == first.cluster,
                "cells of one speedup must share workload and cluster; they differ in their method",
            )

    @property
    def labels(self) -> Labels:
        """Those of the cells; no method when there are several."""
        first = self.rivals[0]
        method = first.method.name if len(self.rivals) == 1 else None
        names = "+".join(cell.method.name for cell in self.rivals)
        return _labels(first, method, f"speedup {_what(first)} {names}, {_where(first.cluster)}")

    def cells(self, world: World) -> tuple[Cell, ...]:
        """The rivals, and one worker that hands no message over and sends none."""
        rivals = tuple(_in_world(cell, world) for cell in self.rivals)
        alone = rivals[0].cluster.with_workers(1).with_effects(message_compute=0.0)
        return (*rivals, Cell(self.rivals[0].workload, alone, METHODS["WFBP-A2A"]))

    def value(self, world: World, seconds: Sequence[float]) -> float:
        """Workers, times the seconds of one alone, over those of the fastest."""
        return self.rivals[0].cluster.workers * seconds[-1] / min(seconds[:-1])


@dataclass(frozen=True)
class HopTime(Quantity):
    """Seconds of one message over one link between nodes: latency and bytes over bandwidth."""

    cluster: Cluster
    message_bytes: float

    @property
    def labels(self) -> Labels:
        """The network alone."""
        network = self.cluster.network
        group = f"hop of {self.message_bytes:g} B, {network}"
        return Labels(None, network, None, None, group)

    def value(self, world: World, seconds: Sequence[float]) -> float:
        """Its seconds."""
        effects = world.cluster(self.cluster).effects
        return effects.between_latency + self.message_bytes / effects.between_bandwidth


@dataclass(frozen=True)
class AllReduceTime(Quantity):
    """Seconds of one all-reduce among the workers while nothing computes."""

    cluster: Cluster
    message_bytes: float

    def __post_init__(self) -> None:
        require(self.cluster.workers > 1, "an all-reduce needs at least two workers")

    @property
    def labels(self) -> Labels:
        """Network and workers."""
        kind = type(self).__name__
        group = f"{kind} of {self.message_bytes:g} B, {_where(self.cluster)}"
        return Labels(None, self.cluster.network, None, self.cluster.workers, group)

    def value(self, world: World, seconds: Sequence[float]) -> float:
        """Its seconds."""
        latency, per_byte, _ = world.cluster(self.cluster).all_reduce_seconds
        return latency + per_byte * self.message_bytes


@dataclass(frozen=True)
class Observation:
    """A quantity, the value it was seen to have, and the standard deviation of its logarithm."""

    quantity: Quantity
    value: float
    spread: float
    labels: Labels

    def __post_init__(self) -> None:
        for name in ("value", "spread"):
            number = getattr(self, name)
            require(
                0 < number < math.inf,
                f"{name} {number} of {self.labels.group!r} must be positive and finite",
            )

    def predict(self, world: World = NOMINAL) -> float:
        """What the world predicts in place of the value."""
        return self.quantity.predict(world)


def observe(
    quantity: Quantity, value: float, spread: float, source: str, group: str | None = None
) -> Observation:
    """The observation with the labels of its quantity; ``group`` replaces the usual one."""
    labels = replace(quantity.labels, source=source)
    return Observation(
        quantity, value, spread, labels if group is None else replace(labels, group=group)
    )


@dataclass(frozen=True)
class Row:
    """One observation beside one prediction of it; ``low`` and ``high`` hold 90 % if known.

    ``left_out`` is the label value without which the prediction was made, "" if with everything.
    """

    model: str | None
    network: str
    method: str | None
    gpus: int | None
    group: str
    source: str
    forecast: str
    left_out: str
    observed: float
    spread: float
    predicted: float
    relative_error: float
    low: float = math.nan
    high: float = math.nan


def row_of(observation: Observation, predicted: float, forecast: str, left_out: str = "") -> Row:
    """The row of an observation and its prediction."""
    labels = observation.labels
    return Row(
        **{name: getattr(labels, name) for name in (*LABELS, "source")},
        forecast=forecast,
        left_out=left_out,
        observed=observation.value,
        spread=observation.spread,
        predicted=predicted,
        relative_error=predicted / observation.value - 1,
    )


def predictions(things: Sequence[Quantity | Observation], worlds: Sequence[World]) -> np.ndarray:
    """What every world (rows) predicts for every thing (columns), simulated all together.

    A cell that is the same in several worlds is simulated once.
    """
    quantities = [thing.quantity if isinstance(thing, Observation) else thing for thing in things]
    numbers: dict[tuple[object, ...], int] = {}
    cells: list[Cell] = []
    wanted: list[tuple[World, Quantity, list[int]]] = []
    for world in worlds:
        for quantity in quantities:
            places = []
            for cell in quantity.cells(world):
                key = (id(cell.workload), cell.cluster, cell.method, cell.servers)
                if key not in numbers:
                    numbers[key] = len(cells)
                    cells.append(cell)
                places.append(numbers[key])
            wanted.append((world, quantity, places))
    seconds = list(_simulated(cells))
    values = [
        quantity.value(world, [seconds[place] for place in places])
        for world, quantity, places in wanted
    ]
    return np.array(values).reshape(len(worlds), len(quantities))


def _simulated(cells: Sequence[Cell]) -> Iterator[float]:
    for start in range(0, len(cells), CELLS_AT_ONCE):
        for found in steady_seconds(cells[start : start + CELLS_AT_ONCE]):
            yield found.iteration_seconds


def require_small(observations: Sequence[Observation]) -> None:
    """Raise InputError if a published cell with more GPUs than may be fitted is among them.

    The number of GPUs is that of the simulated cells, whatever the labels say.
    """
    for observation in observations:
        labels = observation.labels
        if labels.source != "published":
            continue
        gpus = max(labels.gpus or 0, observation.quantity.labels.gpus or 0)
        if gpus > MOST_GPUS:
            raise InputError(
                f"published cell {labels.model} {labels.method} on {labels.network} with {gpus} "
                f"GPUs must not be fitted: cells with more than {MOST_GPUS} GPUs are held out to "
                f"test forecasts; leave it out"
            )


def label_values(observations: Sequence[Observation], by: str) -> list:
    """The different values of a label, sorted; None is none. Raises UnknownName."""
    if by not in LABELS:
        raise UnknownName("label", by, LABELS)
    values = {getattr(observation.labels, by) for observation in observations} - {None}
    if not values:
        raise InputError(f"no observation has a label {by!r}")
    return sorted(values)


def _in_world(cell: Cell, world: World) -> Cell:
    return replace(cell, cluster=world.cluster(cell.cluster, cell.workload.model))


def _what(cell: Cell) -> str:
    return f"{cell.workload.model} batch {cell.workload.local_batch}"


def _where(cluster: Cluster) -> str:
    if cluster.nodes_in_use == 1:
        return f"{cluster.workers} GPUs in one node"
    return f"{cluster.workers} GPUs, {cluster.network}"


def _labels(cell: Cell, method: str | None, group: str) -> Labels:
    cluster = cell.cluster
    return Labels(cell.workload.model, cluster.network, method, cluster.workers, group)
