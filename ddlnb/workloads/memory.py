"""What training takes of a GPU's memory, found on the meta device, without taking any.

How much memory an iteration takes, found without taking it: refused before it is asked for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddlnb.errors import InputError, ModelError, UnknownName
from ddlnb.units import show_bytes
from ddlnb.workloads.counters import peak_bytes
from ddlnb.workloads.task import Batch, Task, build_on_meta

OPTIMIZER_COPIES = {"sgd": 0, "momentum": 1, "adam": 2}  # of the parameters, kept by the optimizer
FEW = 8  # samples; with one or two, gradients of weights that live for a moment decide the peak


@dataclass(frozen=True)
class Footprint:
    """Bytes that one worker of data-parallel training holds at its peak.

    ``fixed`` are parameters, gradients and what the optimizer keeps, ``per_sample`` what the passes
    hold of a sample at their peak: what autograd keeps from forward to backward, and what lives for
    a moment beside it. Gradients are held throughout, as in the buckets of data parallelism.
    Buffers of libraries and what an allocator wastes are not in it.
    """

    fixed: float
    per_sample: float
    optimizer: str

    def bytes_at(self, local_batch: int) -> float:
        """Return the bytes at this batch."""
        return self.fixed + self.per_sample * local_batch


def footprint(task: Task, optimizer: str = "adam", dtype: torch.dtype | None = None) -> Footprint:
    """Return the memory footprint of training a task; activations by runs on the meta device.

    Iterations of `FEW` and of twice as many samples are compared, so that what does not grow with
    the batch is not counted twice. ``dtype`` is that of all parameters, None for the model's own; a
    loss that the model computes in 32 bits stays so. Raises UnknownName for an optimizer other than
    sgd, momentum, adam, and ModelError for a model that cannot run without values.

    >>> from ddlnb.workloads.catalogue import get_task
    >>> small = footprint(get_task("small-conv"), "sgd")
    >>> small.fixed == 2 * 4 * 954_002
    True
    """
    require_optimizer(optimizer)
    module = build_on_meta(task).to(dtype)
    per_sample = bytes_per_sample(task, module)
    trained = sum(one.nbytes for one in module.parameters() if one.requires_grad)
    frozen = sum(one.nbytes for one in module.parameters() if not one.requires_grad)
    return footprint_of(trained, frozen, per_sample, optimizer)


def bytes_per_sample(task: Task, module: nn.Module) -> float:
    """Return what the passes of a task's module on the meta device hold of a sample at their peak.

    Raises ModelError for a model that cannot run without values.
    """
    try:
        few, many = (peak_bytes(task, module, samples) for samples in (FEW, 2 * FEW))
    except Exception as error:  # whatever a user's code says to a tensor without values
        raise ModelError(
            f"the memory of model {task.name!r} is found without values, and it needs them "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); take out control flow that "
            f"depends on data"
        ) from error
    return (many - few) / FEW


def footprint_of(trained: int, frozen: int, per_sample: float, optimizer: str) -> Footprint:
    """Return the footprint of parameters of these bytes, and of these bytes of every sample.

    Raises UnknownName for an optimizer that is not known.
    """
    require_optimizer(optimizer)
    copies = 2 + OPTIMIZER_COPIES[optimizer]  # the parameters and their gradients are there anyway
    return Footprint(float(frozen + copies * trained), per_sample, optimizer)


def require_optimizer(optimizer: str) -> None:
    """Raise UnknownName unless it is known what this optimizer keeps."""
    if optimizer not in OPTIMIZER_COPIES:
        raise UnknownName("optimizer", optimizer, OPTIMIZER_COPIES)


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
