"""The search for a plan: from the methods' plans and the best merging, by small changes."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require, require_whole
from ddlnb.plans.bucketing import in_buffers
from ddlnb.plans.plan import Gate
from ddlnb.progress import Show
from ddlnb.search.changes import changes
from ddlnb.search.result import SearchResult
from ddlnb.search.sent import DENSE, Sent
from ddlnb.search.space import SEARCHED, Candidate, Space
from ddlnb.search.trial import Trials
from ddlnb.simulator.profiles import workload_on
from ddlnb.units import KIB, MIB
from ddlnb.workloads.workload import Workload

EVERYTHING = Space()
MOST_PLANS = 700
# Of these as many as groups that hold equal bytes are tried as a start.
BUFFERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
PARTITIONS = (None, 64 * MIB, 16 * MIB, 4 * MIB, MIB, 256 * KIB)
CLIMBED = 3  # families of plans that are changed step by step
CLOSE = 1e-4  # a plan this close to the bound, relatively, is not worth more time


def search_plan(
    model: str | Workload,
    cluster: str | Cluster,
    *,
    workers: int | None = None,
    space: Space = EVERYTHING,
    sent: Sent = DENSE,
    most_plans: int = MOST_PLANS,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Show = None,
) -> SearchResult:
    """Return the quickest plan found for a workload on a cluster, with a bound of all plans.

    The search starts from the plans of all methods that the cluster can run, from the best merging
    (by dynamic programming; exact where messages start as they are ready, all layers wait, and
    computation is not slowed) and from buffers of equal size, under every gate, order, partition
    and collective that ``space`` allows; and changes the best of these step by step. Plans are
    compared in simulation (`ddlnb.simulate`); so the result is at least as fast there as every
    method. It is the same for the same arguments and ``seed``, unless ``time_limit`` seconds end
    it. ``most_plans`` are played. ``sent`` is `DENSE`, or a `ddlnb.Compressed`: the methods are
    then the fixed ones with its compressor, and the dense search, which takes as long again, is in
    ``dense`` of the result. ``model`` is a Workload, or the name of one with a profile for
    the cluster's hardware. Raises InputError for what does not fit together.

    >>> import ddlnb
    >>> found = ddlnb.search_plan("resnet50", "survey-10GbE", workers=16, most_plans=60)
    >>> found.iteration_seconds <= min(found.fixed.values()), found.plan.method
    (True, 'searched')
    >>> found.lower_bound_seconds <= found.iteration_seconds
    True
    """
    require_whole(most_plans=most_plans)
    require(
        time_limit is None or time_limit > 0, f"time_limit {time_limit} seconds must be positive"
    )
    require(
        hasattr(sent, "on"),
        f"sent {sent!r} does not say how gradients are sent; give ddlnb.Compressed({sent!r}), say",
    )
    cluster = get_cluster(cluster, workers)
    workload = workload_on(model, cluster)
    sending = sent.on(workload, cluster, space)
    dense = None
    if sent != DENSE:
        half = None if time_limit is None else time_limit / 2
        limits: dict[str, Any] = {"most_plans": most_plans, "time_limit": half}
        dense = search_plan(workload, cluster, space=space, seed=seed, progress=progress, **limits)
        time_limit = half
    started = time.monotonic()
    deadline = started + time_limit if time_limit is not None else float("inf")
    trials = Trials(sending, most_plans, deadline, progress)
    bound = sending.bound()
    close = bound.seconds * (1 + CLOSE)
    with _garbage_of_its_own():
        fixed = _methods(trials)
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
        sent=str(sent),
        dense=dense,
    )


@contextmanager
def _garbage_of_its_own() -> Iterator[None]:
    """Keep the collector from looking through all that was there before: that takes half the time.

    Plans are thousands of small objects, and make it look often. Ranks and kernels that are forked
    have it frozen already, and it stays so: no collection shall touch pages that they share.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _methods(trials: Trials) -> dict[str, float]:
    """Return the seconds of the methods' own plans."""
    if not trials.sending.space.methods:
        return {}
    return {
        name: min(trials.plan(plan) for plan in plans)
        for name, plans in trials.sending.fixed().items()
    }


def _starts(trials: Trials, workload: Workload) -> Iterator[Candidate]:
    """Yield what the search starts from, the most promising first."""
    sending = trials.sending
    space, count = sending.space, len(workload.gradients)
    groups = sending.mergings()
    groups += [_equal(workload, buffers) for buffers in BUFFERS if buffers <= count]
    groups.append(tuple(range(1, count + 1)))
    shapes = list(_shapes(space, bool(sending.names)))
    for ends in dict.fromkeys(groups):
        for dense in sending.selections(ends):
            for shape in shapes:
                yield replace(shape, ends=ends, dense=dense)
    if space.partition:
        for size in PARTITIONS[1:]:
            for ends in dict.fromkeys([groups[0], *groups[-1:]]):
                for shape in shapes:
                    yield replace(shape, ends=ends, partition=size)


def _shapes(space: Space, chooses: bool) -> Iterator[Candidate]:
    """Yield candidates that differ in all but their groups."""
    for gate in space.gates:
        for order in space.orders:
            if order == "priority" and gate is Gate.ALL_LAYERS and "ready" in space.orders:
                continue  # nobody goes on before all have arrived
            for choice in (False, True) if chooses else (False,):
                yield Candidate((), gate, order == "priority", False, None, choice)
    if space.split:
        for gate in space.gates:
            yield Candidate((), gate, False, True)


def _equal(workload: Workload, buffers: int) -> tuple[int, ...]:
    """Return the ends of about so many groups of neighbours with equal bytes."""
    size = max(1, -(-workload.gradient_bytes // buffers))
    lengths = [len(message.pieces) for message in in_buffers(workload, size)]
    return tuple(accumulate(lengths))


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
