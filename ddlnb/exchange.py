"""How one message becomes an average: generators that yield the communication they need.

Each worker brings its *share*, its gradient divided by the number of workers. A flow yields
requests, is sent the answers and returns the average. It does no communication itself, so one
definition serves the real engines (which answer over a network) and `lockstep` (which answers
from the other workers in the same process).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

Flow = Generator[Any, Any, Any]


@dataclass(frozen=True)
class AllReduce:
    """Ask for the sum of ``tensor`` over all workers. The answer may reuse its memory."""

    tensor: Any


@dataclass(frozen=True)
class PushPull:
    """Ask the parameter server for the sum of ``tensor`` over all workers, likewise."""

    tensor: Any


def all_reduce(share: Any) -> Flow:
    """The average by one all-reduce (architecture: all-to-all)."""
    average = yield AllReduce(share)
    return average


def push_pull(share: Any) -> Flow:
    """The average by one push to a parameter server and one pull from it (architecture: PS)."""
    average = yield PushPull(share)
    return average


EXCHANGES = {"all_reduce": all_reduce, "push_pull": push_pull}


def lockstep(flows: Sequence[Flow]) -> list[Any]:
    """Every worker's result, with all workers in this process, one round after the other.

    The oracle of the tests. Sums are taken in rank order. Raises ValueError when workers ask for
    different things in the same round, which would hang a real network.

    >>> lockstep([all_reduce(0.5), all_reduce(1.5)])
    [2.0, 2.0]
    """
    results: list[Any] = [None] * len(flows)
    answers: list[Any] = [None] * len(flows)
    while True:
        requests = []
        for worker, flow in enumerate(flows):
            try:
                requests.append(flow.send(answers[worker]))
            except StopIteration as finished:
                results[worker] = finished.value
        if not requests:
            return results
        if len(requests) != len(flows) or len({type(request) for request in requests}) != 1:
            raise ValueError(f"workers disagree on their next request: {requests}")
        total = requests[0].tensor
        for request in requests[1:]:
            total = total + request.tensor
        answers = [total] * len(flows)
