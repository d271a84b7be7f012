"""Random-k: send k entries drawn at random.

Source: Stich et al. 2018 (arXiv 1809.07599); survey of Shi et al. 2020, section 3.1.3. Where all
workers draw alike their entries add up in an all-reduce, and nothing says which ones they are. A
payload for a server or a neighbour begins with the seed of its sender's own draw: eight bytes,
however many entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import Averaged, Codec, Memory, Round, Traffic, as_bytes
from ddlnb.compression.literature import CONTRACTION, UNBIASED, Bound, Quote
from ddlnb.compression.packing import seed_from
from ddlnb.compression.sparse import Sparse
from ddlnb.compression.sparsifier import Sparsifier, kept
from ddlnb.plans.requests import AllReduce, Flow

SEED_BYTES = 8
VALUE_BYTES = 4


@dataclass(frozen=True)
class RandomK(Sparsifier, Codec):
    """``density`` k/D of the entries travel, four bytes each, and in payloads eight for the seed.

    As they are they make a contraction: a share 1 - k/D of the squared norm is lost in the mean.
    ``unbiased`` multiplies them by D/k, so that the mean over all draws is the tensor itself, and
    the variance D/k - 1 times its squared norm. Feedback would then add up ever larger errors.
    """

    unbiased: bool = False

    name = "random-k"
    why_no_feedback = (
        "entries that are multiplied by D/k are no contraction, and residuals would grow"
    )

    @property
    def feedback(self) -> str:
        """Refused if ``unbiased``."""
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
        """All workers draw the same entries, so that one all-reduce of the values is enough."""
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
        """As for every codec. The entries are this worker's own draw."""
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
        # A copy begins at an address at which whole numbers may begin; a slice of bytes may not.
        seed = int(payload[:SEED_BYTES].clone().view(torch.int64))
        generator = torch.Generator().manual_seed(seed)
        indices = drawn(kept(self.density, elements), elements, generator)
        return Sparse(indices, payload[SEED_BYTES:].view(torch.float32))


def drawn(count: int, elements: int, generator: torch.Generator) -> Tensor:
    """So many different indices, ascending, every set of them as likely as any other.

    A permutation of millions would take longer than the rest: few indices are drawn one by one
    until enough are different. Of too many different ones some are taken at random, since the
    smallest would be no fair choice.
    """
    if 4 * count >= elements:
        return torch.randperm(elements, generator=generator)[:count].sort().values
    found = torch.empty(0, dtype=torch.long)
    while len(found) < count:
        more = torch.randint(elements, (count,), generator=generator)
        found = torch.cat([found, more]).unique()
    return found[torch.randperm(len(found), generator=generator)[:count]].sort().values
