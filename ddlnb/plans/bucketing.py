"""Which gradients travel together: functions from a workload to messages, in the order they start.

Each function is the idea of one survey method and nothing else.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Message, Piece
from ddlnb.workloads.workload import Gradient, Workload

Bucketing = Callable[[Workload, AlphaBeta | None], list[Message]]


def _message(workload: Workload, gradients: Sequence[Gradient]) -> Message:
    pieces = tuple(Piece(gradient.name, 0, gradient.elements) for gradient in gradients)
    position = workload.layer_position
    return Message(pieces, min(position[gradient.layer] for gradient in gradients))


def one_bucket(workload: Workload, cost: AlphaBeta | None = None) -> list[Message]:
    """Everything in one message (BSP, survey section 4.1)."""
    return [_message(workload, workload.gradients)]


def per_tensor(workload: Workload, cost: AlphaBeta | None = None) -> list[Message]:
    """One message per gradient tensor: wait-free backpropagation (Zhang et al. 2017)."""
    return [_message(workload, [gradient]) for gradient in workload.gradients]


def merged(workload: Workload, cost: AlphaBeta | None) -> list[Message]:
    """Neighbours merged as MG-WFBP does (Shi, Chu and Li, INFOCOM 2019, algorithm 1).

    Going through the gradients as backward produces them, a message that could start at time s
    takes in the next gradient, ready at time r, when r < s + a: the wait costs less than the
    latency a that it saves. Needs measured layer times and the fitted cost a + b M.

    >>> from ddlnb.workloads.workload import Layer
    >>> gradients = [Gradient(n, "l", 10, 4, t) for n, t in [("c", 1.0), ("b", 0.1), ("a", 3.0)]]
    >>> work = Workload("toy", 1, (Layer("l"),), tuple(gradients), "by hand")
    >>> [str(message) for message in merged(work, AlphaBeta(0.5, 0.01))]
    ['c .. b (2 pieces)', 'a[0:10]']
    """
    cost = _needed(cost, "merging gradients")
    groups: list[list[Gradient]] = []
    network_free = starts = 0.0
    for gradient, ready in zip(workload.gradients, workload.ready_seconds, strict=True):
        if groups and ready < starts + cost.latency_seconds:
            groups[-1].append(gradient)
        else:
            if groups:
                network_free = starts + cost.seconds(sum(g.bytes for g in groups[-1]))
            groups.append([gradient])
        starts = max(ready, network_free)
    return [_message(workload, group) for group in groups]


def merged_optimally(workload: Workload, cost: AlphaBeta | None) -> list[Message]:
    """Neighbours merged so that the last message ends as early as possible.

    Exact dynamic programme: the first j gradients can all be sent by
    f(j) = min over i < j of max(f(i), ready(j)) + a + b (bytes i+1 .. j). The rule of the paper
    (`merged`) looks one gradient ahead and can end up to a few latencies later.
    """
    cost = _needed(cost, "merging gradients")
    ready = workload.ready_seconds
    upto = [0, *accumulate(gradient.bytes for gradient in workload.gradients)]
    done, cut = [0.0], [0]
    for j in range(1, len(ready) + 1):
        ends = [max(done[i], ready[j - 1]) + cost.seconds(upto[j] - upto[i]) for i in range(j)]
        best = min(range(j), key=ends.__getitem__)
        done.append(ends[best])
        cut.append(best)
    messages = []
    stop = len(ready)
    while stop:
        messages.append(_message(workload, workload.gradients[cut[stop] : stop]))
        stop = cut[stop]
    return messages[::-1]


def partitioned(
    messages: Sequence[Message], bytes_per_element: int, partition_bytes: int
) -> list[Message]:
    """The same elements in messages of at most this many bytes (ByteScheduler, Peng et al. 2019).

    A message is cut into parts of equal length where it is too long; order and priority stay.

    >>> whole = Message((Piece("w", 0, 10),), 3)
    >>> [str(part) for part in partitioned([whole], bytes_per_element=4, partition_bytes=16)]
    ['w[0:4]', 'w[4:8]', 'w[8:10]']
    """
    limit = max(1, partition_bytes // bytes_per_element)
    parts = []
    for message in messages:
        step = math.ceil(message.elements / math.ceil(message.elements / limit))
        pieces: list[Piece] = []
        room = step
        for piece in message.pieces:
            start = piece.start
            while start < piece.stop:
                stop = min(piece.stop, start + room)
                pieces.append(Piece(piece.gradient, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    parts.append(Message(tuple(pieces), message.priority))
                    pieces, room = [], step
        if pieces:
            parts.append(Message(tuple(pieces), message.priority))
    return parts


def by_priority(
    messages: Sequence[Message],
    workload: Workload,
    cost: AlphaBeta | None,
    credit_bytes: int | None,
) -> list[Message]:
    """The messages in the order in which a priority queue would start them.

    The queue is played through once with the workload's times: whenever the bytes in flight leave
    room within the credit, the ready message with the smallest priority starts; the network serves
    those in flight one after the other. Collectives need such an order fixed in advance.
    """
    cost = _needed(cost, "ordering messages by priority")
    position = {gradient.name: index for index, gradient in enumerate(workload.gradients)}
    sizes = [workload.gradients[position[m.pieces[0].gradient]].bytes_per_element for m in messages]
    sizes = [size * message.elements for size, message in zip(sizes, messages, strict=True)]
    ready_at = [
        max(workload.ready_seconds[position[piece.gradient]] for piece in message.pieces)
        for message in messages
    ]
    arrivals = sorted(range(len(messages)), key=lambda index: (ready_at[index], index))[::-1]
    waiting: list[tuple[int, int]] = []
    in_flight: list[tuple[float, int]] = []
    order: list[Message] = []
    now = network_free = 0.0
    while arrivals or waiting:
        while arrivals and ready_at[arrivals[-1]] <= now:
            index = arrivals.pop()
            heapq.heappush(waiting, (messages[index].priority, index))
        while in_flight and in_flight[0][0] <= now:
            in_flight.pop(0)
        flying = sum(size for _, size in in_flight)
        if waiting and _fits(flying, sizes[waiting[0][1]], credit_bytes):
            _, index = heapq.heappop(waiting)
            network_free = max(now, network_free) + cost.seconds(sizes[index])
            in_flight.append((network_free, sizes[index]))
            order.append(messages[index])
            continue
        events = [ready_at[arrivals[-1]]] if arrivals else []
        now = min(events + [done for done, _ in in_flight[:1]])
    return order


def _fits(flying: int, size: int, credit_bytes: int | None) -> bool:
    return credit_bytes is None or flying == 0 or flying + size <= credit_bytes


def _needed(cost: AlphaBeta | None, why: str) -> AlphaBeta:
    if cost is None:
        raise InputError(f"{why} needs the cost of an all-reduce; pass cost=AlphaBeta(a, b)")
    return cost
