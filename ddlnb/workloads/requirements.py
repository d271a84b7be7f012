"""What batches and losses of a task must be; where they are not, a sentence with the way out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ddlnb.errors import ModelError
from ddlnb.units import counted
from ddlnb.workloads.tasks import Batch, Task


def require_batch(task: Task) -> None:
    """Raise ModelError unless the task's batch is a tuple of tensors."""
    try:
        batch = task.batch(1, 0)
    except TypeError as error:
        raise ModelError(
            f"batch of model {task.name!r} cannot be called as batch(1, 0): {error}; "
            f"it takes the number of samples and a seed"
        ) from error
    if not isinstance(batch, tuple) or not all(isinstance(part, Tensor) for part in batch):
        raise ModelError(
            f"batch of model {task.name!r} returned {type(batch).__name__}, not a tuple of "
            f"tensors; return (inputs, targets)"
        )


def require_samples(task: Task, local_batch: int, drawn: Batch) -> None:
    """Raise ModelError unless a batch grows with the samples that are asked for.

    Some dimension of its tensors is ``local_batch`` times as long as in a batch of one sample,
    whether samples come first, second or laid end to end. Replayed tasks have no samples.
    """
    if local_batch == 1 or task.recorded is not None:
        return
    pairs = zip(task.batch(1, 0), drawn, strict=False)
    grows = any(
        many == local_batch * one > 0
        for few, some in pairs
        for one, many in zip(few.shape, some.shape, strict=False)
    )
    if not grows:
        shapes = ", ".join(str(tuple(part.shape)) for part in drawn)
        raise ModelError(
            f"batch of model {task.name!r} returned tensors of {shapes} when asked for "
            f"{counted(local_batch, 'sample')}, and rates would count as many; return exactly the "
            f"number of samples that it is called with, or ask for fewer"
        )


def require_scalar(loss: object, name: str) -> None:
    """Raise ModelError unless the loss is one number that depends on the parameters."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(
            f"loss of model {name!r} returned {shown}, not one number; "
            f"return the mean over the samples, such as cross_entropy's default"
        )
    if not loss.requires_grad:
        raise ModelError(
            f"loss of model {name!r} does not depend on any trainable parameter; "
            f"compute it from the module's output, outside no_grad and without detach"
        )


def require_finite(losses: Sequence[float], name: str, optimizer: str = "") -> None:
    """Raise ModelError unless every loss is a finite number; ``optimizer`` made a step after each.

    >>> require_finite([0.7, float("nan")], "mine", "sgd")
    Traceback (most recent call last):
    ddlnb.errors.ModelError: loss of model 'mine' is nan after 1 step of sgd, so that nothing \
sensible was trained; take another optimizer or a smaller rate, or check data and loss
    """
    for steps, loss in enumerate(losses):
        if math.isfinite(loss):
            continue
        made = f" after {counted(steps, 'step')} of {optimizer}" if steps else ""
        way_out = "take another optimizer or a smaller rate, or check" if steps else "check"
        raise ModelError(
            f"loss of model {name!r} is {loss}{made}, so that nothing sensible was trained; "
            f"{way_out} data and loss"
        )
