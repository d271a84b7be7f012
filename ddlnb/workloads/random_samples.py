"""Samples at random, for models that are traced or run for their speed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
