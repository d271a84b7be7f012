"""Simulates a plan on a cluster: the same plan that the real engines execute.

Partition and credit of a method are those with which it is quickest there. ByteScheduler tunes both
for every model and network, by Bayesian optimisation of the speed that it measures (Peng et al.,
SOSP 2019, section 5). Simulated seconds have no noise: going downhill finds what a fine grid finds
(`benchmarks.bytescheduler_tuning`) if partitions of all sizes are tried first, since an all-reduce
may change its algorithm with its size. `breakdown` says where the time of an iteration goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise
from threading import Lock

from ddlnb.clusters.cluster import Cluster, together
from ddlnb.clusters.effects import Group, without
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import method_for
from ddlnb.registry import CACHES
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.events import Prepared, Seconds, play, play_prepared, prepared, spans
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.program import Program, lower
from ddlnb.simulator.tasks import Identity
from ddlnb.simulator.workers import workers_of
from ddlnb.workloads.workload import Workload

Sizes = tuple[int, int]  # partition and credit, in bytes

GAIN = 0.01  # of the seconds: less is not worth another size
MOST_PARTS = 1500  # of all gradients, by a partition smaller than the method's own
# Of a credit, where partitions of all sizes are tried as a start: all-reduces go one by one, so a
# second one under way only keeps urgent ones waiting; servers take several at once.
PARTS = {"A2A": 1, "PS": 8}
# What is changed at once, both ways, as powers of two of partition and credit.
MOVES = ((0, 1), (0, 2), (1, 1), (1, 0), (1, 2), (1, -1))


def tuned(
    method: Method, workload: Workload, seconds: Callable[[Method], float], servers: int = 0
) -> Method:
    """Return the method with the partition and credit for which ``seconds`` are few.

    Both are the method's own times powers of two (or the credit is all messages under way):
    partitions that cut tensors, or the share of one of so many servers, and credits from one
    partition to all gradients. The result is never slower
    than the method's own sizes. Raises InputError for a method that lacks one of them.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("bert-base_b64_rtx2080ti")
    >>> method = ddlnb.get_method("ByteScheduler-A2A")
    >>> best = tuned(method, workload, lambda one: abs(one.partition_bytes - 30e6))
    >>> best.partition_bytes, best.tunes
    (32000000, False)
    """
    partition, credit = method.partition_bytes, method.credit_bytes
    if partition is None or credit is None:
        raise InputError(
            f"method {method.name!r} has no partition and credit to tune; take a ByteScheduler"
        )
    everything = workload.gradient_bytes
    whole = max(gradient.bytes for gradient in workload.gradients)
    if servers:
        whole = min(whole, -(-everything // servers))
    while partition >= 2 * whole:  # half of it cuts nothing either
        partition //= 2
    while credit >= 2 * max(everything, partition):
        credit //= 2
    least = min(partition, everything // MOST_PARTS)
    known: dict[Sizes, float] = {}

    def cost(sizes: Sizes) -> float:
        if sizes not in known:
            known[sizes] = seconds(method.tuned(partition=sizes[0], credit=sizes[1]))
        return known[sizes]

    def is_tried(sizes: Sizes) -> bool:
        return least <= sizes[0] < 2 * whole and sizes[0] <= sizes[1] < 2 * everything

    best, before = (partition, credit), None
    tries = [
        (int(partition * 2.0**power), PARTS[method.architecture])
        for power in range(whole.bit_length(), -partition.bit_length(), -1)
    ]
    # Many servers are busy only with all messages under way, however small those are.
    for size, count in [(partition, everything // partition)] * (servers > 0) + tries:
        sizes = (size, count * size)
        if is_tried(sizes) and cost(sizes) < (1 - GAIN) * cost(best):
            best = sizes
    while best != before:
        before = best
        for move in (move for one in MOVES for move in (one, (-one[0], -one[1]))):
            while is_tried(sizes := _times(best, move)) and cost(sizes) < (1 - GAIN) * cost(best):
                best = sizes
    return method.tuned(partition=best[0], credit=best[1])


def _times(sizes: Sizes, powers: Sizes) -> Sizes:
    """Return the sizes times these powers of two."""
    partition, credit = (int(size * 2.0**power) for size, power in zip(sizes, powers, strict=True))
    return partition, credit


Cost = AlphaBeta | None
MOST_SPANS = 100_000  # a stated budget: about ten seconds to play, 20 MB of trace
PLAYED_AT_ONCE = 2  # batches
BATCH = 32  # cells, which a thread lowers and plays in one go: of the largest plans 150 megabytes
KEPT = 512  # of the largest plans this is some hundred megabytes


def plan_on(
    cluster: Cluster, workload: Workload, method: str | Method, servers: int | None = None
) -> Plan:
    """Return the plan of a method for a workload on a cluster.

    Priorities are played with the cluster's own cost of an all-reduce; gradients are merged with
    the one that the cluster says methods believe in, if it does. A method that tunes its sizes has
    those of `sized_on`. ``servers`` is the number of parameter servers, by default one for every
    node in use.
    """
    method = sized_on(cluster, workload, method, servers)
    if method.planner is not None:
        return _planned_on(Identity((workload,)), method, cluster)
    return _plan_on(Identity((workload,)), method, *_circumstances(cluster, method, servers))


def sized_on(
    cluster: Cluster, workload: Workload, method: str | Method, servers: int | None = None
) -> Method:
    """Return the method with the partition and credit that it has there: tuned, if it tunes.

    They are those for which a steady iteration on the cluster takes the fewest seconds (`tuned`),
    without the random delays of its workers, over which seconds settle only slowly.
    """
    method = get_method(method)
    return _sized_on(Identity((workload,)), method, servers, cluster) if method.tunes else method


def simulate(
    model: str | Workload,
    cluster: str | Cluster,
    method: str | Method | Plan,
    *,
    workers: int | None = None,
    servers: int | None = None,
    iterations: int = 3,
) -> Timeline:
    """Return the timeline of the workers over the first iterations of training.

    ``iteration_seconds`` and ``exposed_communication_seconds`` of the timeline are those of a
    steady iteration; ``to_frame()`` returns its spans, in seconds. Where all workers are alike,
    rank 0 stands for them all; where they differ, the lowest rank of every kind stands for its
    kind. A message lasts from the moment the network takes it, which is after it has queued, to the
    moment its average is back. ``model`` is a Workload, or the name of a model with a profile for
    the cluster's hardware. Raises InputError when the cluster lacks workers, or a link that the
    method needs.

    >>> import ddlnb
    >>> from ddlnb.workloads.workload import Gradient, Layer
    >>> layer, gradient = Layer("l", forward_seconds=1.0), Gradient("w", "l", 10, 4, 2.0)
    >>> work = ddlnb.Workload("toy", 1, (layer,), (gradient,), "by hand")
    >>> ddlnb.simulate(work, "v100-nvlink", "BSP-A2A", workers=1).iteration_seconds
    3.0
    """
    require_whole(iterations=iterations)
    method = method_for(method)
    cluster = get_cluster(cluster, workers)
    workload = workload_on(model, cluster)
    program = lower(workload, cluster, plan_on(cluster, workload, method, servers))
    played = workers_of(cluster, iterations=iterations, warm_up=False)
    count = len(played.classes) * iterations * (len(program.tasks.listed) + len(program.messages))
    require(
        count <= MOST_SPANS,
        f"{iterations:,} iterations of {len(played.classes)} workers that differ would make a "
        f"timeline of {count:,} spans, and viewers and pictures take at most {MOST_SPANS:,}; ask "
        f"for at most {MOST_SPANS * iterations // count:,} iterations",
    )
    found = spans(replace(program, workers=played), iterations)
    return Timeline(method.name, "simulated", tuple(found))


@dataclass(frozen=True)
class Cell:
    """One thing to simulate: a workload on a cluster by a method; servers as in `plan_on`.

    ``planned_on`` is the cluster that the method takes this one for when it plans.
    """

    workload: Workload
    cluster: Cluster
    method: Method
    servers: int | None = None
    planned_on: Cluster | None = None

    @property
    def plan(self) -> Plan:
        """The cell's plan."""
        return plan_on(self.planned_on or self.cluster, self.workload, self.method, self.servers)

    @property
    def sized(self) -> Method:
        """The cell's method with the sizes that its plan was made with."""
        return sized_on(self.planned_on or self.cluster, self.workload, self.method, self.servers)

    @property
    def samples(self) -> int:
        """Samples that all workers together go through in one iteration."""
        return self.cluster.workers * self.workload.local_batch


def steady_seconds(cells: Sequence[Cell], *, keep: bool = False) -> list[Seconds]:
    """Seconds of a steady iteration, and those exposed, of many cells by the compiled simulator.

    With ``keep`` what was prepared for a cell is kept for the next call, which saves most of the
    time but takes memory. Raises InputError as `simulate` does.
    """
    prepare = _kept if keep else _lowered
    order = sorted(range(len(cells)), key=lambda number: _of_plan(cells[number]))
    lowering = Lock()

    def played(numbers: Sequence[int]) -> list[Seconds]:
        with lowering:  # one thread plays, without the interpreter, while the other one lowers
            programs = prepare([cells[number] for number in numbers])
        return [play_prepared(program) for program in programs]

    with ThreadPoolExecutor(PLAYED_AT_ONCE) as pool:
        batches = (order[start : start + BATCH] for start in range(0, len(order), BATCH))
        found = dict(zip(order, chain.from_iterable(pool.map(played, batches)), strict=True))
    return [found[number] for number in range(len(cells))]


def _of_plan(cell: Cell) -> tuple[int, ...]:
    """Return what cells share that have the same plan."""
    planned_on = cell.planned_on or cell.cluster
    return id(cell.workload), id(planned_on), id(cell.method), cell.servers or 0


def _lowered(cells: Sequence[Cell]) -> list[Prepared]:
    """Return the program of every cell: a plan is lowered once for clusters that are kin."""
    found: dict[int, Prepared] = {}
    for _, of_plan in groupby(range(len(cells)), lambda number: _of_plan(cells[number])):
        numbers = list(of_plan)
        workload, plan = cells[numbers[0]].workload, cells[numbers[0]].plan
        alike = [cells[number].cluster for number in numbers]
        for rows, cluster in together(alike, plan.collectives):
            programs = prepared(lower(workload, cluster, plan), len(rows))
            found.update(zip([numbers[row] for row in rows], programs, strict=True))
    return [found[number] for number in range(len(cells))]


def _kept(cells: Sequence[Cell]) -> list[Prepared]:
    return [
        _prepared(
            Identity((cell.workload,)),
            cell.cluster,
            cell.planned_on or cell.cluster,
            cell.method,
            cell.servers,
        )
        for cell in cells
    ]


def _circumstances(cluster: Cluster, method: Method, servers: int | None) -> tuple[int, str, Cost]:
    """Return what rules plan with: servers, their placement, the cost of an all-reduce."""
    servers = cluster.default_servers if servers is None else servers
    if not method.needs_cost:
        return servers, cluster.placement, None
    believed = cluster.cost if method.priority else cluster.planning or cluster.cost
    return servers, cluster.placement, believed


@lru_cache(maxsize=KEPT)
def _sized_on(of: Identity, method: Method, servers: int | None, cluster: Cluster) -> Method:
    workload: Workload = of.parts[0]
    used, placement, cost = _circumstances(cluster, method, servers)
    steady = replace(cluster, heterogeneity=replace(cluster.heterogeneity, delay=None))

    @cache
    def lowered(one: Method) -> Program:
        plan = one.plan(workload, cost=cost, servers=used, placement=placement)
        return lower(workload, steady, plan, keep=False)

    def seconds(one: Method) -> float:
        # Servers take messages as they come: there a credit changes nothing but how many those are.
        like = replace(one, credit_bytes=1) if one.architecture == "PS" else one
        credit = math.inf if one.credit_bytes is None else float(one.credit_bytes)
        return play(replace(lowered(like), credit_bytes=credit)).iteration_seconds

    return tuned(method, workload, seconds, used if method.architecture == "PS" else 0)


@lru_cache(maxsize=KEPT)
def _plan_on(of: Identity, method: Method, servers: int, placement: str, cost: Cost) -> Plan:
    return method.plan(of.parts[0], cost=cost, servers=servers, placement=placement)


@lru_cache(maxsize=KEPT)
def _planned_on(of: Identity, method: Method, cluster: Cluster) -> Plan:
    return method.planned(of.parts[0], cluster)


@lru_cache(maxsize=KEPT)
def _prepared(
    of: Identity, cluster: Cluster, planned_on: Cluster, method: Method, servers: int | None
) -> Prepared:
    plan = plan_on(planned_on, of.parts[0], method, servers)
    return prepared(lower(of.parts[0], cluster, plan))[0]


CACHES.extend(kept.cache_clear for kept in (_sized_on, _plan_on, _planned_on, _prepared))

# In the reverse of the order in which a message meets them.
REMOVED: tuple[Group, ...] = ("contention", "latency", "bandwidth")
ROUNDING = 1e-9  # of an iteration
SETTLED = 4  # iterations after which messages go in their order


@dataclass(frozen=True)
class Breakdown:
    """The seconds of a steady iteration in parts that add up to ``iteration_seconds``.

    ``contention`` is what computation and communication take from one another, ``latency`` what
    latencies and software cost, ``bandwidth`` what the bytes cost, ``computation`` the rest. A part
    is negative where an iteration takes longer without the effects. That can only be because
    messages go in another order then, and ``is_reordered`` says so.
    """

    iteration_seconds: float
    computation: float
    contention: float
    latency: float
    bandwidth: float
    is_reordered: bool = False


def breakdown(cells: Sequence[Cell]) -> list[Breakdown]:
    """Return the breakdown of every cell: effects are removed group by group, plans stay.

    First contention goes, then latencies, then the cost of bytes; what remains is computation. The
    order matters where effects hide one another: it is the reverse of the order in which a message
    meets them.
    """
    steps = [without(*REMOVED[:count]) for count in range(len(REMOVED) + 1)]
    found = []
    for cell in cells:
        planned = replace(cell, planned_on=cell.planned_on or cell.cluster)
        cases = [replace(planned, cluster=cell.cluster.with_effects(**step)) for step in steps]
        seconds = [one.iteration_seconds for one in steady_seconds(cases)]
        parts = [before - after for before, after in pairwise(seconds)]
        is_reordered = any(
            part < -ROUNDING * seconds[0] and _order(before) != _order(after)
            for part, (before, after) in zip(parts, pairwise(cases), strict=True)
        )
        contention, latency, bytes_ = parts
        found.append(Breakdown(seconds[0], seconds[-1], contention, latency, bytes_, is_reordered))
    return found


def _order(cell: Cell) -> list[list[str]]:
    """Return the messages of an iteration in the order in which they start, and that of ends."""
    listed = [
        span
        for span in spans(lower(cell.workload, cell.cluster, cell.plan), SETTLED)
        if span.kind == "message" and span.iteration == SETTLED - 1
    ]
    return [
        [span.name for span in sorted(listed, key=lambda one: one.start_seconds)],
        [span.name for span in sorted(listed, key=lambda one: one.stop_seconds)],
    ]
