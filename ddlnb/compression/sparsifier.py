"""What compressors that send a share of the entries have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from ddlnb.compression.base import Compressor
from ddlnb.compression.sparse import require_density


@dataclass(frozen=True)
class Sparsifier(Compressor):
    """``density`` k/D of the entries travel, at least one."""

    density: float = 0.01

    def __post_init__(self) -> None:
        require_density(self.density)

    def keeping(self, density: float) -> Self:
        """The same with this density. Raises InputError unless it is a share."""
        return replace(self, density=density)
