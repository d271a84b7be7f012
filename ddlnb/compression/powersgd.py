"""PowerSGD: average two thin factors of the gradient's matrix, found by one power iteration.

Source: Vogels et al. 2019 (arXiv 1905.13727), algorithms 1 and 2. With M the average gradient as a
matrix of a rows and b columns and r the rank, the factors have r (a + b) entries against a b. Both
are linear in the gradient, so all-reduces average them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ddlnb.compression.base import (
    CONTRACTION,
    LOW_RANK,
    Averaged,
    Bound,
    Compressor,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    Traffic,
)
from ddlnb.errors import require_whole
from ddlnb.plans.requests import AllReduce, Flow

RIGHT = "right factor"


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Averages have at most this ``rank``.

    A tensor is taken as the matrix of its first dimension by all others. Vectors, and tensors that
    factors would not make smaller, travel whole; with ``fold`` a vector is folded into a nearly
    square matrix, which is meant for the vector of a whole model. ``warm_start`` begins with the
    last round's factor, so that the rounds together are one long power iteration.
    """

    rank: int = 2
    fold: bool = False
    warm_start: bool = True

    name = "powersgd"
    family = LOW_RANK
    feedback = "needed"
    why_no_payload = "its second message depends on the sum of the first over all workers"

    def __post_init__(self) -> None:
        require_whole(rank=self.rank)

    @property
    def on_gpu(self) -> OnGpu:  # type: ignore[override]
        """Products with both factors, three operations for each column of one; their product."""
        return OnGpu(Passes(2 + 3 * self.rank, 8), Passes(2, 4))

    def codes(self, shape: tuple[int, ...]) -> bool:
        return self.factored(shape) is not None

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(math.prod(shape) / (self.rank * sum(shape)))

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return 1 - r/b: a random subspace of r of b columns keeps r/b on average.

        A power iteration keeps more.
        """
        formula = "1 - r / b, vectors whole"
        sides = self.factored(tuple(tensor.shape))
        if sides is None:
            return Bound(0.0, CONTRACTION, formula)
        return Bound(max(0.0, 1 - self.rank / sides[1]), CONTRACTION, formula)

    @property
    def needs_shapes(self) -> bool:
        return not self.fold

    def for_whole_model(self) -> PowerSGD:
        return replace(self, fold=True)

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        sides = self.factored(tuple(tensor.shape))
        if sides is None:
            whole = tensor.detach().clone()  # an answer may reuse the memory of a request
            total = yield AllReduce(tensor.detach().clone())
            return Averaged(total / round_.workers, whole)
        rows, columns = sides
        matrix = _as_matrix(tensor.detach(), rows, columns)
        right = memory.get(RIGHT) if self.warm_start else None
        if right is None:
            right = torch.randn(columns, self.rank, generator=round_.shared())
        total = yield AllReduce(matrix @ right)
        left, _ = torch.linalg.qr(total / round_.workers)
        total = yield AllReduce(matrix.T @ left)
        right = total / round_.workers
        if self.warm_start:
            memory[RIGHT] = right
        average = (left @ right.T).flatten()[: tensor.numel()].view_as(tensor)
        return Averaged(average, average)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        sides = self.factored(shape)
        if sides is None:
            return [Traffic(AllReduce, 4 * math.prod(shape))]
        return [Traffic(AllReduce, 4 * self.rank * side) for side in sides]

    def factored(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return rows and columns of a tensor's matrix; None if the tensor travels whole."""
        sides = self.sides(shape)
        is_smaller = sides is not None and self.rank * sum(sides) < math.prod(shape)
        return sides if is_smaller else None

    def sides(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return rows and columns even if factors save nothing; None for vectors."""
        elements = math.prod(shape)
        if len(shape) > 1:
            return shape[0], elements // max(1, shape[0])
        rows = math.ceil(math.sqrt(elements))
        return (rows, math.ceil(elements / max(1, rows))) if self.fold else None


def _as_matrix(tensor: Tensor, rows: int, columns: int) -> Tensor:
    flat = tensor.flatten()
    missing = rows * columns - len(flat)
    return torch.nn.functional.pad(flat, (0, missing)).view(rows, columns)
