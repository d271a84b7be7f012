"""Plans for what is sent: gradients merged by the sizes and the readiness of compressed ones.

Small messages are all latency, so that compressed gradients are merged further than dense ones,
and wait for being compressed (merged gradient sparsification; Shi et al., INFOCOM 2020). Which ones
is decided by the base method's own rule: it is shown a workload whose gradients have the bytes that
are sent and take their compression besides, and the cost of the compressor's requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ddlnb.clusters.cluster import Cluster
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Message, Piece, Plan
from ddlnb.training.cost.compressed_program import CompressedMessage
from ddlnb.workloads.workload import Workload


def plans_for_sent(
    workload: Workload,
    cluster: Cluster,
    base: Method,
    dense: Plan,
    alone: Sequence[CompressedMessage],
    joined: CompressedMessage,
) -> list[Plan]:
    """Return the plan of ``base`` for what is sent; none where it is the ``dense`` one.

    ``alone`` holds what compression makes of every gradient as a message of its own, in the order
    of the workload's, and ``joined`` what it makes of all in one. The rule of the base neglects
    what unpacking takes, so that the plan may be slower than the dense one.
    """
    if not base.bucketing.needs_cost or not joined.bytes:
        return []
    sent = base.plan(_as_sent(workload, alone), cost=_cost(cluster, joined))
    elements = {gradient.name: gradient.elements for gradient in workload.gradients}
    messages = tuple(_of_whole_tensors(message, elements) for message in sent.messages)
    return [] if messages == dense.messages else [replace(dense, messages=messages)]


def _as_sent(workload: Workload, alone: Sequence[CompressedMessage]) -> Workload:
    gradients = tuple(
        replace(
            gradient,
            elements=max(1, round(message.bytes)),
            bytes_per_element=1,
            shape=None,
            backward_seconds=gradient.backward_seconds + message.encode_seconds,
        )
        for gradient, message in zip(workload.gradients, alone, strict=True)
    )
    return replace(workload, gradients=gradients)


def _cost(cluster: Cluster, joined: CompressedMessage) -> AlphaBeta:
    """Return the seconds of one compressed message while workers compute, by the bytes it sends."""
    _, _, share = cluster.all_reduce_seconds
    return AlphaBeta(
        joined.cost.latency / cluster.effects.latency_share,
        (joined.cost.work / share + joined.cost.copies) / joined.bytes,
    )


def _of_whole_tensors(message: Message, elements: Mapping[str, int]) -> Message:
    names = [name for name, _ in groupby(piece.gradient for piece in message.pieces)]
    return replace(message, pieces=tuple(Piece(name, 0, elements[name]) for name in names))
