"""Seconds of an iteration under any synchronisation: workers without values, in a cluster's time.

The method's own loop runs on every worker, so that stragglers, waiting and staleness are those of
its definition. Nothing overlaps in lockstep: a worker's communication follows its computation.
"""

from __future__ import annotations

import math

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import Codec
from ddlnb.compression.payloads import Payloads
from ddlnb.compression.seconds import FREE, CompressionProfile, compression_profile
from ddlnb.errors import require_whole
from ddlnb.plans.methods import Method
from ddlnb.training.cost.cluster_clock import Slowness, cluster_clock
from ddlnb.training.cost.iteration import (
    BASE,
    CompressedPiece,
    IterationCost,
    compressed_cost,
    compression_seconds,
    gathers,
    source_of,
)
from ddlnb.training.cost.traffic import compressed_pieces, pieces
from ddlnb.training.executors.null_worker import NullRun, null_run
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.workloads.workload import Workload

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
