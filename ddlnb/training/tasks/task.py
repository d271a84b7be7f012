"""Learning tasks: finite data, a model, a loss, and a test of how good a model is.

Training methods are judged on them. The tasks of `ddlnb.workloads.tasks`, in contrast, are trained
for their speed: their batches need not teach anything, and nobody evaluates the model. Tasks travel
to other processes by pickle, so their parts are module-level functions or functools.partial. Data
are loaded when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddlnb.errors import require_whole
from ddlnb.seeding import generator
from ddlnb.training.tasks.splits import Split
from ddlnb.workloads.tasks import Batch

NAN = float("nan")


class Evaluation(NamedTuple):
    """How good a model is: its mean loss, and its share of right answers (NaN if not counted)."""

    loss: float
    accuracy: float = NAN


class Samples(NamedTuple):
    """Training data: ``tensors`` of equal first dimension; splits may skew the ``labels``."""

    tensors: tuple[Tensor, ...]
    labels: Tensor


@dataclass(frozen=True)
class Constants:
    """What is known exactly of a task; NaN for what is not.

    ``smoothness`` and ``strong_convexity`` bound the eigenvalues of the Hessian (L and mu),
    ``noise`` is the mean squared distance of one sample's gradient from the mean gradient, at the
    optimum (sigma squared), ``best_loss`` and ``best_accuracy`` are those of the best model.
    """

    best_loss: float = NAN
    best_accuracy: float = NAN
    smoothness: float = NAN
    strong_convexity: float = NAN
    noise: float = NAN
    optimum: tuple[float, ...] = ()


@dataclass(frozen=True)
class LearningTask:
    """Something to learn from finite samples.

    ``build(seed)`` makes the model, ``samples()`` loads the training data, ``loss`` is a mean over
    a batch, and ``evaluate`` tests on other data (the convex tasks: on all samples).
    ``learning_rate`` is a fair first guess for plain SGD with ``local_batch`` on eight workers.
    With ``replacement`` batches are drawn independently, as theory wants them; otherwise a worker
    goes through its samples in a new order every epoch.
    """

    name: str
    build: Callable[[int], nn.Module] = field(repr=False)
    samples: Callable[[], Samples] = field(repr=False)
    loss: Callable[[nn.Module, Batch], Tensor] = field(repr=False)
    evaluate: Callable[[nn.Module], Evaluation] = field(repr=False)
    constants: Callable[[], Constants] = field(repr=False)
    local_batch: int
    learning_rate: float
    about: str = field(repr=False)
    replacement: bool = False

    def batches(
        self, split: Split, workers: int, local_batch: int, seed: int
    ) -> list[Callable[[int], Batch]]:
        """Return every worker's ``batch(step)``, by rank; it depends on the arguments only.

        Raises InputError for more workers than samples.
        """
        require_whole(local_batch=local_batch)
        samples = self.samples()
        return [
            _Batches(samples.tensors, shard, local_batch, (seed, rank), self.replacement)
            for rank, shard in enumerate(split.shards(samples.labels, workers, seed))
        ]


class _Batches:
    """The batches of one worker. The order of an epoch is drawn once and kept."""

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        shard: Tensor,
        size: int,
        seed: tuple[int, int],
        replacement: bool,
    ):
        self._tensors, self._shard, self._size = tensors, shard, size
        self._seed, self._replacement = seed, replacement
        self._epoch, self._order = -1, shard

    def __call__(self, step: int) -> Batch:
        chosen = self._drawn(step) if self._replacement else self._next(step)
        return tuple(tensor[chosen] for tensor in self._tensors)

    def _drawn(self, step: int) -> Tensor:
        return self._shard[torch.randint(len(self._shard), (self._size,), generator=self._at(step))]

    def _next(self, step: int) -> Tensor:
        start, samples = step * self._size, len(self._shard)
        parts, wanted = [], self._size
        while wanted:
            epoch, within = divmod(start, samples)
            if epoch != self._epoch:
                order = torch.randperm(samples, generator=self._at(epoch))
                self._epoch, self._order = epoch, self._shard[order]
            part = self._order[within : within + wanted]
            parts.append(part)
            start, wanted = start + len(part), wanted - len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _at(self, number: int) -> torch.Generator:
        return generator(*self._seed, number)


def nothing_known() -> Constants:
    """Return the constants of a task of which nothing is known."""
    return Constants()
