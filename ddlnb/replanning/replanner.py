"""A searched plan is made anew when the network drifts, and all ranks take it up at once.

Every ``window`` timed iterations the ranks meet between two steps. Rank 0 says whether its
iterations have drifted; if they have, all ranks measure an all-reduce anew, rank 0 searches a plan
for that cost, and every rank reads it, before any of them trains under it. All that they tell one
another goes through their store. Ranks that wait for one that died end with the run.

`searched_plan` makes the plan of a measurement, for the measured cost of an all-reduce.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import EFFECTS, Effects
from ddlnb.engines.job import Job, PlanSwitch, SyncPoint
from ddlnb.engines.probes import COST_PROBES, cost_of, shares_cores, timed_all_reduces
from ddlnb.engines.replica import Replica
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.torch_engine import transport_for
from ddlnb.errors import DdlnbError, PlanError
from ddlnb.launch.rank import RankContext, local_device
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import method_of, plan_from_json, plan_to_json, require_same_gradients
from ddlnb.search.search import Searching, search_plan
from ddlnb.search.space import Space
from ddlnb.simulator.simulate import simulate
from ddlnb.units import MIB
from ddlnb.workloads.workload import Workload

REPETITIONS = 5  # all-reduces per probe when the cost is measured anew
LEAST_GAIN = 1.1  # times as fast, in simulation, as the plan that is there: beyond its errors
STAYS, MEASURE, AGREED = "stays", "measure", "agreed"


@dataclass(frozen=True)
class Replanning:
    """What a job needs to plan anew.

    ``window`` timed iterations lie between two meetings of all ranks; the search takes at most
    ``search_seconds``, during which all of them wait. ``scale`` is that of a slowed network.
    """

    workload: Workload
    space: Space
    window: int
    search_seconds: float = 2.0
    scale: float = 1.0

    def follow(self, context: RankContext, job: Job, store: Any, trainer: Replica) -> Replanner:
        """Return what plans one worker of the job anew."""
        return Replanner(self, context, job, store, trainer)


def replanning_of(
    planner: Searching, workload: Workload, settings: MeasurementSettings, scale: float
) -> Replanning:
    """Return how a searched plan is made anew in a measurement."""
    assert settings.replan is not None
    space = measured_space(planner, settings)
    return Replanning(workload, space, settings.replan, scale=scale)


class Replanner:
    """Re-plans one worker of a job; every rank calls `after_step` after every step."""

    def __init__(
        self, rules: Replanning, context: RankContext, job: Job, store: Any, replica: Replica
    ):
        self.switches: list[PlanSwitch] = []
        self.sync_points: list[SyncPoint] = []
        self._context, self._job, self._store = context, job, store
        self._replica, self._rules = replica, rules
        self._drift = Drift()
        self._seconds: list[float] = []
        self._mark = time.perf_counter()

    def after_step(self, iteration: int) -> None:
        """Note the seconds of a step; at a meeting, go on under a new plan if there is one.

        ``iteration`` is that of the next step. Steps of the warm-up are not like others and do not
        count; after the last timed one there is nothing to plan for. Raises PlanError, on all ranks
        alike, where a rank cannot read the plan or has to train another model.
        """
        before, self._mark = self._mark, time.perf_counter()
        if not self._job.warmup < iteration < self._job.warmup + self._job.iterations:
            return
        self._seconds.append(self._mark - before)
        if len(self._seconds) == self._rules.window:
            seconds, self._seconds = self._seconds, []
            drifted = self._meet(iteration, seconds)
            met, self._mark = self._mark, time.perf_counter()
            self.sync_points.append(SyncPoint(iteration, self._mark - met, drifted))

    def _meet(self, iteration: int, seconds: list[float]) -> bool:
        """Return whether there is drift; if a quicker plan was found, it has taken over."""
        drifted = self._context.rank == 0 and self._drift.found(seconds)
        if self._of_rank_0(f"meeting {iteration}", MEASURE if drifted else STAYS) == STAYS:
            return False
        self._replica.synchronize()
        self._drift = Drift()  # later windows are compared with the next one
        cost = self._measured()
        text = self._search(cost, iteration) if self._context.rank == 0 else ""
        said = self._of_rank_0(f"plan {iteration}", text)
        if said != STAYS:
            self._take_up(said, iteration)
        return True

    def _measured(self) -> AlphaBeta:
        """Return the cost of an all-reduce now, as the first plan's: loaded alike, slowest rank."""
        job = self._job
        device = local_device(self._context, job.device)
        shared = shares_cores(job.task, job.device)
        how = (shared, job.topology, job.collective)
        seconds = timed_all_reduces(self._context, COST_PROBES, REPETITIONS, device, *how)
        slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return cost_of([self._rules.scale * each for each in slowest.tolist()])

    def _search(self, cost: AlphaBeta, iteration: int) -> str:
        """Return what rank 0 says: a plan that is quicker at this cost, or that the old one stays.

        A machine that computes more slowly drifts as well, and no plan helps.
        """
        rules, plan = self._rules, self._replica.plan
        cluster = measured_cluster(cost, self._job.workers)
        device = self._job.device
        limit = rules.search_seconds / len(searched_on(cluster, device))

        def search(workload: Workload, on: Cluster) -> Plan:
            return search_plan(
                workload, on, space=rules.space, time_limit=limit, progress=False
            ).plan

        chosen = quickest_plan(search, rules.workload, cluster, device)
        present, found = (simulated_seconds(one, rules.workload, cluster) for one in (plan, chosen))
        if present < LEAST_GAIN * found:
            return STAYS
        return json.dumps(
            {
                "iteration": iteration,
                "digest": chosen.digest,
                "plan": plan_to_json(chosen),
                "cost": astuple(cost),
            }
        )

    def _take_up(self, text: str, iteration: int) -> None:
        """Train under the plan in the text from now on, if all ranks can."""
        said = json.loads(text)
        plan, problem = self._read(said, iteration)
        self._agree(iteration, problem)
        assert plan is not None
        job = self._job
        routed = job.topology, job.collective, job.ranks_per_node
        self._replica.replan(plan, transport_for(self._context, self._store, plan, *routed))
        cost = AlphaBeta(*said["cost"])
        self.switches.append(PlanSwitch(iteration, plan.digest, len(plan.messages), cost))

    def _read(self, said: dict[str, Any], iteration: int) -> tuple[Plan | None, str]:
        """Return the plan that rank 0 said, or None and why this rank cannot take it up."""
        try:
            plan = plan_from_json(said["plan"], f"the plan of rank 0 for iteration {iteration}")
            require_same_gradients(self._replica.plan, plan)
        except DdlnbError as error:
            return None, str(error)
        if (plan.digest, iteration) != (said["digest"], said["iteration"]):
            return None, (
                f"it reads plan {plan.digest} before iteration {iteration}, and rank 0 said "
                f"{said['digest']} before iteration {said['iteration']}"
            )
        return plan, ""

    def _agree(self, iteration: int, problem: str) -> None:
        """Raise the same PlanError on all ranks if one of them has a problem."""
        rank = self._context.rank
        self._store.set(f"rank {rank} at {iteration}", problem or AGREED)
        verdict = AGREED
        if rank == 0:
            for other in range(self._job.workers):
                answer = self._store.get(f"rank {other} at {iteration}").decode()
                if answer != AGREED:
                    verdict = f"rank {other} cannot take up a new plan: {answer}"
                    break
        verdict = self._of_rank_0(f"verdict {iteration}", verdict)
        if verdict != AGREED:
            raise PlanError(f"{verdict}; run all ranks with the same ddlnb, or without replan")

    def _of_rank_0(self, key: str, text: str) -> str:
        """Return rank 0's text, on every rank."""
        if self._context.rank == 0:
            self._store.set(key, text)
            return text
        return str(self._store.get(key).decode())


THRESHOLD = 1.5  # times as long, or as short, as under the network that was planned for
CHANCE = 1 / 200  # at most, that noise alone makes two windows as unlike as drift does


class Drift:
    """Compares windows of iterations with the first one that it is shown.

    There is drift where two things hold: the median of a window is over ``THRESHOLD`` times that of
    the first or under its inverse, and the ranks of the seconds of both (Mann and Whitney's U)
    would lie so far apart by chance in one window of 200 at most. The second holds for noise of any
    distribution, as long as iterations are independent of one another: a load that lasts as long
    as a window looks like drift. No single iteration counts for more than its rank.

    >>> drift = Drift()
    >>> drift.found([0.10, 0.11] * 5), drift.found([0.11] * 9 + [9.0]), drift.found([0.2] * 10)
    (False, False, True)
    """

    def __init__(self) -> None:
        self._first: Sequence[float] = ()

    def found(self, seconds: Sequence[float]) -> bool:
        """Return whether a window of iterations, in seconds, is unlike the first."""
        if not self._first:
            self._first = tuple(seconds)
            return False
        ratio = statistics.median(seconds) / statistics.median(self._first)
        return max(ratio, 1 / ratio) > THRESHOLD and chance(self._first, seconds) <= CHANCE


def chance(before: Sequence[float], now: Sequence[float]) -> float:
    """Return how probable windows as unlike as these are, in either direction, if nothing changed.

    Of all pairs of one before and one now, U are slower now; normal approximation of U's
    distribution, ties counted half. H. B. Mann and D. R. Whitney, Annals of Mathematical
    Statistics 18 (1947).

    >>> round(chance([1, 2, 3, 4], [1, 2, 3, 4]), 3), round(chance([1] * 10, [2] * 10), 4)
    (1.0, 0.0002)
    """
    pairs = len(before) * len(now)
    slower = sum((b < n) + 0.5 * (b == n) for b in before for n in now)
    deviation = math.sqrt(pairs * (len(before) + len(now) + 1) / 12)
    return math.erfc(abs(slower - pairs / 2) / deviation / math.sqrt(2))


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
