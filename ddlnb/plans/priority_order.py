"""The order of priorities, fixed in advance: collectives must start alike on all ranks."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Message
from ddlnb.workloads.workload import Workload


def by_priority(
    messages: Sequence[Message],
    workload: Workload,
    cost: AlphaBeta,
    credit_bytes: int | None,
) -> list[Message]:
    """Return the messages in the order in which a priority queue would start them.

    The queue is played through once with the workload's times: whenever the bytes in flight leave
    room within the credit, the ready message with the smallest priority starts; the network serves
    those in flight one after the other.
    """
    position = {gradient.name: index for index, gradient in enumerate(workload.gradients)}
    sizes = [workload.gradients[position[m.pieces[0].gradient]].bytes_per_element for m in messages]
    sizes = [size * message.elements for size, message in zip(sizes, messages, strict=True)]
    ready_at = [
        max(workload.ready_seconds[position[piece.gradient]] for piece in message.pieces)
        for message in messages
    ]
    arrivals = sorted(range(len(messages)), key=lambda index: (ready_at[index], index))[::-1]
    waiting: list[tuple[int, int]] = []
    in_flight: deque[tuple[float, int]] = deque()
    flying = 0  # bytes
    order: list[Message] = []
    now = network_free = 0.0
    while arrivals or waiting:
        while arrivals and ready_at[arrivals[-1]] <= now:
            index = arrivals.pop()
            heapq.heappush(waiting, (messages[index].priority, index))
        while in_flight and in_flight[0][0] <= now:
            flying -= in_flight.popleft()[1]
        if waiting and _fits(flying, sizes[waiting[0][1]], credit_bytes):
            _, index = heapq.heappop(waiting)
            network_free = max(now, network_free) + cost.seconds(sizes[index])
            in_flight.append((network_free, sizes[index]))
            flying += sizes[index]
            order.append(messages[index])
            continue
        events = [ready_at[arrivals[-1]]] if arrivals else []
        if in_flight:
            events.append(in_flight[0][0])
        now = min(events)
    return order


def _fits(flying: int, size: int, credit_bytes: int | None) -> bool:
    return credit_bytes is None or flying == 0 or flying + size <= credit_bytes
