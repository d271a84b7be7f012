"""What compressors that send a share of the entries have in common: the density."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from ddlnb.compression.base import Compressor
from ddlnb.compression.literature import CONTRACTION, SPARSIFICATION, Bound, Quote
from ddlnb.errors import require


@dataclass(frozen=True)
class Sparsifier(Compressor):
    """A share ``density`` = k/D of the D entries travels, at least one."""

    density: float = 0.01

    family = SPARSIFICATION

    def __post_init__(self) -> None:
        require_density(self.density)

    def keeping(self, density: float) -> Self:
        """Return the same compressor with this density. Raises InputError unless it is a share."""
        return replace(self, density=density)

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote | None:
        """Return D / 2k: a value travels with its index."""
        return Quote.of(0.5 / self.density)

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return 1 - k/D: the largest entries hold at least their share of the squared norm."""
        share = kept(self.density, tensor.numel()) / tensor.numel()
        return Bound(1 - share, CONTRACTION, "1 - k / D")


def kept(density: float, elements: int) -> int:
    """Return how many of the entries travel: their share ``density``, and at least one.

    >>> kept(0.001, 25_000_000)
    25000
    """
    return max(1, round(density * elements))


def require_density(density: float) -> None:
    """Raise InputError unless this is a share of entries."""
    require(0 < density <= 1, f"density {density!r} must be above 0 and at most 1")
