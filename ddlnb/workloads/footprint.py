"""What training takes of a GPU's memory, found on the meta device, without taking any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ddlnb.errors import ModelError, UnknownName
from ddlnb.workloads.live_bytes import peak_bytes
from ddlnb.workloads.tasks import Task, build_on_meta

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
