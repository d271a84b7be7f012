"""Averaging among workers in one process, for tests of compressors."""

from __future__ import annotations

import torch

from ddlnb.compression.base import Traffic
from ddlnb.plans.requests import AllReduce, Messages


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
