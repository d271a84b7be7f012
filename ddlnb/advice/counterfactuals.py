"""Why it takes as long as it does: the same training simulated again with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNLIMITED
from ddlnb.simulator.breakdown import NO_BYTES, NO_CONTENTION, NO_LATENCY
from ddlnb.simulator.simulate import Cell, steady_seconds

if TYPE_CHECKING:
    import pandas as pd

BETWEEN = ("between_bandwidth", "connection_bandwidth", "duplex_bandwidth", "server_bandwidth")
INSIDE = ("inside_bandwidth", "copy_bandwidth")
LIMITS = {
    "the bandwidth between nodes": dict.fromkeys(BETWEEN, UNLIMITED),
    "the bandwidth inside nodes": dict.fromkeys(INSIDE, UNLIMITED),
    "latency": NO_LATENCY,
    "contention of communication with computation": NO_CONTENTION,
}
NEGLIGIBLE = 0.01  # a change that gains less is none
AS_IT_IS = "as it is"
Case = TypeVar("Case")


@dataclass(frozen=True)
class Counterfactual(Generic[Case]):
    """One thing that could be otherwise, and the cell as it would be then, planned anew.

    The cell is what the advice is about: a method on a cluster, or a large model on GPUs.
    """

    what: str
    cell: Case
    can_be_bought: bool = False


def counterfactuals(cell: Cell) -> list[Counterfactual[Cell]]:
    """Return what could be otherwise about a cell; what is not there cannot be."""
    cluster = cell.cluster

    def on(
        what: str, effects: Mapping[str, float], *, bought: bool = False
    ) -> Counterfactual[Cell]:
        changed = cluster.with_effects(**effects)
        return Counterfactual(what, replace(cell, cluster=changed), bought)

    found = []
    if cluster.nodes_in_use > 1:
        twice, four = (_faster(cluster, BETWEEN, factor) for factor in (2.0, 4.0))
        found.append(on("twice the bandwidth between nodes", twice, bought=True))
        found.append(on("four times the bandwidth between nodes", four, bought=True))
    if cluster.workers_per_node > 1:
        twice = _faster(cluster, INSIDE, 2.0)
        found.append(on("twice the bandwidth inside nodes", twice, bought=True))
    if cluster.workers > 1:
        found.append(on("no latency", NO_LATENCY))
        found.append(on("no contention with the computation", NO_CONTENTION))
        found.append(on("no communication", NO_LATENCY | NO_CONTENTION | NO_BYTES))
    factor = cluster.effects.compute_factor
    found.append(on("GPUs twice as fast", {"compute_factor": factor / 2}, bought=True))
    return found


def counterfactual_table(cell: Cell) -> pd.DataFrame:
    """Return one row per counterfactual of a cell, which comes first as it is."""
    listed = [Counterfactual(AS_IT_IS, cell), *counterfactuals(cell)]
    played = steady_seconds([each.cell for each in listed])
    return reason_table(listed, [one.iteration_seconds for one in played])


def reason_table(listed: Sequence[Counterfactual[Any]], seconds: Sequence[float]) -> pd.DataFrame:
    """Return one row per counterfactual: seconds of an iteration, and how many times as fast it is.

    Columns: what, iteration_seconds, times_as_fast, can_be_bought. The first row is what the others
    are compared with.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "what": [one.what for one in listed],
            "iteration_seconds": seconds,
            "times_as_fast": [seconds[0] / each for each in seconds],
            "can_be_bought": [one.can_be_bought for one in listed],
        }
    )


def _faster(cluster: Cluster, names: tuple[str, ...], factor: float) -> dict[str, float]:
    """Return these effects multiplied; those that limit nothing stay."""
    values = {name: getattr(cluster.effects, name) for name in names}
    return {name: factor * value for name, value in values.items() if value < UNLIMITED}
