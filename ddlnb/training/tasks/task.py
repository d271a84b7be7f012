"""Learning tasks: finite data, a model, a loss, and a test of how good a model is.

Training methods are judged on them. The tasks of `ddlnb.workloads.task`, in contrast, are trained
for their speed: their batches need not teach anything, and nobody evaluates the model. Tasks travel
to other processes by pickle, so their parts are module-level functions or functools.partial. Data
are loaded when they are first needed.

A split says which worker trains on which samples, with alike or with skewed labels. For choosing
learning rates some of the training samples are held out: choosing rates on the samples on which
methods are then compared would favour the method with the most luck there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ddlnb.errors import require, require_whole
from ddlnb.registry import Choice, parsed
from ddlnb.seeding import generator
from ddlnb.workloads.task import Batch

MOST_ALIKE = 1e6  # beyond, workers' labels differ no more than if samples were shuffled


class Split(Choice):
    """A way to deal samples to workers: every sample to exactly one, shards of equal size."""

    @abstractmethod
    def shards(self, labels: Tensor, workers: int, seed: int) -> list[Tensor]:
        """Return the indices of every worker's samples, by rank; sizes differ by at most one.

        Raises InputError for more workers than samples.
        """


@dataclass(frozen=True)
class Iid(Split):
    """Samples are shuffled and dealt, so that every worker's samples are distributed alike."""

    name = "iid"

    def shards(self, labels: Tensor, workers: int, seed: int) -> list[Tensor]:
        _require_enough(labels, workers)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        return list(order.tensor_split(workers))


@dataclass(frozen=True)
class NonIid(Split):
    """Workers prefer labels of their own, drawn from Dirichlet(alpha): 0.1 is skewed, 100 is not.

    The proportions are drawn from Dirichlet(alpha K p), with p those of all samples in K classes,
    so that each of equal classes counts alpha. After Hsu et al. 2019 (arXiv 1909.06335), whose
    alpha is K times this one. Workers choose in turns, so that the leftovers fall to all of them.
    """

    alpha: float = 0.5
    name = "non-iid"

    def __post_init__(self) -> None:
        require(
            0 < self.alpha <= MOST_ALIKE,
            f"alpha {self.alpha!r} must be positive, a small one skewing labels more, and at most "
            f"{MOST_ALIKE:g}; beyond take iid",
        )

    def shards(self, labels: Tensor, workers: int, seed: int) -> list[Tensor]:
        _require_enough(labels, workers)
        draw = np.random.default_rng(seed)
        classes, class_of = np.unique(labels.numpy(), return_inverse=True)
        stock = [
            draw.permutation(np.flatnonzero(class_of == one)).tolist()
            for one in range(len(classes))
        ]
        left = np.array([len(pile) for pile in stock])
        prior = left / left.sum()
        # The floor leaves a wish for every class, so that leftovers can still be chosen.
        wishes = (
            draw.dirichlet(np.maximum(self.alpha * len(classes) * prior, 1e-3), workers) + 1e-12
        )
        shards: list[list[int]] = [[] for _ in range(workers)]
        for turn in range(len(labels)):
            rank = turn % workers
            chances = np.cumsum(wishes[rank] * (left > 0))
            chosen = int(np.searchsorted(chances, draw.random() * chances[-1], side="right"))
            shards[rank].append(stock[chosen].pop())
            left[chosen] -= 1
        return [torch.tensor(shard) for shard in shards]


def _require_enough(labels: Tensor, workers: int) -> None:
    require_whole(workers=workers)
    require(
        len(labels) >= workers,
        f"{workers} workers cannot share {len(labels)} samples; take at most {len(labels)} workers",
    )


SPLITS: dict[str, type[Split]] = {kind.name: kind for kind in (Iid, NonIid)}


def get_split(text: str | Split) -> Split:
    """Return the split that a text such as ``"non-iid(0.1)"`` names.

    Raises UnknownName and InputError.

    >>> get_split("non-iid(0.1)")
    NonIid(alpha=0.1)
    """
    return text if isinstance(text, Split) else parsed("split", text, SPLITS)


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
    ``made_of`` says what its samples are made of, where that may differ between machines.
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
    made_of: Callable[[], str] = field(default=str, repr=False)

    def batches(
        self, split: Split, workers: int, local_batch: int, seed: int
    ) -> list[Callable[[int], Batch]]:
        """Return every worker's ``batch(step)``, by rank; it depends on the arguments only.

        Raises InputError for more workers than samples, and for larger batches than these, unless
        samples are drawn with replacement.
        """
        require_whole(local_batch=local_batch)
        samples = self.samples()
        require(
            self.replacement or local_batch <= len(samples.labels),
            f"local_batch {local_batch:,} exceeds the {len(samples.labels):,} training samples of "
            f"{self.name!r}; choose a smaller one",
        )
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


SHARE, MOST_HELD = 0.2, 3_500  # of the training samples is held out, and at most how many
SEED = 0  # of the choice of samples, the same for all runs
AT_ONCE = 512  # samples that are evaluated together, to limit memory


def validation_task(task: LearningTask) -> LearningTask:
    """Return the task, evaluated on a fifth of its training samples, trained on the others.

    No more than MOST_HELD are held out.

    An evaluation is the mean of the task's own loss, without accuracy; the task's test data are not
    used. Raises InputError if there are too few samples, when they are first needed.
    """
    return replace(
        task,
        samples=partial(_kept, task.samples, task.made_of),
        evaluate=partial(_evaluate, task.samples, task.made_of, task.loss),
    )


@lru_cache(maxsize=2)
def _parts(samples: Callable[[], Samples], made_of: str) -> tuple[Samples, Samples]:
    """Return the samples that are kept for training, and those that are held out."""
    tensors, labels = samples()
    held_out = min(round(SHARE * len(labels)), MOST_HELD)
    require(held_out > 0, f"{len(labels)} training samples are too few to hold some out for tuning")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    kept, held = (
        Samples(tuple(tensor[chosen] for tensor in tensors), labels[chosen])
        for chosen in (order[held_out:], order[:held_out])
    )
    return kept, held


def _kept(samples: Callable[[], Samples], made_of: Callable[[], str]) -> Samples:
    return _parts(samples, made_of())[0]


def _evaluate(
    samples: Callable[[], Samples],
    made_of: Callable[[], str],
    loss: Callable[[nn.Module, Batch], Tensor],
    module: nn.Module,
) -> Evaluation:
    held = _parts(samples, made_of())[1]
    total = 0.0
    with torch.no_grad():
        for batch in zip(*(tensor.split(AT_ONCE) for tensor in held.tensors), strict=True):
            copied = tuple(part.clone() for part in batch)  # a model may change its input
            total += len(batch[0]) * loss(module, copied).item()
    return Evaluation(total / len(held.labels))
