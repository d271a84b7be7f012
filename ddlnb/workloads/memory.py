"""What training takes of a memory, found on the meta device without taking any.

`Footprint` is what it takes of a GPU; of models that have profiles it is kept in data/models, as to
build and run one takes seconds, and to read this none. What this machine cannot hold is refused
before it is asked for. ``python -m benchmarks.kept_models`` writes the files of data/models anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, ModelError, require_known
from ddlnb.files import MODELS
from ddlnb.reading import read_json
from ddlnb.units import GIB, counted, digits, show_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddlnb.workloads.task import Task

OPTIMIZER_COPIES = {"sgd": 0, "momentum": 1, "adam": 2}  # of the parameters, kept by the optimizer
FLOAT32 = 4  # bytes: of master weights, and of what an optimizer keeps of a parameter
HALF = ("fp16", "bf16", "fp8", "fp4")  # in which activations take two bytes
FEW = 8  # samples; with one or two, gradients of weights that live for a moment decide the peak
WITH_PROFILES = ("resnet50", "bert-base", "bert-large")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Footprint:
    """Bytes that one worker of data-parallel training holds at its peak.

    ``fixed`` are parameters, gradients and what the optimizer keeps, which ``states`` says in
    words; ``per_sample`` is what the passes hold of a ``sample`` at their peak: what autograd keeps
    from forward to backward, and what lives for a moment beside it. Gradients are held throughout,
    as in the buckets of data parallelism. Buffers of libraries and what an allocator wastes are not
    in it, but for a large model whose framework was fitted.
    """

    fixed: float
    per_sample: float
    optimizer: str
    states: str = "states"
    sample: str = "sample"

    def bytes_at(self, local_batch: int) -> float:
        """Return the bytes at this batch."""
        return self.fixed + self.per_sample * local_batch

    def most_samples(self, memory: float) -> int:
        """Return how many samples a GPU with this memory, in bytes, holds; 0 if not one."""
        return max(0, int((memory - self.fixed) // self.per_sample))

    def said(self, local_batch: int, memory: float) -> str:
        """Return the sentence about memory that every answer has; ``memory`` may be NaN.

        >>> print(Footprint(8 * GIB, GIB, "sgd", sample="image in fp32").said(2, 16.0 * GIB))
        Memory of a GPU: 8 GiB of states, 2 of activations (2 x image in fp32): 10 of 16 GiB.
        """
        parts = (self.fixed, self.per_sample * local_batch, self.bytes_at(local_batch), memory)
        states, kept, whole, room = (digits(part / GIB, 3) for part in parts)
        of = "; what a GPU has is not known" if math.isnan(memory) else f" of {room} GiB"
        return (
            f"Memory of a GPU: {states} GiB of {self.states}, {kept} of activations "
            f"({local_batch:,} x {self.sample}): {whole}{of}."
        )


@dataclass(frozen=True)
class KeptModel:
    """The trained parameters of a model, and what its passes hold, with its own samples.

    ``shapes`` are those of the trained parameters by name, in the model's order; ``trained_bytes``
    and ``frozen_bytes`` those of all parameters; ``bytes_per_sample`` is that of `Footprint`, and
    ``half_bytes_per_sample`` the same with parameters of two bytes, None where nobody looked.
    """

    shapes: dict[str, Shape]
    trained_bytes: int
    frozen_bytes: int
    bytes_per_sample: float
    half_bytes_per_sample: float | None = None

    def footprint(
        self, optimizer: str = "adam", precision: str = "", sample: str = "sample"
    ) -> Footprint:
        """Return what training it takes, with a ``sample`` in words.

        Gradients are as wide as parameters, and an optimizer keeps fp32; parameters of two bytes
        have a master copy in fp32. ``precision`` is that of the computation: in half precision
        (autocast) activations are. Raises UnknownName for an optimizer that is not known.
        """
        require_optimizer(optimizer)
        elements = sum(math.prod(sides) for sides in self.shapes.values())
        width = self.trained_bytes // max(1, elements)
        master = FLOAT32 if width < FLOAT32 else 0
        kept = master + FLOAT32 * OPTIMIZER_COPIES[optimizer]
        is_half = precision in HALF and self.half_bytes_per_sample is not None
        each = f"{width} bytes each, gradients {width}, {optimizer} {kept}"
        of = "states with master weights" if master else "states"
        return Footprint(
            float(self.frozen_bytes + 2 * self.trained_bytes + elements * kept),
            (self.half_bytes_per_sample or 0.0) if is_half else self.bytes_per_sample,
            optimizer,
            f"{of} ({digits(elements / 1e6, 3)} million parameters of {each})",
            f"{sample} in {precision or 'its own precision'}",
        )


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
    fields = read_json(MODELS / f"{name}.json")
    shapes = {key: tuple(sides) for key, sides in fields.pop("shapes").items()}
    return KeptModel(shapes, **fields)


def seen_on_meta(task: Task, dtype: torch.dtype | None = None) -> KeptModel:
    """Return the same of any task, found on the meta device.

    Iterations of `FEW` and of twice as many samples are compared, so that what does not grow with
    the batch is not counted twice. ``dtype`` is that of the passes, None for the parameters' own; a
    loss that the model computes in 32 bits stays so, and parameters are counted as they are built.
    Raises ModelError for a model that cannot run without values.
    """
    from ddlnb.workloads.counters import peak_bytes
    from ddlnb.workloads.task import build_on_meta

    module = build_on_meta(task)
    sizes = {key: one.nbytes for key, one in module.named_parameters()}
    module = module.to(dtype)
    try:
        few, many = (peak_bytes(task, module, samples) for samples in (FEW, 2 * FEW))
    except Exception as error:  # whatever a user's code says to a tensor without values
        raise ModelError(
            f"the memory of model {task.name!r} is found without values, and it needs them "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); take out control flow that "
            f"depends on data"
        ) from error
    trained = {key: one for key, one in module.named_parameters() if one.requires_grad}
    of_trained, each = sum(sizes[key] for key in trained), (many - few) / FEW
    return KeptModel(
        {key: tuple(one.shape) for key, one in trained.items()},
        of_trained,
        sum(sizes.values()) - of_trained,
        each,
        None if dtype is None else each,
    )


def footprint(task: Task, optimizer: str = "adam", precision: str = "") -> Footprint:
    """Return the memory footprint of training a task; activations by runs on the meta device.

    ``precision`` is that of `KeptModel.footprint`. Raises UnknownName for an optimizer other than
    sgd, momentum, adam, and ModelError for a model that cannot run without values.

    >>> from ddlnb.workloads.resolve import get_task
    >>> small = footprint(get_task("small-conv"), "sgd")
    >>> small.fixed == 2 * 4 * 954_002
    True
    """
    import torch

    from ddlnb.workloads.models import TASKS

    require_optimizer(optimizer)
    dtype = torch.bfloat16 if precision in HALF else None
    sample = f"sample of {task.sequence:,} tokens" if task.sequence else "sample"
    if task is not TASKS.get(task.name):
        return seen_on_meta(task, dtype).footprint(optimizer, precision, sample)
    if (kept := kept_model(task.name)) is not None:
        return kept.footprint(optimizer, precision)
    return _seen(task.name, dtype).footprint(optimizer, precision, sample)


@cache
def _seen(name: str, dtype: torch.dtype | None) -> KeptModel:
    """Return what is seen of a built-in model, once."""
    from ddlnb.workloads.models import TASKS

    return seen_on_meta(TASKS[name], dtype)


def require_memory_for_batch(task: Task, local_batch: int) -> None:
    """Raise InputError, with the numbers, if this machine cannot hold the samples of a batch."""
    _require(task, local_batch, 0, _bytes_of(task.batch(1, 0)))


def require_memory_for_training(task: Task, local_batch: int, workers: int = 1) -> None:
    """Raise InputError, with the numbers, if so many workers cannot train here at this batch.

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
    _require(task, local_batch, 2 * _bytes_of(module.parameters()), per_sample, workers)


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


def _require(task: Task, local_batch: int, fixed: int, per_sample: int, workers: int = 1) -> None:
    free = _free_bytes()
    needed = workers * (fixed + local_batch * per_sample)
    if needed > free:
        most = max(0, (free // workers - fixed) // max(1, per_sample))
        raise InputError(
            f"model {task.name!r} at batch {local_batch:,} on {counted(workers, 'worker')} needs "
            f"about {show_bytes(needed)} of memory, and {show_bytes(free)} are free here; "
            + (
                f"choose a batch of at most {most:,}"
                if most
                else "take fewer workers or a smaller model"
            )
        )


def _free_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def kept_bytes(task: Task, module: nn.Module, samples: int) -> int:
    """Return the bytes that autograd keeps from the forward to the backward pass."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> None:  # an operation that kept its own result would stay for ever
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage

    batch = tuple(part.to("meta") for part in task.batch(samples, 0))
    with torch.device("meta"), saved_tensors_hooks(keep, lambda nothing: nothing):
        task.loss(module, batch)
    return sum(storage.nbytes() for storage in kept.values())


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
