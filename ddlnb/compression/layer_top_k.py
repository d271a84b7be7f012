"""Top-k with a density of its own for every piece of a model.

Source: Shi et al. 2019 (arXiv 1911.08727), LAGS-SGD: layer-wise adaptive gradient sparsification.
`ddlnb.training.cost.layer_densities` chooses densities for a model on a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ddlnb.compression.base import (
    SPARSIFICATION,
    Bound,
    Codec,
    Memory,
    Round,
    Traffic,
    Uncompressed,
)
from ddlnb.compression.sparse import require_density
from ddlnb.compression.top_k import TopK
from ddlnb.errors import require
from ddlnb.plans.requests import Flow


@dataclass(frozen=True)
class LayerTopK(Codec):
    """``densities`` are those of the pieces that are compressed, in the order of the parameters.

    A piece of density 1 travels uncompressed, all-reduced on all-to-all. What is asked of a single
    tensor is answered for the only piece, and refused with InputError if there are more.
    """

    densities: tuple[float, ...]

    name = "layer-top-k"
    family = SPARSIFICATION
    feedback = "needed"

    def __post_init__(self) -> None:
        require(
            isinstance(self.densities, tuple) and len(self.densities) > 0,
            f"densities {self.densities!r} must be a tuple with one for every piece, such as "
            f"(0.1, 0.001)",
        )
        for density in self.densities:
            require_density(density)

    def for_pieces(self, pieces: int) -> tuple[Any, ...]:
        """Return top-k for every piece. Raises InputError unless there is a density for each."""
        require(
            pieces == len(self.densities),
            f"{self.name} has {len(self.densities)} densities, and the model has {pieces} "
            f"{'pieces' if pieces > 1 else 'piece'} to compress; give one for each, in the order "
            f"of its parameters",
        )
        return tuple(Uncompressed() if one == 1 else TopK(one) for one in self.densities)

    def for_whole_model(self) -> Codec:
        """Return top-k of the only density. Raises InputError if there are more."""
        return self._only

    @property
    def _only(self) -> Codec:
        (only,) = self.for_pieces(1)
        return only

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        return self._only.average(tensor, round_, memory)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return self._only.traffic(shape, workers)

    def error_bound(self, tensor: Tensor) -> Bound:
        return self._only.error_bound(tensor)

    def payload_bytes(self, elements: int) -> int:
        return self._only.payload_bytes(elements)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        return self._only.encode(tensor, round_, memory)

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return self._only.decode(payload, elements)
