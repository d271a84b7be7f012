"""What is sent of gradients, as a search sees it: what it may choose, and what a plan then takes.

The search knows merging, order and gates; bytes and seconds of messages it asks for here. What
compresses gradients is in a room above and replaces what is said of dense ones
(`ddlnb.training.cost.searched`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ddlnb.clusters.cluster import Cluster
from ddlnb.plans.plan import Plan
from ddlnb.search.bound import Bound, best_merging, lower_bound
from ddlnb.search.space import Candidate, Cost, Space, all_reduce_costs
from ddlnb.simulator.events import play
from ddlnb.simulator.forecast import methods_on
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class Compression:
    """How gradients are sent: here as they are."""

    def on(self, workload: Workload, cluster: Cluster, space: Space) -> Sending:
        """Return how the gradients of a workload are sent on a cluster."""
        return Sending(workload, cluster, space)

    def __str__(self) -> str:
        return "dense"


DENSE = Compression()


@dataclass(frozen=True)
class Sending:
    """Gradients of a workload on a cluster as they are sent: here dense.

    ``space`` is what of a space can be sent so, and ``is_mixed`` says whether some messages may be
    compressed and others not.
    """

    workload: Workload
    cluster: Cluster
    space: Space
    is_mixed: bool = field(default=False, kw_only=True)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The collectives that a message may take beside the cluster's own."""
        return self.space.collectives_on(self.cluster)

    def plan(self, one: Candidate) -> Plan | None:
        """Return the plan of a candidate, None for one of more messages than are tried."""
        return one.plan(self.workload, self.cluster, self.names)

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a steady iteration of a plan, by the compiled simulator."""
        return play(lower(self.workload, self.cluster, plan, keep=False)).iteration_seconds

    def fixed(self) -> dict[str, list[Plan]]:
        """Return the plans of fixed methods by name; a method may choose among several."""
        return {
            method.name: [plan_on(self.cluster, self.workload, method)]
            for method in methods_on(self.cluster)
            if self.space.servers or method.architecture != "PS"
        }

    def mergings(self) -> list[tuple[int, ...]]:
        """Return the ends of groups that are promising, the best first.

        Here the best by dynamic programming, for whole all-reduces and for halves.
        """
        costs = [all_reduce_costs(self.cluster, ["", *self.names])]
        if self.space.split and self.cluster.workers > 1:
            costs.append([Cost(self.cluster, "reduce-scatter")])
        found = [best_merging(self.workload, self.cluster, one) for one in costs]
        return [ends for ends in found if ends is not None]

    def selections(self, ends: tuple[int, ...]) -> list[frozenset[int]]:
        """Return which of these groups may go dense while others are compressed, by their ends."""
        return [frozenset()]

    def bound(self) -> Bound:
        """Return the bound of all plans in the space."""
        servers = self.space.servers and self.cluster.takes_servers
        return lower_bound(self.workload, self.cluster, self.names, servers=servers)
