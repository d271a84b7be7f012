"""What training takes of a memory, found on the meta device without taking any.

`Footprint` is what it takes of a GPU; of models that have profiles it is kept in data/models, as to
build and run one takes seconds, and to read this none. What this machine cannot hold is refused
before it is asked for. ``python -m ddlnb.workloads.memory`` writes the files of data/models anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, ModelError, require_known
from ddlnb.files import MODELS
from ddlnb.units import show_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddlnb.workloads.task import Task

OPTIMIZER_COPIES = {"sgd": 0, "momentum": 1, "adam": 2}  # of the parameters, kept by the optimizer
FEW = 8  # samples; with one or two, gradients of weights that live for a moment decide the peak
WITH_PROFILES = ("resnet50", "bert-base", "bert-large")
Shape = tuple[int, ...]


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


@dataclass(frozen=True)
class KeptModel:
    """The trained parameters of a model, and what its passes hold, with its own samples.

    ``shapes`` are those of the trained parameters by name, in the model's order; ``trained_bytes``
    and ``frozen_bytes`` those of all parameters; ``bytes_per_sample`` is that of `Footprint`.
    """

    shapes: dict[str, Shape]
    trained_bytes: int
    frozen_bytes: int
    bytes_per_sample: float

    def footprint(self, optimizer: str = "adam") -> Footprint:
        """Return what training it takes. Raises UnknownName for an optimizer that is not known."""
        require_optimizer(optimizer)
        copies = 2 + OPTIMIZER_COPIES[optimizer]  # parameters and their gradients are there anyway
        fixed = float(self.frozen_bytes + copies * self.trained_bytes)
        return Footprint(fixed, self.bytes_per_sample, optimizer)


def require_optimizer(optimizer: str) -> None:
    """Raise UnknownName unless it is known what this optimizer keeps."""
    require_known("optimizer", optimizer, OPTIMIZER_COPIES)


@cache
def kept_model(name: str) -> KeptModel | None:
    """Return what is kept of the built-in model of this name, None if nothing is.

    >>> kept_model("bert-large").trained_bytes
    1344904432
    >>> kept_model("gpt2-xl") is None
    True
    """
    if name not in WITH_PROFILES:
        return None
    fields = json.loads((MODELS / f"{name}.json").read_text())
    shapes = {key: tuple(sides) for key, sides in fields.pop("shapes").items()}
    return KeptModel(shapes, **fields)


def seen_on_meta(task: Task, dtype: torch.dtype | None = None) -> KeptModel:
    """Return the same of any task, found on the meta device.

    Iterations of `FEW` and of twice as many samples are compared, so that what does not grow with
    the batch is not counted twice. ``dtype`` is that of all parameters, None for the model's own; a
    loss that the model computes in 32 bits stays so. Raises ModelError for a model that cannot run
    without values.
    """
    from ddlnb.workloads.counters import peak_bytes
    from ddlnb.workloads.task import build_on_meta

    module = build_on_meta(task).to(dtype)
    try:
        few, many = (peak_bytes(task, module, samples) for samples in (FEW, 2 * FEW))
    except Exception as error:  # whatever a user's code says to a tensor without values
        raise ModelError(
            f"the memory of model {task.name!r} is found without values, and it needs them "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); take out control flow that "
            f"depends on data"
        ) from error
    trained = {key: one for key, one in module.named_parameters() if one.requires_grad}
    frozen = [one for one in module.parameters() if not one.requires_grad]
    return KeptModel(
        {key: tuple(one.shape) for key, one in trained.items()},
        sum(one.nbytes for one in trained.values()),
        sum(one.nbytes for one in frozen),
        (many - few) / FEW,
    )


def footprint(task: Task, optimizer: str = "adam", dtype: torch.dtype | None = None) -> Footprint:
    """Return the memory footprint of training a task; activations by runs on the meta device.

    ``dtype`` is that of `seen_on_meta`. Raises UnknownName for an optimizer other than sgd,
    momentum, adam, and ModelError for a model that cannot run without values.

    >>> from ddlnb.workloads.resolve import get_task
    >>> small = footprint(get_task("small-conv"), "sgd")
    >>> small.fixed == 2 * 4 * 954_002
    True
    """
    require_optimizer(optimizer)
    return seen_on_meta(task, dtype).footprint(optimizer)


def require_memory_for_batch(task: Task, local_batch: int) -> None:
    """Raise InputError, with the numbers, if this machine cannot hold the samples of a batch."""
    _require(task, local_batch, 0, _bytes_of(task.batch(1, 0)))


def require_memory_for_training(task: Task, local_batch: int) -> None:
    """Raise InputError, with the numbers, if this machine cannot train at this batch.

    Parameters, gradients and samples are counted, and what autograd keeps for the backward pass,
    which forward passes of two and of three samples on the meta device show.
    """
    from ddlnb.workloads.task import build_on_meta

    per_sample = _bytes_of(task.batch(1, 0))
    module = build_on_meta(task)
    # A model that needs values cannot run without them: then its samples alone are counted.
    with suppress(Exception):
        two, three = (kept_bytes(task, module, samples) for samples in (2, 3))
        per_sample += three - two
    _require(task, local_batch, 2 * _bytes_of(module.parameters()), per_sample)


def require_memory_for_values(task: Task, reason: str) -> None:
    """Raise ModelError if this machine cannot hold a model's parameters and gradients.

    ``reason`` says why the model has to be run with values at all.
    """
    from ddlnb.workloads.task import build_on_meta

    free = _free_bytes()
    needed = 2 * _bytes_of(build_on_meta(task).parameters())
    if needed > free:
        raise ModelError(
            f"model {task.name!r} does not run without values ({reason}), and with them it needs "
            f"more than {show_bytes(needed)} of memory, of which {show_bytes(free)} are free here; "
            f"take out what reads values in its forward pass, or trace a smaller one"
        )


def _require(task: Task, local_batch: int, fixed: int, per_sample: int) -> None:
    free = _free_bytes()
    needed = fixed + local_batch * per_sample
    if needed > free:
        most = max(0, (free - fixed) // max(1, per_sample))
        raise InputError(
            f"model {task.name!r} at batch {local_batch:,} needs about {show_bytes(needed)} of "
            f"memory, and {show_bytes(free)} are free here; choose a batch of at most {most:,}"
        )


def _free_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def kept_bytes(task: Task, module: nn.Module, samples: int) -> int:
    """Return the bytes that autograd keeps from the forward to the backward pass."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    batch = tuple(part.to("meta") for part in task.batch(samples, 0))
    with torch.device("meta"), saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(module, batch)
    return sum(storage.nbytes() for storage in kept.values())


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


if __name__ == "__main__":
    from ddlnb.workloads.models import TASKS

    for _name in WITH_PROFILES:
        _text = json.dumps(asdict(seen_on_meta(TASKS[_name])), indent=1)
        (MODELS / f"{_name}.json").write_text(f"{_text}\n")
