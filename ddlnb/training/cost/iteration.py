"""Seconds of an iteration with compression on a cluster, simulated with everything that overlaps.

Layer by layer, messages leave while the backward pass goes on, as the base method sends them; the
whole model as one vector leaves after it. Synchronisations other than BSP are in
`ddlnb.training.cost.iteration`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import Codec, Compressor, Traffic
from ddlnb.compression.payloads import Payloads
from ddlnb.compression.profile import FREE, CompressionProfile, compression_profile
from ddlnb.errors import require, require_whole
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.training.cost.cluster_clock import Slowness, cluster_clock
from ddlnb.training.cost.program import CompressedMessage, compressed
from ddlnb.training.cost.traffic import (
    Shape,
    compressed_pieces,
    link_bytes,
    pieces,
    requests_cost,
    tensor_shapes,
)
from ddlnb.training.executors.dry_run import NullRun, null_run
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.workloads.workload import Workload

CompressedPiece = tuple[Compressor, Shape]
T = TypeVar("T")

BASE = "MG-WFBP"  # as which messages of BSP leave, if no other method is named


@dataclass(frozen=True)
class IterationCost:
    """Where the seconds of one iteration of one worker go, and the bytes of the busiest worker.

    ``waiting_seconds`` is communication that nothing hides, and waiting for others. ``gathers``
    when payloads go to all workers, so that traffic grows with their number. ``source`` says how
    the seconds were found.
    """

    method: str
    iteration_seconds: float
    compute_seconds: float
    compression_seconds: float
    waiting_seconds: float
    bytes_sent: float
    bytes_received: float
    gathers: bool = False
    source: str = ""

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received


def dense_cost(
    workload: Workload, cluster: str | Cluster, method: str | Method, workers: int | None = None
) -> IterationCost:
    """The cost of a lossless method of the survey, as `simulate` finds it."""
    cluster, method = get_cluster(cluster, workers), get_method(method)
    program = lower(workload, cluster, plan_on(cluster, workload, method))
    played = play_fast(program)
    size = workload.gradient_bytes
    if method.architecture == "A2A":
        bytes_ = ring_bytes_sent(size, cluster.workers)
    else:
        bytes_ = float(size) if cluster.workers > 1 else 0.0  # one worker asks nobody
    return IterationCost(
        method.name,
        played.iteration_seconds,
        played.iteration_seconds - played.exposed_seconds,
        0.0,
        played.exposed_seconds,
        bytes_,
        bytes_,
        source="simulated",
    )


def compressed_cost(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod,
    profile: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    workers: int | None = None,
) -> IterationCost:
    """The cost of BSP with a compression, its messages launched as ``base`` launches them.

    A method with the whole-model flag has one message after the backward pass, whatever the base.
    Raises InputError for another synchronisation, an architecture other than A2A, a base method
    that cuts tensors, and a compressor that the profile lacks.
    """
    method, profile = training_method(method), compression_profile(profile)
    cluster, base = get_cluster(cluster, workers), get_method(base)
    compressor = method.compressor
    require(
        method.overlaps,
        f"{method} is not BSP on A2A; its seconds come from ddlnb.training.cost.iteration",
    )
    if compressor is None:
        return dense_cost(workload, cluster, base)
    if method.whole_model:
        base = get_method("BSP-A2A")
    require(
        base.architecture == "A2A",
        f"base method {base.name} goes through servers; choose one that ends in A2A, or MG-WFBP",
    )
    plan = plan_on(cluster, workload, base)
    _require_float32(workload)
    found = compressed_pieces(compressor, pieces(workload, method.whole_model))
    by_message = [found] if method.whole_model else pieces_of_messages(workload, plan, found)
    made = [compressed_message(one, cluster, profile, method.feedback) for one in by_message]
    played = play_fast(compressed(lower(workload, cluster, plan), made))
    compression = sum(message.encode_seconds + message.decode_seconds for message in made)
    bytes_ = sum(message.bytes for message in made)
    return IterationCost(
        str(method),
        played.iteration_seconds,
        played.iteration_seconds - played.exposed_seconds - compression,
        compression,
        played.exposed_seconds,
        bytes_,
        bytes_,
        gathers(found),
        f"simulated as {base.name}; compression {source_of(profile, found)}",
    )


def compressed_message(
    group: Sequence[CompressedPiece],
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool = False,
) -> CompressedMessage:
    """One message of the payloads of these pieces."""
    workers = cluster.workers
    traffic = joined([compressor.traffic(shape, workers) for compressor, shape in group])
    encode, decode = compression_seconds(group, profile, workers, feedback)
    return CompressedMessage(
        encode,
        decode,
        requests_cost(cluster, traffic),
        sum(link_bytes(one, workers) for one in traffic) / 2,
    )


def compression_seconds(
    group: Sequence[CompressedPiece],
    profile: CompressionProfile,
    workers: int,
    feedback: bool = False,
) -> tuple[float, float]:
    """Seconds of one worker before and after the requests for these pieces."""
    before, after = 0.0, 0.0
    for compressor, shape in group:
        seconds, size = profile.of(compressor), math.prod(shape)
        before += seconds.before(size) + (profile.feedback.seconds(size) if feedback else 0.0)
        after += seconds.after(size, workers)
    return before, after


def source_of(profile: CompressionProfile, group: Sequence[CompressedPiece]) -> str:
    """Whence the seconds of these pieces are."""
    return profile.source_for(max((math.prod(shape) for _, shape in group), default=0))


def gathers(group: Sequence[CompressedPiece]) -> bool:
    """Whether payloads go to all workers."""
    from ddlnb.plans.requests import AllGather

    return any(
        request.request is AllGather
        for compressor, shape in group
        for request in compressor.traffic(shape, 8)
    )


def joined(lists: Sequence[Sequence[Traffic]]) -> list[Traffic]:
    """The requests for tensors that travel together: alike ones in one, as tensor fusion does.

    >>> from ddlnb.plans.requests import AllGather
    >>> [one.bytes for one in joined([[Traffic(AllGather, 8)], [Traffic(AllGather, 4)]])]
    [12]
    """
    found: dict[tuple[int, type], int] = {}
    for requests in lists:
        for number, (request, size) in enumerate(requests):
            found[number, request] = found.get((number, request), 0) + size
    return [Traffic(request, size) for (_, request), size in sorted(found.items(), key=_turn)]


def _turn(entry: tuple[tuple[int, type], int]) -> tuple[int, str]:
    (number, request), _ = entry
    return number, request.__name__


def pieces_of_messages(workload: Workload, plan: Plan, found: Sequence[T]) -> list[list[T]]:
    """What was found for every tensor, in the order of parameters, grouped as tensors travel.

    Raises InputError for a plan that cuts tensors.
    """
    sizes = {gradient.name: gradient.elements for gradient in workload.gradients}
    sent = [piece for message in plan.messages for piece in message.pieces]
    require(
        all(piece.elements == sizes[piece.gradient] for piece in sent),
        f"method {plan.method!r} cuts tensors, and compressors take whole ones; choose a base "
        f"method that does not, say WFBP-A2A or MG-WFBP",
    )
    by_name = dict(zip(tensor_shapes(workload), found, strict=True))
    return [[by_name[piece.gradient] for piece in message.pieces] for message in plan.messages]


def _require_float32(workload: Workload) -> None:
    sizes = {gradient.bytes_per_element for gradient in workload.gradients}
    require(
        sizes == {4},
        f"compressors take float32, and workload {workload.model!r} has gradients of "
        f"{sorted(sizes)} bytes per element",
    )


# Seconds of an iteration under any synchronisation: workers without values, in a cluster's
# time. The method's own loop runs on every worker, so that stragglers, waiting and staleness
# are those of its definition. Nothing overlaps in lockstep: a worker's communication follows
# its computation.
STEPS = 24


def relaxed_cost(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod,
    profile: str | CompressionProfile = FREE,
    *,
    slower: Slowness | None = None,
    workers: int | None = None,
    steps: int = STEPS,
) -> IterationCost:
    """The mean of so many iterations, by the method's own loop, in the cluster's time.

    An iteration is one gradient of every worker; where workers run at different speeds, as many
    gradients as there are workers.

    ``steps`` are rounded up to whole cycles of the synchronisation. Compression is added to the
    seconds of an iteration, as often as the loop compresses; what a server decodes is not counted.
    Raises InputError for what the cluster or the profile lacks, and for a synchronisation whose
    iterations have no one cost.
    """
    require_whole(steps=steps)
    cluster, method = get_cluster(cluster, workers), training_method(method)
    cycle = method.synchronisation.cycle()
    steps = cycle * math.ceil(steps / cycle)
    profile = compression_profile(profile)
    shapes = pieces(workload, whole_model=False)
    clock = cluster_clock(workload, cluster, method, slower)
    done = null_run(method, shapes, cluster.workers, steps, clock, noting=True, cycle=cycle)
    seconds = done.iteration_seconds
    compute = min(seconds, done.compute_seconds)
    compression = _compression(workload, method, profile, done)
    shared = cluster.workers > 1  # one worker asks nobody
    return IterationCost(
        str(method),
        seconds + compression,
        compute,
        compression,
        seconds - compute,
        done.bytes_sent * shared,
        done.bytes_received * shared,
        method.architecture == "A2A" and done.rounds > 0 and gathers(_pieces(workload, method)),
        f"lockstep in the cluster's time, communication after computation; "
        f"compression {source_of(profile, _pieces(workload, method))}",
    )


def lossy_cost(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod,
    profile: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    *,
    workers: int | None = None,
    steps: int = STEPS,
) -> IterationCost:
    """The cost of an iteration of any training method, with all the overlap that can be simulated.

    BSP on A2A by `compressed_cost`, all others by `relaxed_cost`.
    """
    method = training_method(method)
    if method.overlaps:
        return compressed_cost(workload, cluster, method, profile, base, workers)
    return relaxed_cost(workload, cluster, method, profile, workers=workers, steps=steps)


def _pieces(workload: Workload, method: TrainingMethod) -> list[CompressedPiece]:
    if method.compressor is None:
        return []
    return compressed_pieces(method.compressor, pieces(workload, method.whole_model))


def _compression(
    workload: Workload, method: TrainingMethod, profile: CompressionProfile, done: NullRun
) -> float:
    if method.compressor is None or not done.rounds:
        return 0.0
    found = _pieces(workload, method)
    decoded = len(done.workers)
    if method.architecture == "gossip" and isinstance(method.compressor, Codec):
        elements = tuple(math.prod(shape) for _, shape in found)
        payload = Payloads(method.compressor, elements).payload_bytes
        decoded = 1 + round(done.bytes_sent / done.rounds / payload)  # its neighbours' and its own
    before, after = compression_seconds(found, profile, decoded, method.feedback)
    if method.architecture == "gossip" and not gathers(found):
        # Profiled as an all-reduce; a payload is read in no more time than it takes to make one.
        after = decoded * before
    return done.rounds * (before + (0.0 if method.architecture == "PS" else after))
