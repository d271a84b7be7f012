"""Random-k: send k entries drawn at random.

Source: Stich et al. 2018 (arXiv 1809.07599); survey of Shi et al. 2020, section 3.1.3. Where all
workers draw the same entries, these add up in an all-reduce, and their indices need not travel. A
payload for a server or a neighbour begins with the seed of its sender's own draw: eight bytes for
any number of entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    CONTRACTION,
    UNBIASED,
    Averaged,
    Bound,
    Codec,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    Traffic,
    as_bytes,
)
from ddlnb.compression.packing import seed_from
from ddlnb.compression.sparse import Sparse, Sparsifier, kept
from ddlnb.plans.requests import AllReduce, Flow

SEED_BYTES = 8
VALUE_BYTES = 4


@dataclass(frozen=True)
class RandomK(Sparsifier, Codec):
    """A share ``density`` = k/D of the entries travels, four bytes each.

    A payload has eight bytes more for the seed. Sent as they are, the entries make a contraction: a
    share 1 - k/D of the squared norm is lost on average. ``unbiased`` multiplies them by D/k, so
    that the mean over all draws is the tensor itself and the variance is D/k - 1 times its squared
    norm. Error feedback would then accumulate ever larger errors.
    """

    unbiased: bool = False

    name = "random-k"
    # Keys are drawn and sorted in four passes with their indices; entries are put in their places.
    on_gpu = OnGpu(Passes(8, 68), Passes(2, 8))
    why_no_feedback = (
        "entries that are multiplied by D/k are no contraction, and residuals would grow"
    )

    @property
    def feedback(self) -> str:
        """Error feedback is refused if ``unbiased``, and optional otherwise."""
        return "refused" if self.unbiased else "optional"

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        """Return D / k: values travel without their indices."""
        return Quote.of(1 / self.density)

    def error_bound(self, tensor: Tensor) -> Bound:
        share = kept(self.density, tensor.numel()) / tensor.numel()
        if self.unbiased:
            return Bound(1 / share - 1, UNBIASED, "D / k - 1", exact=True)
        return Bound(1 - share, CONTRACTION, "1 - k / D", exact=True)

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Draw the same entries on all workers, so that one all-reduce of the values is enough."""
        elements = tensor.numel()
        entries = self._drawn(tensor, round_.shared())
        sent = entries.dense(elements)
        total = yield AllReduce(entries.values)
        average = Sparse(entries.indices, total / round_.workers).dense(elements)
        return Averaged(average.view_as(tensor), sent.view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllReduce, VALUE_BYTES * kept(self.density, math.prod(shape)))]

    def payload_bytes(self, elements: int) -> int:
        return SEED_BYTES + VALUE_BYTES * kept(self.density, elements)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the seed of this worker's own draw, and its entries."""
        seed = seed_from(round_.own())
        entries = self._drawn(tensor, torch.Generator().manual_seed(seed))
        return torch.cat([as_bytes(torch.tensor([seed])), as_bytes(entries.values)])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return self._read(payload, elements).dense(elements)

    def add(self, payload: Tensor, total: Tensor) -> None:
        self._read(payload, len(total)).add_to(total)

    def _drawn(self, tensor: Tensor, generator: torch.Generator) -> Sparse:
        elements = tensor.numel()
        indices = drawn(kept(self.density, elements), elements, generator)
        scale = elements / len(indices) if self.unbiased else 1.0
        return Sparse(indices, tensor.detach().flatten()[indices] * scale)

    def _read(self, payload: Tensor, elements: int) -> Sparse:
        # A copy is aligned for whole numbers; a slice of bytes need not be.
        seed = int(payload[:SEED_BYTES].clone().view(torch.int64))
        generator = torch.Generator().manual_seed(seed)
        indices = drawn(kept(self.density, elements), elements, generator)
        return Sparse(indices, payload[SEED_BYTES:].view(torch.float32))


def drawn(count: int, elements: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` different indices, ascending, every set of them equally likely.

    A permutation of millions would take longer than all the rest, so a few indices are drawn one
    by one until enough are different. If there are too many, some of them are taken at random,
    since taking the smallest would not be fair.
    """
    if 4 * count >= elements:
        return torch.randperm(elements, generator=generator)[:count].sort().values
    found = torch.empty(0, dtype=torch.long)
    while len(found) < count:
        more = torch.randint(elements, (count,), generator=generator)
        found = torch.cat([found, more]).unique()
    return found[torch.randperm(len(found), generator=generator)[:count]].sort().values
