"""Averaging among workers in one process, for tests of compressors."""

from collections.abc import Sequence
from functools import partial

import torch

from ddlnb.compression.base import Averaged, Compressor, Round, Traffic, average_with_feedback
from ddlnb.plans.requests import AllReduce, Messages, lockstep


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def recorded(flow, made: list[Traffic]):
    """The flow, its requests noted as `Traffic`."""
    answer = None
    while True:
        try:
            request = flow.send(answer)
        except StopIteration as finished:
            return finished.value
        if isinstance(request, Messages):
            size = sum(payload.nbytes for payload in request.outgoing.values())
        else:
            size = (request.tensor if isinstance(request, AllReduce) else request.payload).nbytes
        made.append(Traffic(type(request), size))
        answer = yield request


def averages(
    compressor: Compressor,
    tensors: Sequence[torch.Tensor],
    memories: Sequence[dict] | None = None,
    step: int = 0,
    feedback: bool = False,
) -> list[Averaged]:
    """What every worker gets for its tensor."""
    memories = [{} for _ in tensors] if memories is None else memories
    average = partial(average_with_feedback, compressor) if feedback else compressor.average
    return lockstep(
        [
            average(tensor, Round(rank, len(tensors), step), memory)
            for rank, (tensor, memory) in enumerate(zip(tensors, memories, strict=True))
        ]
    )
