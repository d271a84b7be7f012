"""How much memory an iteration takes, found without taking it: refused before it is asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ddlnb.errors import InputError, ModelError
from ddlnb.units import show_bytes
from ddlnb.workloads.tasks import Batch, Task, build_on_meta


def require_memory_for_batch(task: Task, local_batch: int) -> None:
    """Raise InputError, with the numbers, if this machine cannot hold the samples of a batch."""
    _require(task, local_batch, 0, _bytes_of(task.batch(1, 0)))


def require_memory_for_training(task: Task, local_batch: int) -> None:
    """Raise InputError, with the numbers, if this machine cannot train at this batch.

    Parameters, gradients and samples are counted, and what autograd keeps for the backward pass,
    which forward passes of two and of three samples on the meta device show.
    """
    per_sample = _bytes_of(task.batch(1, 0))
    module = build_on_meta(task)
    # A model that needs values cannot run without them: then its samples alone are counted.
    with suppress(Exception):
        two, three = (kept_bytes(task, module, samples) for samples in (2, 3))
        per_sample += three - two
    _require(task, local_batch, 2 * _bytes_of(tuple(module.parameters())), per_sample)


def require_memory_for_values(task: Task, reason: str) -> None:
    """Raise ModelError if this machine cannot hold a model's parameters and gradients.

    ``reason`` says why the model has to be run with values at all.
    """
    free = psutil.virtual_memory().available
    needed = 2 * _bytes_of(tuple(build_on_meta(task).parameters()))
    if needed > free:
        raise ModelError(
            f"model {task.name!r} does not run without values ({reason}), and with them it needs "
            f"more than {show_bytes(needed)} of memory, of which {show_bytes(free)} are free here; "
            f"take out what reads values in its forward pass, or trace a smaller one"
        )


def _require(task: Task, local_batch: int, fixed: int, per_sample: int) -> None:
    free = psutil.virtual_memory().available
    needed = fixed + local_batch * per_sample
    if needed > free:
        most = max(0, (free - fixed) // max(1, per_sample))
        raise InputError(
            f"model {task.name!r} at batch {local_batch:,} needs about {show_bytes(needed)} of "
            f"memory, and {show_bytes(free)} are free here; choose a batch of at most {most:,}"
        )


def kept_bytes(task: Task, module: torch.nn.Module, samples: int) -> int:
    """Return the bytes that autograd keeps from the forward to the backward pass."""
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    batch = tuple(part.to("meta") for part in task.batch(samples, 0))
    with torch.device("meta"), saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(module, batch)
    return sum(storage.nbytes() for storage in kept.values())


def _bytes_of(tensors: Batch) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
