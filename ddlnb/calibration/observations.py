"""Quantities that can be observed and predicted: seconds of an iteration, a hop, an all-reduce.

A quantity says which cells have to be simulated for it, and what its value is given their seconds;
`predictions` simulates those of many quantities, and of many values of parameters, together. An
observation is a quantity with the value that was seen and how exactly; beside a prediction it makes
a row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ddlnb.calibration.parameters import ParameterValues
from ddlnb.clusters import effects
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.plans.methods import Method, get_method
from ddlnb.results.schema import SOURCES
from ddlnb.simulator.profiles import profile_for
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.simulator.tasks import Identity


@dataclass(frozen=True)
class Labels:
    """What an observation is of; None where a label means nothing.

    Observations of one ``group`` repeat one another: a test must not fit one and predict another.
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
    """Something that can be observed, and predicted for any values of parameters."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """Return what it is of."""

    def simulated(self) -> Cell | None:
        """Return what has to be simulated to predict it, if anything has."""
        return None

    @abstractmethod
    def value(self, values: ParameterValues, seconds: float) -> float:
        """Return its value, given the seconds of an iteration of what is simulated, or NaN."""


@dataclass(frozen=True)
class IterationTime(Quantity):
    """Seconds of one steady iteration of a cell."""

    cell: Cell

    @property
    def labels(self) -> Labels:
        """Return those of the cell; within one node the group does not depend on the network."""
        of, on, method = self.cell.workload, self.cell.cluster, self.cell.method.name
        group = f"{of.model} batch {of.local_batch} {method}, {_where(on)}"
        return Labels(of.model, on.network, method, on.workers, group)

    def simulated(self) -> Cell:
        """Return the cell."""
        return self.cell

    def value(self, values: ParameterValues, seconds: float) -> float:
        """Return its seconds."""
        return seconds


@dataclass(frozen=True)
class HopTime(Quantity):
    """Seconds of one message over one link between nodes: latency and bytes over bandwidth."""

    cluster: Cluster
    message_bytes: float

    @property
    def labels(self) -> Labels:
        """Return the network alone."""
        network = self.cluster.network
        group = f"hop of {self.message_bytes:g} B, {network}"
        return Labels(None, network, None, None, group)

    def value(self, values: ParameterValues, seconds: float) -> float:
        """Return its seconds."""
        effects = values.on(self.cluster).effects
        bandwidth = min(effects.between_bandwidth, effects.stream_bandwidth)
        return effects.between_latency + self.message_bytes / bandwidth


@dataclass(frozen=True)
class AllReduceTime(Quantity):
    """Seconds of one all-reduce among the workers while nothing computes."""

    cluster: Cluster
    message_bytes: float

    def __post_init__(self) -> None:
        require(self.cluster.workers > 1, "an all-reduce needs at least two workers")

    @property
    def labels(self) -> Labels:
        """Return network and workers."""
        group = f"all-reduce of {self.message_bytes:g} B, {_where(self.cluster)}"
        return Labels(None, self.cluster.network, None, self.cluster.workers, group)

    def value(self, values: ParameterValues, seconds: float) -> float:
        """Return its seconds."""
        size = np.array([self.message_bytes])
        latency, work, _ = values.on(self.cluster).all_reduce_work(size)
        return float((latency + work)[0])


def predictions(quantities: Sequence[Quantity], several: Sequence[ParameterValues]) -> np.ndarray:
    """Predict every quantity (columns) for several values of parameters (rows).

    All cells are simulated together, one that is the same for several values once.
    """
    numbers: dict[tuple[object, ...], int] = {}
    cells: list[Cell] = []
    wanted: list[tuple[ParameterValues, Quantity, int]] = []
    of_quantity = [(quantity, quantity.simulated()) for quantity in quantities]
    for quantity, cell in of_quantity:  # a plan is lowered at once for all values
        for values in several:
            number = -1
            if cell is not None:
                number = numbers.setdefault(_key(cell, values), len(cells))
                if number == len(cells):
                    cells.append(with_values(cell, values))
            wanted.append((values, quantity, number))
    # The last one where nothing is simulated.
    seconds = [*(one.iteration_seconds for one in steady_seconds(cells)), math.nan]
    found = [quantity.value(values, seconds[number]) for values, quantity, number in wanted]
    return np.array(found).reshape(len(quantities), len(several)).T.copy()


def with_values(cell: Cell, values: ParameterValues) -> Cell:
    """Return the cell on its cluster with these values, planned with those that they name."""
    of = (cell.cluster, cell.workload.model, cell.method.name)
    planned_with = values.planned_with
    planned_on = cell.planned_on if planned_with is None else planned_with.on(*of)
    return replace(cell, cluster=values.on(*of), planned_on=planned_on)


def _key(cell: Cell, values: ParameterValues) -> tuple[object, ...]:
    """Return a key that cells with values share which take the same seconds."""
    alike, idle = _alike(Identity((cell,)))
    of = (cell.cluster, cell.workload.model, cell.method.name)
    return alike, *(one.used(*of, idle) for one in (values, values.planned_with) if one)


@lru_cache(maxsize=4096)
def _alike(one: Identity) -> tuple[object, dict[str, float]]:
    """Return a key of cells that take the same seconds, and the effects that they do not meet.

    What a method is called does not matter, nor in one node what would join it to others.
    """
    cell: Cell = one.parts[0]
    cluster, method = cell.cluster, replace(cell.method, name="", scheduling=None)
    idle = effects.idle(method.architecture, cluster.nodes_in_use)
    if cluster.nodes_in_use == 1:
        cluster = replace(
            cluster, name="", network="", nodes=1, server_place=None, placement="balanced"
        )
    of, on = Identity((cell.workload,)), cluster.with_effects(**idle)
    return _interned((of, on, cell.planned_on, method, cell.servers)), idle


@lru_cache(maxsize=4096)
def _interned(key: tuple[object, ...]) -> object:
    """Return an object for the key, the same for equal ones, whose hash takes no time."""
    return object()


def _where(cluster: Cluster) -> str:
    if cluster.nodes_in_use == 1:
        return f"{cluster.workers} GPUs in one node"
    return f"{cluster.workers} GPUs, {cluster.network}"


LEAST_SPREAD = 0.02  # of measured seconds, however alike their repetitions are
LABELS = ("model", "network", "method", "gpus", "group")  # by which observations are left out


@dataclass(frozen=True)
class Observation:
    """A quantity, its observed value, and the standard deviation of the value's logarithm."""

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


def observe(quantity: Quantity, value: float, spread: float, source: str) -> Observation:
    """Return the observation with the labels of its quantity."""
    return Observation(quantity, value, spread, replace(quantity.labels, source=source))


def row_of(
    observation: Observation,
    predicted: float,
    forecast: str,
    left_out: str = "",
    interval: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, Any]:
    """Return the row of an observation and its prediction by a forecast of this name.

    ``left_out`` is the label value without which the prediction was made, "" if with everything;
    ``interval`` is that of the prediction, if it has one.
    """
    low, high = interval
    return {
        **asdict(observation.labels),
        "forecast": forecast,
        "left_out": left_out,
        "observed": observation.value,
        "spread": observation.spread,
        "predicted": predicted,
        "relative_error": predicted / observation.value - 1,
        "low": low,
        "high": high,
    }


def row_observations(cluster: Cluster, rows_path: str | Path) -> list[Observation]:
    """Return the rows of the cluster's network as observations."""
    from ddlnb.results.rows import read_rows

    rows = read_rows(rows_path)
    rows = rows[(rows["network"] == cluster.network) & (rows["engine"] == "torch")]
    found = []
    for row in rows.to_dict("records"):
        workload = profile_for(row["model"], cluster, int(row["local_batch"]))
        on, servers = cluster.with_workers(int(row["gpus"])), int(row["servers"]) or None
        try:
            cell = Cell(workload, on, as_measured(row), servers)
        except UnknownName as error:
            raise InputError(
                f"{rows_path}: {error}; one of yours is registered by ddlnb --with FILE.py, as it "
                f"was measured"
            ) from error
        spread = max(LEAST_SPREAD, noise_of(row))
        found.append(observe(IterationTime(cell), row["iteration_seconds"], spread, row["source"]))
    if not found:
        raise InputError(
            f"{rows_path} has no row of a method on network {cluster.network!r}; "
            f"measure some on its machines with ddlnb measure --launcher ssh --on HOST "
            f"--network {cluster.network}"
        )
    return found


def as_measured(row: Mapping[str, Any]) -> Method:
    """Return the method of a measured row with the sizes that its settings name, else its own."""
    sizes = dict(word.split("=") for word in str(row["settings"]).split() if "=" in word)
    method = get_method(row["method"])
    return method.tuned(
        partition=sizes.get("partition", method.partition_bytes),
        credit=sizes.get("credit", method.credit_bytes),
    )


def noise_of(row: Mapping[str, Any]) -> float:
    """Return the relative standard deviation of a row's repetitions; 0 if there was only one."""
    noise = row["std"] / row["throughput_samples_per_s"]
    return 0.0 if math.isnan(noise) else float(noise)
