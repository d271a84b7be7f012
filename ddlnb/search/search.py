"""The search for a plan: from the methods' plans and the best merging, by small changes.

`search_plan` tries plans in simulation (`Trials`) and returns a `SearchResult`: the plan, how fast
it is, and how much faster any plan could be. "searched" is the name of what it finds wherever
methods have names (`SEARCHED_METHOD`).
"""

from __future__ import annotations

import random
import time
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product
from typing import Any

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.bucketing import ONE_BUCKET, in_buffers
from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Gate, Launch, Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.progress import Show, bar
from ddlnb.search.bound import Bound, lower_bound
from ddlnb.search.compressed import DENSE, Compression, Sending
from ddlnb.search.space import SEARCHED, Candidate, Space
from ddlnb.simulator.profiles import workload_on
from ddlnb.units import KIB, MIB, counted, show_seconds
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class SearchResult:
    """A searched plan: ``iteration_seconds`` are simulated, no plan takes fewer than the bound.

    ``fixed`` holds the seconds of the methods' own plans by name, on the same cluster;
    ``evaluated`` how many plans were played, ``search_seconds`` how long that took, and
    ``is_complete`` whether the search ended by itself, not by its time limit. ``method`` is the
    plan as a method, which `ddlnb.simulate`, `ddlnb.forecast` and `ddlnb.measure` take. Where
    ``compression`` is not dense, ``dense`` is what was found for dense gradients,
    and `ddlnb.iteration_cost` takes the plan.
    """

    plan: Plan
    iteration_seconds: float
    bound: Bound
    fixed: dict[str, float] = field(repr=False)
    evaluated: int
    search_seconds: float
    is_complete: bool = True
    compression: str = "dense"
    dense: SearchResult | None = field(default=None, repr=False)

    @property
    def lower_bound_seconds(self) -> float:
        """The seconds that an iteration takes at least, whatever the plan."""
        return self.bound.seconds

    @property
    def gap(self) -> float:
        """How much longer than the lower bound an iteration takes: 0.03 is 3 %."""
        return self.iteration_seconds / self.bound.seconds - 1

    @property
    def best_fixed(self) -> str | None:
        """The quickest method, None where none was asked for."""
        return min(self.fixed, key=lambda name: self.fixed[name]) if self.fixed else None

    @property
    def speedup(self) -> float:
        """How many times as fast as the quickest method; 1 where none was asked for."""
        if self.best_fixed is None:
            return 1.0
        return self.fixed[self.best_fixed] / self.iteration_seconds

    @property
    def method(self) -> Method:
        """The plan as a method of its own."""
        return method_of(self.plan)

    def __str__(self) -> str:
        plan = self.plan
        first = str(plan).partition("\n")[0]
        lines = [
            first,
            f"iteration {show_seconds(self.iteration_seconds)} (simulated); at least "
            f"{show_seconds(self.bound.seconds)} whatever the plan, by {self.bound.limit}: "
            f"{round(self.gap, 6) + 0.0:.1%} above",
        ]
        if self.best_fixed is not None:
            lines.append(
                f"best method {self.best_fixed}: {show_seconds(self.fixed[self.best_fixed])}, "
                f"{self.speedup:.3f} times as long"
            )
        if self.dense is not None:
            seconds = self.dense.iteration_seconds
            lines.append(
                f"dense, searched: {show_seconds(seconds)}, {seconds / self.iteration_seconds:.3f} "
                f"times as long"
            )
        ended = "" if self.is_complete else "; stopped by its time limit"
        lines.append(f"{self.evaluated} plans played in {show_seconds(self.search_seconds)}{ended}")
        return "\n".join(lines)


@dataclass
class Trials:
    """The plans tried so far, and the quickest of them. ``most`` and ``deadline`` end a search."""

    sending: Sending
    most: int
    deadline: float
    progress: Show = None
    evaluated: int = 0
    best_plan: Plan | None = None
    best_seconds: float = float("inf")
    known: dict[Candidate, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bar = bar(total=self.most, unit="plan", progress=self.progress)

    @property
    def is_over(self) -> bool:
        """Whether a plan was found, and as many were tried as may be, or the time is up."""
        is_up = self.evaluated >= self.most or time.monotonic() > self.deadline
        return is_up and self.best_plan is not None

    def plan(self, plan: Plan) -> float:
        """Return the seconds of a plan; inf where iterations do not become alike."""
        seconds = self.sending.seconds(plan)
        self.evaluated += 1
        self._bar.update()
        if seconds < self.best_seconds:
            self.best_plan, self.best_seconds = plan, seconds
            self._bar.set_description(f"{1e3 * self.best_seconds:.4g} ms")
        return seconds

    def candidate(self, one: Candidate) -> float:
        """Return the seconds of a candidate, played once; inf for too many messages."""
        if one not in self.known:
            plan = self.sending.plan(one)
            self.known[one] = float("inf") if plan is None else self.plan(plan)
        return self.known[one]

    def close(self) -> None:
        """End the bar."""
        self._bar.close()


def changes(
    one: Candidate, count: int, sending: Sending, generator: random.Random
) -> Iterator[Candidate]:
    """Yield candidates of ``count`` gradients that differ a little, in an order of chance.

    A group that is moved stays dense or compressed; two halves of one are what it was.
    """
    ends, dense = set(one.ends), one.dense
    found: list[Candidate] = []

    def add(changed: set[int], now_dense: frozenset[int] = dense) -> None:
        found.append(
            replace(one, ends=tuple(sorted(changed)), dense=now_dense & frozenset(changed))
        )

    inner = sorted(ends - {count})
    for end in inner:
        add(ends - {end})
        for step in (1, -1, 3, -3, 10, -10):
            moved = end + step
            if 0 < moved < count and moved not in ends:
                add(ends - {end} | {moved}, dense | {moved} if end in dense else dense)
    bounds = [0, *sorted(ends)]
    for before, after in pairwise(bounds):
        for share in (0.25, 0.5, 0.75):
            middle = before + round((after - before) * share)
            if before < middle < after:
                add(ends | {middle}, dense | {middle} if after in dense else dense)
    if sending.is_mixed:
        for end in sorted(ends):
            add(ends, dense ^ {end})
    if sending.space.partition and not one.split:
        sizes = [one.partition * 2, one.partition // 2] if one.partition else [32 * MIB, 8 * MIB]
        found += [replace(one, partition=size) for size in sizes if size >= KIB]
    generator.shuffle(found)
    yield from found


EVERYTHING = Space()
MOST_PLANS = 700
# Of these as many as groups that hold equal bytes are tried as a start.
BUFFERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
PARTITIONS = (64 * MIB, 16 * MIB, 4 * MIB, MIB, 256 * KIB)
CLIMBED = 3  # families of plans that are changed step by step
CLOSE = 1e-4  # a plan this close to the bound, relatively, is not worth more time


def search_plan(
    model: str | Workload,
    cluster: str | Cluster,
    *,
    workers: int | None = None,
    space: Space = EVERYTHING,
    compression: Compression = DENSE,
    most_plans: int = MOST_PLANS,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Show = None,
    sent: Compression | None = None,
) -> SearchResult:
    """Return the quickest plan found for a workload on a cluster, with a bound of all plans.

    The search starts from the plans of all methods that the cluster can run, from the best merging
    (by dynamic programming; exact where messages start as they are ready, all layers wait, and
    computation is not slowed) and from buffers of equal size, under every gate, order, partition
    and collective that ``space`` allows; and changes the best of these step by step. Plans are
    compared in simulation (`ddlnb.simulate`); so the result is at least as fast there as every
    method. It is the same for the same arguments and ``seed``, unless ``time_limit`` seconds end
    it. ``most_plans`` are played. ``compression`` (before: ``sent``) is `DENSE`, or a
    `ddlnb.training.Compressed`: then the methods are the fixed ones with its compressor, and the
    dense search, which takes as long again, is in ``dense`` of the result. ``model`` is a Workload,
    or the name of one with a profile for the cluster's hardware. Raises InputError for what does
    not fit together.

    >>> import ddlnb
    >>> found = ddlnb.search_plan("resnet50", "survey-10GbE", workers=16, most_plans=60)
    >>> found.iteration_seconds <= min(found.fixed.values()), found.plan.method
    (True, 'searched')
    >>> found.lower_bound_seconds <= found.iteration_seconds
    True
    """
    compression = compression if sent is None else sent
    require_whole(most_plans=most_plans)
    require(
        time_limit is None or time_limit > 0, f"time_limit {time_limit} seconds must be positive"
    )
    require(
        hasattr(compression, "on"),
        f"compression {compression!r} does not say how gradients are sent; give "
        f"ddlnb.training.Compressed({compression!r}), say",
    )
    cluster = get_cluster(cluster, workers)
    workload = workload_on(model, cluster)
    sending = compression.on(workload, cluster, space)
    dense = None
    if compression != DENSE:
        half = None if time_limit is None else time_limit / 2
        limits: dict[str, Any] = {"most_plans": most_plans, "time_limit": half}
        dense = search_plan(workload, cluster, space=space, seed=seed, progress=progress, **limits)
        time_limit = half
    started = time.monotonic()
    deadline = started + time_limit if time_limit is not None else float("inf")
    trials = Trials(sending, most_plans, deadline, progress)
    bound = sending.bound()
    close = bound.seconds * (1 + CLOSE)
    plans = sending.fixed() if sending.space.methods else {}
    fixed = {name: min(map(trials.plan, listed)) for name, listed in plans.items()}
    if dense is not None and sending.is_mixed:
        trials.plan(dense.plan)
    for candidate in _starts(trials, workload):
        if trials.is_over or trials.best_seconds <= close:
            break
        trials.candidate(candidate)
    _climb(trials, len(workload.gradients), close, seed)
    trials.close()
    assert trials.best_plan is not None
    return SearchResult(
        plan=replace(trials.best_plan, method=SEARCHED),
        iteration_seconds=trials.best_seconds,
        bound=bound,
        fixed=fixed,
        evaluated=trials.evaluated,
        search_seconds=time.monotonic() - started,
        is_complete=time.monotonic() <= deadline,
        compression=str(compression),
        dense=dense,
    )


def _starts(trials: Trials, workload: Workload) -> Iterator[Candidate]:
    """Yield what the search starts from, the most promising first."""
    sending = trials.sending
    space, count = sending.space, len(workload.gradients)
    groups = sending.mergings()
    for buffers in BUFFERS[: bisect(BUFFERS, count)]:
        messages = in_buffers(workload, max(1, -(-workload.gradient_bytes // buffers)))
        groups.append(tuple(accumulate(len(message.pieces) for message in messages)))
    groups.append(tuple(range(1, count + 1)))
    shapes = list(_shapes(space, bool(sending.names)))
    for ends in dict.fromkeys(groups):
        for dense, shape in product(sending.selections(ends), shapes):
            yield replace(shape, ends=ends, dense=dense)
    cut = dict.fromkeys([groups[0], groups[-1]])
    for size, ends, shape in product(PARTITIONS if space.partition else (), cut, shapes):
        yield replace(shape, ends=ends, partition=size)


def _shapes(space: Space, chooses: bool) -> Iterator[Candidate]:
    """Yield candidates that differ in all but their groups."""
    for gate, order in product(space.gates, space.orders):
        if order == "priority" and gate is Gate.ALL_LAYERS and "ready" in space.orders:
            continue  # nobody goes on before all have arrived
        for choice in (False, True) if chooses else (False,):
            yield Candidate((), gate, order == "priority", chooses=choice)
    for gate in space.gates if space.split else ():
        yield Candidate((), gate, split=True)


def _climb(trials: Trials, count: int, close: float, seed: int) -> None:
    """Change the best candidates of some families step by step, while that makes them quicker."""
    generator = random.Random(seed)
    ranked = sorted(trials.known, key=lambda one: trials.known[one])
    families: dict[Candidate, Candidate] = {}
    for one in ranked:
        families.setdefault(replace(one, ends=(), partition=None, dense=frozenset()), one)
    for start in list(families.values())[:CLIMBED]:
        best, seconds = start, trials.known[start]
        improved = True
        while improved:
            improved = False
            for changed in changes(best, count, trials.sending, generator):
                if trials.is_over or trials.best_seconds <= close:
                    return
                found = trials.candidate(changed)
                if found < seconds * (1 - 1e-9):
                    best, seconds, improved = changed, found, True
                    break


WITHOUT_SERVERS = Space(servers=False)


@dataclass(frozen=True)
class Searching:
    """A planner that searches a space, with a fixed seed: the same plan for the same arguments."""

    space: Space = WITHOUT_SERVERS

    def __call__(self, workload: Workload, cluster: Any = None) -> Plan:
        """Return the plan that is found. Raises InputError without a cluster."""
        if not isinstance(cluster, Cluster):
            raise InputError(
                "method 'searched' makes its plan for a cluster; name one (cluster=..., "
                "--cluster), or take a kept plan (--plan)"
            )
        return search_plan(workload, cluster, space=self.space, progress=False).plan

    def remark(self, name: str, workload: Workload, cluster: Cluster, seconds: float) -> str:
        """Return how far an iteration of so many seconds is above what any plan can reach."""
        bound = lower_bound(workload, cluster, self.space.collectives_on(cluster))
        return (
            f"{name} on {counted(cluster.workers, 'GPU')}: {show_seconds(seconds)} per iteration; "
            f"without servers no plan takes less than {show_seconds(bound.seconds)} "
            f"({bound.limit}): {seconds / bound.seconds - 1:.1%} above."
        )


# Exchange, launch and gate are those of its plan. It goes without parameter servers, which would
# be more machines.
SEARCHED_METHOD = Method(
    name=SEARCHED,
    scheduling="searched",
    bucketing=ONE_BUCKET,
    exchange="all_reduce",
    launch=Launch.WHEN_READY,
    priority=False,
    gate=Gate.ALL_LAYERS,
    planner=Searching(),
)
