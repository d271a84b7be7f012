"""The process group of a run's workers, and the device of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.errors import MissingPart
from ddlnb.launch.rank import RankContext


@contextmanager
def process_group(
    context: RankContext, store: Any, workers: int, backend: str = "gloo"
) -> Iterator[None]:
    """Make the workers' default process group for the block.

    Raises MissingPart if this machine cannot run the backend.
    """
    if backend == "nccl" and not torch.cuda.is_available():
        raise MissingPart("backend 'nccl' needs NVIDIA GPUs, and torch sees none; use 'gloo'")
    if not dist.is_backend_available(backend):
        raise MissingPart(f"this torch {torch.__version__} has no backend {backend!r}; use 'gloo'")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("workers", store),
        rank=context.rank,
        world_size=workers,
        timeout=timedelta(seconds=context.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def local_device(context: RankContext, device: str) -> torch.device:
    """Return the device of this rank: the CPU, or the GPUs of its machine in turn."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingPart(f"device {device!r} needs an NVIDIA GPU, and torch sees none")
    chosen = torch.device("cuda", context.rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen
