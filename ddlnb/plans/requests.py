"""How one message becomes an average: generators that yield the communication they need.

Each worker brings its *share*, its gradient divided by the number of workers. A flow yields
requests, is sent the answers and returns the average. It does no communication itself, so one
definition serves the real engines (which answer over a network) and `lockstep` (which answers
from the other workers in the same process).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Flow = Generator[Any, Any, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class AllReduce:
    """Ask for the sum of ``tensor`` over all workers. The answer may reuse its memory."""

    tensor: Any


@dataclass(frozen=True)
class ReduceScatter:
    """Ask for the sum over all workers of this worker's part of ``tensor``, in its place.

    Parts are those of `torch.tensor_split` into as many as there are workers, by rank. What the
    answer, a tensor as long, holds in other places has no meaning.
    """

    tensor: Any


@dataclass(frozen=True)
class GatherParts:
    """Give this worker's part of ``tensor`` to all, and ask for theirs: the tensor is then whole.

    Parts are as in `ReduceScatter`. The answer may reuse the tensor's memory.
    """

    tensor: Any


@dataclass(frozen=True)
class PushPull:
    """Give ``tensor`` to the parameter server and ask for what its rule answers.

    With the bulk-synchronous rule that is the sum over all workers. A tensor of uint8 is a
    payload, answered with a tensor of float32, or with a payload where votes are counted. The
    answer may reuse the tensor's memory.
    """

    tensor: Any


@dataclass(frozen=True)
class AllGather:
    """Ask for every worker's ``payload``, a list in rank order. Payloads are of equal length."""

    payload: Any


@dataclass(frozen=True)
class Messages:
    """Send a payload to some workers, and ask for one from some: a mapping by rank.

    ``incoming`` tells the length in bytes of what is to come from whom. Both may be empty. What is
    sent must not be written to afterwards: it may still be on its way.
    """

    outgoing: Mapping[int, Any]
    incoming: Mapping[int, int]


class Gathered(list[Any]):
    """Payloads in rank order, in one list for all workers of this process.

    What every worker makes of them alike is then made once: for n workers that saves n - 1 times
    the work, and on a network, where each has a list of its own, it changes nothing.
    """

    made: Any = None


def made_once(payloads: Sequence[Any], make: Callable[[], T]) -> T:
    """What ``make()`` returns for these payloads. Workers may share it, so it is not written to."""
    if not isinstance(payloads, Gathered):
        return make()
    if payloads.made is None:
        payloads.made = make()
    made: T = payloads.made
    return made


def all_reduce(share: Any) -> Flow:
    """Return the average by one all-reduce (architecture: all-to-all)."""
    return (yield AllReduce(share))


def push_pull(share: Any) -> Flow:
    """The average by one push to a parameter server and one pull from it (architecture: PS)."""
    return (yield PushPull(share))


def split_all_reduce(share: Any) -> Flow:
    """Return the average by a reduce-scatter and an all-gather, which may come much later.

    DeAR (Zhang et al. 2023, arXiv 2302.12445) has the first in the backward pass and the second
    before the next forward pass of the layers that need it.
    """
    scattered = yield ReduceScatter(share)
    return (yield GatherParts(scattered))


SPLIT = "split_all_reduce"
EXCHANGES = {"all_reduce": all_reduce, "push_pull": push_pull, SPLIT: split_all_reduce}


def lockstep(flows: Sequence[Flow]) -> list[Any]:
    """Return every worker's result, with all workers in this process, one round after the other.

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
        answers = answer_together(requests)


def answer_together(requests: Sequence[Any]) -> list[Any]:
    """Return the answers to one request of every worker, by rank. Sums are taken in rank order."""
    first = requests[0]
    if isinstance(first, AllGather):
        return [Gathered(request.payload for request in requests)] * len(requests)
    if isinstance(first, Messages):
        return [
            {sender: requests[sender].outgoing[rank] for sender in request.incoming}
            for rank, request in enumerate(requests)
        ]
    if isinstance(first, GatherParts):
        return [_gathered([request.tensor for request in requests])] * len(requests)
    total = first.tensor
    for request in requests[1:]:
        total = total + request.tensor
    if isinstance(first, ReduceScatter):
        return [_scattered(total, requests, rank) for rank in range(len(requests))]
    return [total] * len(requests)


def _scattered(total: Any, requests: Sequence[Any], rank: int) -> Any:
    """Return a worker's tensor with its part of the sum in place of its own."""
    found = requests[rank].tensor.clone()
    part, own = (tensor.tensor_split(len(requests))[rank] for tensor in (total, found))
    own.copy_(part)
    return found


def _gathered(tensors: Sequence[Any]) -> Any:
    """Return a tensor of which every part is that of its worker."""
    whole = tensors[0].clone()
    for rank, part in enumerate(whole.tensor_split(len(tensors))):
        part.copy_(tensors[rank].tensor_split(len(tensors))[rank])
    return whole
