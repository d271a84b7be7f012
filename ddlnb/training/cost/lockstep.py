"""The cost of iterations under any synchronisation, by the method's own loop in a cluster's time.

The loop runs on workers without values, so that stragglers, waiting and staleness are those of its
definition. A worker's communication follows its computation, but for pushes to servers: with
``overlap`` what the backward pass hides of them is left out.
"""

from __future__ import annotations

import math

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.base import Codec
from ddlnb.compression.payloads import Payloads
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import require_whole
from ddlnb.simulator.unlike.team import Slowness
from ddlnb.training.cost.cluster_clock import cluster_clock
from ddlnb.training.cost.coding import coding_seconds, coding_source
from ddlnb.training.cost.iteration import BACKWARD, NOTHING, IterationCost
from ddlnb.training.cost.machines import server_machines
from ddlnb.training.cost.tensors import (
    CompressedPiece,
    compressed_pieces,
    pieces,
    require_shapes,
)
from ddlnb.training.cost.traffic import gathers
from ddlnb.training.executors.dry_run import DryRun, dry_run
from ddlnb.training.method import TrainingMethod
from ddlnb.workloads.workload import Workload


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
    cycle = method.synchronisation.cycle()
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
        server_machines=server_machines(cluster, method.architecture),
        source=f"lockstep in the cluster's time; compression {coding_source(found, profile)}",
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
