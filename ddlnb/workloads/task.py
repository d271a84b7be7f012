"""A task: what can be trained, as a module to build, batches to draw and a loss to compute.

Tasks travel to other processes by pickle, so everything in one is a module-level function or a
functools.partial. Losses are means over samples: the mean of the gradients of n equal batches is
the gradient of the joined batch. These tasks are trained for their speed; those on which learning
is judged, with test data, are in `ddlnb.training.tasks`.

Samples at random, for models that are traced or run for their speed.

What batches and losses of a task must be; where they are not, a sentence with the way out.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ddlnb.errors import ModelError, require_whole
from ddlnb.units import counted
from ddlnb.workloads.workload import Workload

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """Something to train. ``batch(local_batch, seed)`` depends on its two arguments only.

    ``build()`` returns a new module, ``loss(module, batch)`` the mean loss over the batch.
    ``local_batch`` is the default number of samples, counted in ``unit``. ``recorded`` is the
    workload of a task that replays one (see replay.py), in real seconds. `ddlnb.task` makes one of
    a module of yours.

    >>> from ddlnb.workloads.models import TASKS
    >>> small = TASKS["small-conv"]
    >>> module, batch = small.build(), small.batch(4, seed=0)
    >>> small.loss(module, batch).shape
    torch.Size([])
    """

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    batch: Callable[[int, int], Batch] = field(repr=False)
    loss: Callable[[nn.Module, Batch], Tensor] = field(repr=False)
    local_batch: int
    unit: str
    about: str = field(repr=False)
    recorded: Workload | None = field(default=None, repr=False)

    @property
    def sequence(self) -> int | None:
        """Tokens of a sample, or None where samples have none whose number could be chosen."""
        return getattr(self.batch, "sequence", None)

    def with_sequence(self, sequence: int) -> Task:
        """Return the task on samples of so many tokens. Raises ModelError if it has none."""
        require_whole(sequence=sequence)
        if self.sequence is None:
            raise ModelError(
                f"model {self.name!r} has no sequences of which the length could be chosen; leave "
                f"out the sequence, or say it in the task's own batch function"
            )
        samples: Any = self.batch
        if samples.longest is not None and sequence > samples.longest:
            raise ModelError(
                f"sequence {sequence:,} exceeds the {samples.longest:,} positions of model "
                f"{self.name!r}; give at most {samples.longest:,}"
            )
        return replace(self, batch=replace(samples, sequence=sequence))


def task(
    module: nn.Module | Callable[[], nn.Module],
    *,
    batch: Callable[[int, int], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    name: str | None = None,
    local_batch: int = 32,
) -> Task:
    """Return a task around your own module; every build is a deep copy of it as it is then.

    A function that makes the module may stand in its place: it is called for every build, also
    where a module cannot be copied (``weight_norm``) or sent to other processes (whatever is
    parametrized).

    ``batch(local_batch, seed)`` returns a tuple of tensors, others for every seed: each worker
    and step has its own. ``loss(module, batch)`` is their mean loss. Both must be picklable.
    Raises ModelError for what cannot be trained.

    >>> import ddlnb
    >>> def draw(local_batch, seed):
    ...     generator = torch.Generator().manual_seed(seed)
    ...     return (torch.randn(local_batch, 4, generator=generator),)
    >>> def loss(module, batch):
    ...     return module(batch[0]).square().mean()
    >>> mine = ddlnb.task(nn.Linear(4, 2), batch=draw, loss=loss, name="mine", local_batch=8)
    >>> ddlnb.trace(mine)
    Workload('mine', batch=1, 2 gradients, 40 B, 0 us)
    """
    make = module if inspect.isfunction(module) else None
    module = make() if make else module
    if not isinstance(module, nn.Module):
        called = getattr(module, "__name__", "")  # of a class or a function; others have none
        raise ModelError(
            f"model {called or repr(module)} is a {type(module).__name__}, not a torch.nn.Module; "
            f"pass a module instance, such as {called or 'torch.nn.Linear'}"
            + ("(...)" if called else "(4, 2)")
        )
    name = name or type(module).__name__
    require_trainable(module, name)
    for what, function in (("batch", batch), ("loss", loss)):
        if not callable(function):
            raise ModelError(
                f"{what} of model {name!r} is {function!r}, not a function; "
                f"pass batch(local_batch, seed) and loss(module, batch)"
            )
    require_whole(local_batch=local_batch)
    build = make or partial(copy.deepcopy, module)
    return Task(name, build, batch, loss, local_batch, "samples", name)


def require_trainable(module: nn.Module, name: str) -> None:
    """Raise ModelError unless the module has parameters that want a gradient, and allows hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"model {name!r} is a TorchScript module, whose layers cannot be watched; "
            f"pass the module that was scripted or traced"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        raise ModelError(
            f"model {name!r} has lazy parameters without a size yet; "
            f"call the module once on a batch before making a task of it"
        )
    sparse = [
        one or type(module).__name__
        for one, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    ]
    if sparse:
        raise ModelError(
            f"model {name!r} has sparse gradients in {', '.join(sparse)}, and plans know only "
            f"dense ones; set sparse=False in these embeddings to exchange all of their rows"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            f"model {name!r} has no trainable parameter, so there is no gradient to exchange; "
            f"give it an nn.Parameter or set requires_grad=True on one it has"
        )


def build_on_meta(task: Task) -> nn.Module:
    """Build the task's module without values.

    Tied parameters stay tied, which ``.to("meta")`` breaks.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        module = task.build()
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    for part in module.modules():  # weight_norm keeps what it computes from its parameters
        for computed in (one for one in vars(part).values() if isinstance(one, Tensor)):
            memo[id(computed)] = torch.empty_like(computed, device="meta")
    return copy.deepcopy(module, memo)


def like_parameters(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the inputs in the module's own floating type, so that ``module.double()`` works."""
    return inputs.to(next(module.parameters()).dtype)


@dataclass(frozen=True)
class RandomTokens:
    """Sequences of tokens; they are their own labels. ``longest`` is the most a model takes."""

    sequence: int
    vocabulary: int
    longest: int | None = None

    def __call__(self, local_batch: int, seed: int) -> tuple[Tensor]:
        """Return so many sequences, others for every seed."""
        draw = torch.Generator().manual_seed(seed)
        shape = (local_batch, self.sequence)
        return (torch.randint(self.vocabulary, shape, generator=draw),)


@dataclass(frozen=True)
class RandomImages:
    """Images of these channels and sides, and one of so many labels for each."""

    shape: tuple[int, int, int] = (3, 224, 224)
    labels: int = 1000

    def __call__(self, local_batch: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return so many images and labels, others for every seed."""
        draw = torch.Generator().manual_seed(seed)
        images = torch.randn(local_batch, *self.shape, generator=draw)
        return images, torch.randint(self.labels, (local_batch,), generator=draw)


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
