"""Splits: which worker trains on which samples, with alike or with skewed labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ddlnb.choices import parsed, shown
from ddlnb.errors import require, require_whole

MOST_ALIKE = 1e6  # beyond, workers' labels differ no more than if samples were shuffled


class Split(ABC):
    """A way to deal samples to workers: every sample to exactly one, shards of equal size."""

    name: ClassVar[str]

    @abstractmethod
    def shards(self, labels: Tensor, workers: int, seed: int) -> list[Tensor]:
        """Return the indices of every worker's samples, by rank; sizes differ by at most one.

        Raises InputError for more workers than samples.
        """

    def __str__(self) -> str:
        return shown(self.name, self)


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

    After Hsu et al. 2019 (arXiv 1909.06335): the proportions are drawn from Dirichlet(alpha p),
    with p those of all samples. Workers choose in turns, so that the leftovers fall to all of them.
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
