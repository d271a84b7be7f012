"""The searched plan of a measurement: for a cluster that has the measured cost of an all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import EFFECTS, Effects
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.search.search import Searching
from ddlnb.search.space import Space
from ddlnb.simulator.simulate import simulate
from ddlnb.units import MIB
from ddlnb.workloads.workload import Workload

IN_FLIGHT = MIB  # bytes of messages that start before the first of them has arrived
SOFTWARE = 0.5  # of the latency; each half of a split all-reduce pays it


def measured_cluster(cost: AlphaBeta, workers: int) -> Cluster:
    """Return workers on nodes of their own, in a ring whose all-reduce has this cost.

    Half of its latency is taken for software, half for hops.
    """
    hops, share = 2 * (workers - 1), 2 * (workers - 1) / workers
    effects = Effects()
    if workers > 1:
        effects = Effects(
            operation_latency=SOFTWARE * cost.latency_seconds,
            between_latency=(1 - SOFTWARE) * cost.latency_seconds / hops,
            between_bandwidth=share * cost.bytes_per_second,
            occupied_share=max(cost.occupied_share, EFFECTS["occupied_share"].unit.least),
        )
    return Cluster("as measured", "measured", workers, 1, effects)


def searched_plan(
    planner: Searching, workload: Workload, cost: AlphaBeta, settings: MeasurementSettings
) -> Plan:
    """Return the plan that is searched for the measured seconds of layers and all-reduces.

    All messages take the engine's own all-reduce, the only one whose cost was measured; where the
    settings say how all-reduces travel, none is split. Where the network can tell when a message
    has arrived, they go `in_order`.
    """
    search = replace(planner, space=measured_space(planner, settings))
    cluster = measured_cluster(cost, settings.workers)
    return quickest_plan(search, workload, cluster, settings.device)


def quickest_plan(
    search: Callable[[Workload, Cluster], Plan], workload: Workload, cluster: Cluster, device: str
) -> Plan:
    """Return the quickest plan, in simulation, of those that are found, as the device runs them.

    On CPUs they go `in_order`.
    """
    found = [search(workload, one) for one in searched_on(cluster, device)]
    if device != "cuda":  # there the end of a message is not seen, so that no credit works
        found = [in_order(plan) for plan in found]
    return min(found, key=lambda plan: simulated_seconds(plan, workload, cluster))


def searched_on(cluster: Cluster, device: str) -> tuple[Cluster, ...]:
    """Return the clusters for which plans are searched: the one there is, and maybe another.

    Large messages that go `in_order` pay all of their latency, on which a search does not count
    where latencies overlap; the other cluster is the same without that.
    """
    if device == "cuda":
        return (cluster,)
    alone = cluster.with_effects(occupied_share=1.0)
    return tuple(dict.fromkeys((cluster, alone)))


def simulated_seconds(plan: Plan, workload: Workload, cluster: Cluster) -> float:
    """Return the seconds of a steady iteration of a plan in simulation."""
    return simulate(workload, cluster, method_of(plan)).iteration_seconds


def in_order(plan: Plan) -> Plan:
    """Return the plan with a credit of IN_FLIGHT: large messages start one after the other.

    So the simulator has it. Backends on CPUs send two or three at a time, and our own collectives
    all that have started: what the next forward pass needs first would share the link with what it
    needs last. Small ones still go together, and two of half the credit: one alone leaves links
    idle while its parts are on the way and ranks add them. Where the forward pass waits for all
    layers the order does not matter; parameter servers, split all-reduces and plans with a credit
    have rules of their own.
    """
    has_rules = bool(plan.servers) or plan.is_split or plan.credit_bytes is not None
    is_free = plan.gate is Gate.OWN_LAYER and not has_rules
    return replace(plan, credit_bytes=IN_FLIGHT) if is_free else plan


def measured_space(planner: Searching, settings: MeasurementSettings) -> Space:
    """Return what may be searched where only the engine's own all-reduce was measured."""
    is_plain = settings.collective is None and settings.topology == "ring"
    return replace(planner.space, collectives=(), split=planner.space.split and is_plain)
