"""Estimate what an iteration of any method costs on a cluster: the one entry of this room.

Methods whose messages overlap the backward pass are those of `ddlnb.training.cost.overlapped`. The
others run their own loop, on workers without values, so that stragglers, waiting and staleness are
those of its definition. The clock says what a gradient and a request take on a cluster. Requests
cost what the simulator says of one message after the backward pass, since nothing overlaps in
lockstep, but for servers: with ``overlap`` what is pushed layer by layer takes what is left of it
then. With equal workers a BSP run therefore takes as long as BSP-A2A and BSP-PS, or WFBP-PS where
it overlaps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.heterogeneous import HOMOGENEOUS
from ddlnb.compression.base import Codec, Payloads
from ddlnb.compression.profile import FREE, SHEET, CompressionProfile, compression_on
from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.plans.methods import BASELINES, METHODS, Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import KeptPlan, method_of
from ddlnb.plans.server_rules import BulkSynchronous
from ddlnb.registry import supplied_names
from ddlnb.simulator.forecast import methods_on
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.workers import Slowness
from ddlnb.training.cost.overlapped import (
    BACKWARD,
    NOTHING,
    IterationCost,
    lossless_cost,
    overlapped_cost,
    planned_cost,
    require_all_to_all,
    with_own_plans,
)
from ddlnb.training.cost.requests import (
    CompressedPiece,
    coding_seconds,
    coding_source,
    compressed_pieces,
    gathers,
    message_link,
    pieces,
    push_pull_seconds,
    request_cost,
    require_one_switch,
    require_shapes,
)
from ddlnb.training.executors.clock import HELD_PULL, PUSH, Clock, Passage, Trip
from ddlnb.training.executors.dry_run import DryRun, dry_run
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.units import show_seconds
from ddlnb.workloads.roofline import require_same_hardware
from ddlnb.workloads.workload import Workload

BASE = "MG-WFBP"  # the lossless method whose messages BSP sends, unless another is named
STEPS = 24  # simulated iterations of a method that runs in lockstep


def iteration_cost(
    workload: str | Workload,
    cluster: str | Cluster,
    method: str | Method | TrainingMethod | Plan,
    *,
    workers: int | None = None,
    compression: str | CompressionProfile = SHEET,
    base: str | Method = BASE,
    overlap: bool = True,
    slower: Slowness | None = None,
    steps: int = STEPS,
) -> IterationCost:
    """Return the seconds and bytes of one iteration of a method, lossless or lossy.

    ``method`` is a row of METHODS ("WFBP-A2A"), PyTorch's "DDP", a training method
    ("local(8) + top-k(0.01)"), or a plan, the messages of which may be compressed
    (`ddlnb.search_plan` with ``sent``).
    ``workload`` may be the name of a model with a profile for the cluster's hardware.
    ``workers`` of the cluster take part, by default all. An iteration is one gradient of every
    worker; where workers run at different speeds, as many gradients as there are workers.

    Rows of METHODS are simulated as `ddlnb.simulate` does. So is BSP on A2A, compressed or not:
    its messages leave during the backward pass like those of ``base``, a method that ends in A2A
    and cuts no tensors; one that merges gradients merges them by what is sent and the cluster's
    own cost of it. BSP on PS without compression is WFBP-PS. The loops of all other methods run in
    lockstep, ``steps`` iterations of every worker, rounded up to whole cycles. There workers push
    to servers layer by layer, and all other communication follows the computation. With ``overlap``
    false all of it does.
    ``slower(rank, step, workers)`` multiplies the seconds of a worker's computation, in each of
    ``steps`` iterations. ``compression`` is a profile of what compressing takes, by default
    "sheet", what follows from the data sheet of the cluster's GPU, or "free" for nothing, a bound.

    Raises UnknownName, and InputError for servers that the cluster lacks, a compressor that the
    profile lacks, a base that does not fit, ``overlap`` false with a row of METHODS, which has a
    schedule of its own, and a synchronisation whose iterations have no one cost, as those of
    post-local SGD.

    >>> import ddlnb
    >>> resnet = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> dense = ddlnb.iteration_cost(resnet, "survey-10GbE", "MG-WFBP", workers=16)
    >>> sparse = ddlnb.iteration_cost(resnet, "survey-10GbE", "bsp + top-k(0.001)", workers=16)
    >>> round(sparse.bytes / dense.bytes, 3)
    0.016
    """
    cluster = get_cluster(cluster, workers)
    workload = workload_on(workload, cluster)
    if isinstance(method, Plan):
        method = method_of(method)
    if not isinstance(method, Method | TrainingMethod):
        method = _named(method)
    if isinstance(method, Method):
        require(
            overlap,
            f"lossless method {method.name} has a schedule of its own; leave out overlap, or ask "
            f"for 'bsp on A2A' or 'bsp on PS'",
        )
        if isinstance(method.planner, KeptPlan) and method.planner.plan.compressed_by:
            profile = compression_on(compression, cluster.hardware)
            return planned_cost(workload, cluster, method.planner.plan, profile, slower, steps)
        return lossless_cost(workload, cluster, method, slower, steps)
    require_all_to_all(get_method(base))  # even if this method sends no messages like its
    sheetless = compression == SHEET and method.compressor is None  # any hardware will do
    profile = FREE if sheetless else compression_on(compression, cluster.hardware)
    if overlap and method.pushes_gradients and method.compressor is None:
        return lossless_cost(workload, cluster, METHODS["WFBP-PS"], slower, steps)
    if not (overlap and method.overlaps):
        return lockstep_cost(workload, cluster, method, profile, slower, steps, overlap)
    here = with_own_plans(cluster)
    return overlapped_cost(workload, here, method, profile, get_method(base), slower, steps)


def _named(text: object) -> Method | TrainingMethod:
    if not isinstance(text, str):
        raise UnknownName("method", text, [*METHODS, *SYNCHRONISATIONS])
    if text in {*METHODS, *BASELINES, *supplied_names("method")}:
        return get_method(text)
    try:
        return training_method(text)
    except UnknownName:
        if re.fullmatch(r"[\w-]+", text):  # one word, which may be meant for either catalogue
            raise UnknownName("method", text, [*METHODS, *SYNCHRONISATIONS]) from None
        raise


TWICE = 2  # as fast: less is no reason to compress otherwise


def as_one_vector(
    workload: Workload, cluster: Cluster, methods: Iterable[str], **options: Any
) -> str:
    """Return in words which methods are far faster with all gradients as one vector, '' if none.

    Tensor by tensor, operations start for each, and a host starts them one by one. Methods that do
    not compress, or whose compressor takes no vector, are left out, and so are those that would not
    be `TWICE` as fast. ``options`` are those of `iteration_cost`.
    """
    found = []
    for text in dict.fromkeys(methods):
        method = None if text in {*METHODS, *BASELINES} else training_method(text)
        if method is None or method.compressor is None or method.whole_model:
            continue
        with suppress(InputError):
            pair = method, replace(method, whole_model=True)
            costs = [iteration_cost(workload, cluster, one, **options) for one in pair]
            before, after = (cost.iteration_seconds for cost in costs)
            if before > TWICE * after:
                first, on, where = text.partition(" on ")
                named = f"{first} + whole-model{on}{where}"
                found.append(f"{named} {show_seconds(after)}, not {show_seconds(before)}")
    if not found:
        return ""
    return (
        f"Compression starts operations for each of {len(workload.gradients):,} tensors. With all "
        f"gradients as one vector, which sends other values, an iteration takes on "
        f"{cluster.workers} GPUs: {'; '.join(found)}."
    )


def best_lossless(
    workload: Workload,
    cluster: Cluster,
    slower: Slowness | None = None,
    steps: int = STEPS,
    *,
    most_machines: float = math.inf,
) -> IterationCost:
    """Return the cost of the quickest lossless method there, of those that the cluster can run.

    Methods merge gradients by the cluster's own cost, as compressed ones do, even where the cluster
    says that they were run with another. ``most_machines`` is how many machines for parameter
    servers the method may take beside those of the workers; ``slower`` and ``steps`` are those of
    `iteration_cost`. Raises InputError if the cluster can run none of them.
    """
    require_same_hardware(workload, cluster.name, cluster.hardware)
    cluster = with_own_plans(cluster)
    if slower is not None:
        slower(0, 0, cluster.workers)  # raises InputError for a worker that is not there
    costs = []
    for method in methods_on(cluster):
        if cluster.server_machines(method.architecture) > most_machines:
            continue
        try:
            costs.append(lossless_cost(workload, cluster, method, slower, steps))
        except InputError:  # no servers, say
            continue
    require(bool(costs), f"no lossless method runs on {cluster!r}; give the cluster servers")
    return min(costs, key=lambda cost: cost.iteration_seconds)


# Methods that run in lockstep.


def cluster_clock(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod = "bsp",
    slower: Slowness | None = None,
    workers: int | None = None,
    overlap: bool = False,
) -> Clock:
    """Return the clock of this method there; ``slower`` multiplies seconds of computation.

    Workers differ as the cluster says: each computes, is delayed, and pushes and pulls as if all
    were like it, while a collective goes at the pace of the slowest link.

    Workers of a node that push at the same time, as a bulk-synchronous rule makes them do, sum
    inside the node first. Those of other rules push one by one, and queue for two links: that of
    their node, which passes M more bytes in (t(g M) - t(M)) / (g - 1) seconds, with g workers on a
    node and t(M) for a push and a pull of every node at once, and those of the servers together.
    With ``overlap`` layers are pushed while the backward pass goes on, if the method can. Raises
    InputError for servers that the cluster lacks.
    """
    cluster, method = get_cluster(cluster, workers), training_method(method)
    compute = compute_seconds(workload, cluster)
    trip = None
    if method.architecture == "PS":
        trip = _trips(workload, cluster, method, overlap and method.pushes_layers)

    def computing(rank: int, step: int, workers: int) -> float:
        seconds = compute * cluster.heterogeneity.compute_factor(rank)
        if slower is not None:
            seconds *= slower(rank, step, workers)
        return seconds + cluster.heterogeneity.delay_seconds(rank, step)

    def communicating(kind: type, size: int, _: int) -> float:
        return request_cost(cluster, kind, size, is_merged=len(workload.gradients) > 1).seconds

    return Clock(computing, communicating, partial(message_link, cluster), trip)


def _trips(
    workload: Workload, cluster: Cluster, method: TrainingMethod, overlap: bool
) -> Callable[[int, str, int, int], Trip]:
    waits = getattr(method.synchronisation.rule(cluster.workers), "pull", None)
    joined = getattr(waits, "__func__", None) is BulkSynchronous.pull  # for all workers
    per_node, effects = cluster.workers_per_node, cluster.effects
    ready = workload.ready_seconds
    early_seconds = (ready[-1] - ready[0]) * effects.compute_factor if overlap else 0.0
    if not joined:
        require_one_switch(cluster, "servers that do not wait for all workers")
    at_servers = min(effects.server_bandwidth, effects.between_bandwidth) * cluster.default_servers

    def trip(rank: int, way: str, size: int, _: int) -> Trip:
        here = _as_all(cluster, rank)
        after = push_pull_seconds(workload, here, size)
        shown = push_pull_seconds(workload, here, size, overlap=True) if overlap else after
        if joined:  # all pushes and all answers are on the same links at the same time
            return Trip(shown / 2)
        passages = []
        if per_node > 1:
            together = push_pull_seconds(workload, here, size * per_node)
            more = (together - after) / (per_node - 1)
            # Both ways take turns: parts of the model are pulled while others are pushed.
            passages.append(Passage(("node", rank // per_node), more / 2))
        if cluster.nodes_in_use > 1:
            link = ("servers", "out of" if way != PUSH else "into")
            passages.append(Passage(link, size / at_servers))
        if way == HELD_PULL:  # nothing is left to hide it
            return Trip(after / 2, tuple(passages))
        early = early_seconds * cluster.heterogeneity.compute_factor(rank)
        return Trip(shown / 2, tuple(passages), early)

    return trip


def _as_all(cluster: Cluster, rank: int) -> Cluster:
    """Return the cluster as if all its workers were like this one."""
    compute = cluster.heterogeneity.compute_factor(rank)
    link = cluster.heterogeneity.link_factor(rank // cluster.workers_per_node)
    if compute == link == 1.0:
        return replace(cluster, heterogeneity=HOMOGENEOUS)
    return cluster.with_heterogeneity([compute] * cluster.workers, [link] * cluster.nodes_in_use)


def compute_seconds(workload: Workload, cluster: Cluster) -> float:
    """Return the seconds that a worker with no factor computes in an iteration, with its update."""
    plan = plan_on(cluster, workload, "BSP-A2A")
    return lower(workload, cluster, plan).compute_seconds


def lockstep_cost(
    workload: Workload,
    cluster: Cluster,
    method: TrainingMethod,
    profile: CompressionProfile,
    slower: Slowness | None,
    steps: int,
    overlap: bool = False,
) -> IterationCost:
    """Return the mean cost of ``steps`` iterations, rounded up to cycles of the synchronisation.

    Compression is added to the seconds of an iteration, as often as the loop compresses; what a
    server decodes is not counted. Raises InputError for what the cluster or the profile lacks, and
    for a synchronisation whose iterations have no one cost.
    """
    require_whole(steps=steps)
    require_whole(cycle=(cycle := method.synchronisation.cycle()))
    steps = cycle * math.ceil(steps / cycle)
    if method.compressor is not None:
        require_shapes(workload, method.compressor)
    shapes = pieces(workload, whole_model=False)
    clock = cluster_clock(workload, cluster, method, slower, overlap=overlap)
    done = dry_run(method, shapes, cluster.workers, steps, clock, recording=True, cycle=cycle)
    seconds = done.iteration_seconds
    compute = min(seconds, done.compute_seconds)
    found: list[CompressedPiece] = []
    if method.compressor is not None:
        found = compressed_pieces(method.compressor, pieces(workload, method.whole_model))
    coding = _coding_seconds(method, found, profile, done)
    shared = cluster.workers > 1  # one worker asks nobody
    return IterationCost(
        str(method),
        seconds + coding,
        compute_seconds=compute,
        compression_seconds=coding,
        waiting_seconds=seconds - compute,
        bytes_sent=done.bytes_sent * shared,
        bytes_received=done.bytes_received * shared,
        gathers=method.architecture == "A2A" and done.rounds > 0 and gathers(found),
        hidden_behind=BACKWARD if overlap and method.pushes_layers else NOTHING,
        server_machines=cluster.server_machines(method.architecture),
        source="lockstep in the cluster's time"
        + (f"; compression {coding_source(found, profile)}" if found else ""),
    )


def _coding_seconds(
    method: TrainingMethod,
    found: list[CompressedPiece],
    profile: CompressionProfile,
    done: DryRun,
) -> float:
    """Return the seconds per iteration that a worker compresses and decompresses."""
    if method.compressor is None or not done.rounds:
        return 0.0
    decoded = len(done.workers)
    if method.architecture == "gossip" and isinstance(method.compressor, Codec):
        elements = tuple(math.prod(shape) for _, shape in found)
        payload = Payloads(method.compressor, elements).payload_bytes
        decoded = 1 + round(done.bytes_sent / done.rounds / payload)  # its neighbours' and its own
    before, after = coding_seconds(found, profile, decoded, method.feedback)
    if method.architecture == "gossip" and not gathers(found):
        # Profiled as an all-reduce; a payload is read in no more time than it takes to make one.
        after = decoded * before
    return done.rounds * (before + (0.0 if method.architecture == "PS" else after))
