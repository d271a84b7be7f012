"""The cost of iterations whose messages overlap the backward pass: lossless, or compressed BSP.

Layer by layer, messages leave while the backward pass goes on, as a lossless method sends them; the
whole model as one vector leaves after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import require
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Gate, Launch, Plan
from ddlnb.simulator.program import Program, lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.unlike.team import Slowness
from ddlnb.training.cost.coding import coding_seconds, coding_source
from ddlnb.training.cost.compressed_program import CompressedMessage, compressed
from ddlnb.training.cost.iteration import BACKWARD, BOTH_PASSES, NOTHING, IterationCost
from ddlnb.training.cost.machines import server_machines
from ddlnb.training.cost.requests import requests_cost
from ddlnb.training.cost.sent_plan import plans_for_sent
from ddlnb.training.cost.tensors import (
    CompressedPiece,
    compressed_pieces,
    pieces,
    require_shapes,
    tensor_shapes,
)
from ddlnb.training.cost.traffic import fused, gathers, link_bytes
from ddlnb.training.cost.uneven import play_uneven
from ddlnb.training.method import TrainingMethod
from ddlnb.workloads.workload import Workload

T = TypeVar("T")


def lossless_cost(
    workload: Workload,
    cluster: Cluster,
    method: Method,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of a lossless method, as `ddlnb.simulate` finds it.

    Stragglers hold everybody up, as `ddlnb.training.cost.uneven` says.
    """
    program = lower(workload, cluster, plan_on(cluster, workload, method))
    played = play_uneven(program, _unchanged, cluster, slower, steps)
    size = workload.gradient_bytes
    if method.architecture == "A2A":
        bytes_ = ring_bytes_sent(size, cluster.workers)
    else:
        bytes_ = float(size) if cluster.workers > 1 else 0.0  # one worker asks nobody
    return IterationCost.of_played(
        method.name,
        played,
        bytes_,
        hidden_behind=hidden_behind(method.launch, method.gate),
        server_machines=server_machines(cluster, method.architecture),
        source="simulated",
    )


def overlapped_cost(
    workload: Workload,
    cluster: Cluster,
    method: TrainingMethod,
    profile: CompressionProfile,
    base: Method,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of BSP on A2A, its messages launched as those of ``base``.

    A base that merges gradients merges them by what is sent of them, unless its plan for dense
    gradients is quicker (`ddlnb.training.cost.sent_plan`). A method with the whole-model flag has
    one message after the backward pass, whatever the base. Stragglers hold everybody up.
    Raises InputError for a base that goes through servers or cuts tensors, for gradients other than
    float32, for a compressor that the profile lacks, and for one that needs unknown shapes.
    """
    if method.compressor is None:
        return lossless_cost(workload, cluster, base, slower, steps)
    require_all_to_all(base)
    require_float32(workload)
    require_shapes(workload, method.compressor)
    found = compressed_pieces(method.compressor, pieces(workload, method.whole_model))
    message = partial(
        compressed_message, cluster=cluster, profile=profile, feedback=method.feedback
    )
    if method.whole_model:
        base = get_method("BSP-A2A")
        planned = [(plan_on(cluster, workload, base), [message(found)])]
    else:
        by_name = dict(zip(tensor_shapes(workload), found, strict=True))
        planned = [
            (plan, [message(one) for one in pieces_of_messages(plan, by_name)])
            for plan in base_plans(workload, cluster, base, by_name, message)
        ]
    costs = []
    for plan, made in planned:
        program = lower(workload, cluster, plan)
        played = play_uneven(program, partial(compressed, messages=made), cluster, slower, steps)
        costs.append((played, made))
    played, made = min(costs, key=lambda cost: cost[0].iteration_seconds)
    coding = sum(one.encode_seconds + one.decode_seconds for one in made)
    return IterationCost.of_played(
        str(method),
        played,
        sum(one.bytes for one in made),
        coding,
        gathers=gathers(found),
        hidden_behind=hidden_behind(base.launch, base.gate),
        source=f"simulated as {base.name}, {_messages(len(made))}; "
        f"compression {coding_source(found, profile)}",
    )


def base_plans(
    workload: Workload,
    cluster: Cluster,
    base: Method,
    by_name: Mapping[str, CompressedPiece],
    message: Callable[[Sequence[CompressedPiece]], CompressedMessage],
) -> list[Plan]:
    """Return the plans of a base for compressed tensors, of which the quickest is taken.

    ``message`` says what compression makes of tensors that travel together. Raises InputError for a
    base that cuts tensors.
    """
    dense = plan_on(cluster, workload, base)
    pieces_of_messages(dense, by_name)  # raises InputError where tensors are cut
    alike = {piece: message([piece]) for piece in set(by_name.values())}
    alone = [alike[by_name[gradient.name]] for gradient in workload.gradients]
    joined = message(list(by_name.values()))
    return [dense, *plans_for_sent(workload, cluster, base, dense, alone, joined)]


def compressed_message(
    group: Sequence[CompressedPiece],
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool = False,
) -> CompressedMessage:
    """Return what compression makes of the message that carries these pieces."""
    workers = cluster.workers
    alike = {piece: piece[0].traffic(piece[1], workers) for piece in set(group)}  # layers repeat
    traffic = fused([alike[piece] for piece in group])
    encode, decode = coding_seconds(group, profile, workers, feedback)
    return CompressedMessage(
        encode,
        decode,
        requests_cost(cluster, traffic, is_merged=len(group) > 1),
        sum(link_bytes(one, workers) for one in traffic) / 2,
    )


def pieces_of_messages(plan: Plan, by_name: Mapping[str, T]) -> list[list[T]]:
    """Group what was found for every tensor, by its name, as tensors travel.

    Raises InputError for a plan that cuts tensors.
    """
    sizes = {gradient.name: gradient.elements for gradient in plan.gradients}
    sent = [piece for message in plan.messages for piece in message.pieces]
    require(
        all(piece.elements == sizes[piece.gradient] for piece in sent),
        f"method {plan.method!r} cuts tensors, and compressors take whole ones; choose a base "
        f"method that does not, say WFBP-A2A or MG-WFBP",
    )
    return [[by_name[piece.gradient] for piece in message.pieces] for message in plan.messages]


def require_all_to_all(base: Method) -> None:
    """Raise InputError for a base method that goes through parameter servers, or in halves."""
    require(
        base.architecture == "A2A",
        f"base method {base.name} goes through servers; choose one that ends in A2A, or MG-WFBP",
    )
    require(
        base.exchange == "all_reduce",
        f"base method {base.name} splits all-reduces, and payloads cannot be; choose one that ends "
        f"in A2A, or MG-WFBP",
    )


def hidden_behind(launch: Launch, gate: Gate) -> str:
    """Return the computation that messages may overlap, by when they start and who waits."""
    if launch is Launch.AFTER_BACKWARD:
        return NOTHING
    return BACKWARD if gate is Gate.ALL_LAYERS else BOTH_PASSES


def _unchanged(program: Program) -> Program:
    return program


def _messages(count: int) -> str:
    return "one message" if count == 1 else f"{count} messages"


def require_float32(workload: Workload) -> None:
    """Raise InputError for gradients that compressors do not take."""
    sizes = {gradient.bytes_per_element for gradient in workload.gradients}
    require(
        sizes == {4},
        f"compressors take float32, and workload {workload.model!r} has gradients of "
        f"{sorted(sizes)} bytes per element; profile it in float32",
    )
