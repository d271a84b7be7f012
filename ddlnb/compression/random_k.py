"""Random-k: send k entries drawn at random, the same on all workers, so that no index travels.

Source: Stich et al. 2018 (arXiv 1809.07599); survey of Shi et al. 2020, section 3.1.3. The chosen
entries of all workers add up in an all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import Averaged, Compressor, Memory, Round, Traffic, elements_of
from ddlnb.compression.sparse import Sparse, kept, require_density
from ddlnb.exchange import AllReduce, Flow


@dataclass(frozen=True)
class RandomK(Compressor):
    """``density`` k/D of the entries travel, four bytes each.

    As they are they make a contraction: a share 1 - k/D of the squared norm is lost in the mean.
    ``unbiased`` multiplies them by D/k, so that the mean over all draws is the tensor itself, and
    the variance D/k - 1 times its squared norm. Feedback would then add up ever larger errors.
    """

    density: float = 0.01
    unbiased: bool = False

    name = "random-k"
    feedback = "optional"

    def __post_init__(self) -> None:
        require_density(self.density)
        if self.unbiased:
            object.__setattr__(self, "feedback", "refused")
            object.__setattr__(
                self,
                "why_no_feedback",
                "entries that are multiplied by D/k are no contraction, and residuals would grow",
            )

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        elements = tensor.numel()
        indices = drawn(kept(self.density, elements), elements, round_.shared())
        scale = elements / len(indices) if self.unbiased else 1.0
        values = tensor.detach().flatten()[indices] * scale
        sent = Sparse(indices, values).dense(elements)
        total = yield AllReduce(values)
        average = Sparse(indices, total / round_.workers).dense(elements)
        return Averaged(average.view_as(tensor), sent.view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllReduce, 4 * kept(self.density, elements_of(shape)))]


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
