"""The cost of iterations whose messages overlap the backward pass: lossless, or compressed BSP.

Layer by layer, messages leave while the backward pass goes on, as a lossless method sends them; the
whole model as one vector leaves after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import require
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.training.cost.coding import coding_seconds, coding_source
from ddlnb.training.cost.compressed_program import CompressedMessage, compressed
from ddlnb.training.cost.iteration import IterationCost
from ddlnb.training.cost.requests import requests_cost
from ddlnb.training.cost.tensors import CompressedPiece, compressed_pieces, pieces, tensor_shapes
from ddlnb.training.cost.traffic import fused, gathers, link_bytes
from ddlnb.training.method import TrainingMethod
from ddlnb.workloads.workload import Workload

T = TypeVar("T")


def lossless_cost(workload: Workload, cluster: Cluster, method: Method) -> IterationCost:
    """Return the cost of a lossless method, as `ddlnb.simulate` finds it."""
    played = play_fast(lower(workload, cluster, plan_on(cluster, workload, method)))
    size = workload.gradient_bytes
    if method.architecture == "A2A":
        bytes_ = ring_bytes_sent(size, cluster.workers)
    else:
        bytes_ = float(size) if cluster.workers > 1 else 0.0  # one worker asks nobody
    return IterationCost(
        method.name,
        played.iteration_seconds,
        compute_seconds=played.iteration_seconds - played.exposed_seconds,
        compression_seconds=0.0,
        waiting_seconds=played.exposed_seconds,
        bytes_sent=bytes_,
        bytes_received=bytes_,
        source="simulated",
    )


def overlapped_cost(
    workload: Workload,
    cluster: Cluster,
    method: TrainingMethod,
    profile: CompressionProfile,
    base: Method,
) -> IterationCost:
    """Return the cost of BSP on A2A, its messages launched as those of ``base``.

    A method with the whole-model flag has one message after the backward pass, whatever the base.
    Raises InputError for a base that goes through servers or cuts tensors, for gradients other than
    float32, and for a compressor that the profile lacks.
    """
    compressor = method.compressor
    if compressor is None:
        return lossless_cost(workload, cluster, base)
    if method.whole_model:
        base = get_method("BSP-A2A")
    require_all_to_all(base)
    _require_float32(workload)
    plan = plan_on(cluster, workload, base)
    found = compressed_pieces(compressor, pieces(workload, method.whole_model))
    by_message = [found] if method.whole_model else pieces_of_messages(workload, plan, found)
    made = [compressed_message(one, cluster, profile, method.feedback) for one in by_message]
    played = play_fast(compressed(lower(workload, cluster, plan), made))
    coding = sum(message.encode_seconds + message.decode_seconds for message in made)
    bytes_ = sum(message.bytes for message in made)
    return IterationCost(
        str(method),
        played.iteration_seconds,
        compute_seconds=played.iteration_seconds - played.exposed_seconds - coding,
        compression_seconds=coding,
        waiting_seconds=played.exposed_seconds,
        bytes_sent=bytes_,
        bytes_received=bytes_,
        gathers=gathers(found),
        source=f"simulated as {base.name}; compression {coding_source(found, profile)}",
    )


def compressed_message(
    group: Sequence[CompressedPiece],
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool = False,
) -> CompressedMessage:
    """Return what compression makes of the message that carries these pieces."""
    workers = cluster.workers
    traffic = fused([compressor.traffic(shape, workers) for compressor, shape in group])
    encode, decode = coding_seconds(group, profile, workers, feedback)
    return CompressedMessage(
        encode,
        decode,
        requests_cost(cluster, traffic),
        sum(link_bytes(one, workers) for one in traffic) / 2,
    )


def pieces_of_messages(workload: Workload, plan: Plan, found: Sequence[T]) -> list[list[T]]:
    """Group what was found for every tensor, in the order of parameters, as tensors travel.

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


def require_all_to_all(base: Method) -> None:
    """Raise InputError for a base method that goes through parameter servers."""
    require(
        base.architecture == "A2A",
        f"base method {base.name} goes through servers; choose one that ends in A2A, or MG-WFBP",
    )


def _require_float32(workload: Workload) -> None:
    sizes = {gradient.bytes_per_element for gradient in workload.gradients}
    require(
        sizes == {4},
        f"compressors take float32, and workload {workload.model!r} has gradients of "
        f"{sorted(sizes)} bytes per element; profile it in float32",
    )
