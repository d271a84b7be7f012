"""signSGD with majority vote: one bit per element, and all workers step as the majority votes.

Source: Bernstein et al. 2018 (arXiv 1802.04434; majority vote: arXiv 1810.05291). Magnitudes are
lost, so the method need not converge: see Karimireddy et al. 2019 (arXiv 1901.09847) and, for the
remedy, `scaled_sign`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ddlnb.compression.base import Averaged, Compressor, Memory, Round, Traffic
from ddlnb.compression.literature import NONE, QUANTISATION, SURVEY, Bound, Quote
from ddlnb.compression.packing import (
    flat_values,
    magnitudes,
    majority,
    pack_signs,
    unpack_signs,
)
from ddlnb.errors import require
from ddlnb.plans.requests import AllGather, Flow, made_once


@dataclass(frozen=True)
class SignVote(Compressor):
    """Every worker counts all signs; an element moves by ``magnitude``, or not at all if tied.

    At magnitude 1 the learning rate is the length of every element's step, whatever the gradient:
    choose about the usual learning rate times the usual size of an element. Zero votes plus.
    """

    magnitude: float = 1.0

    name = "signsgd"
    family = QUANTISATION
    feedback = "refused"
    why_no_feedback = "a majority is no average of votes, and magnitudes are not sent; use ef-sign"
    why_no_payload = (
        "votes are counted, and those who decode payloads add them up, as is right for ef-sign"
    )

    def __post_init__(self) -> None:
        require(
            0 < self.magnitude < math.inf, f"magnitude {self.magnitude!r} must be a number above 0"
        )

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(32, SURVEY)

    def error_bound(self, tensor: Tensor) -> Bound:
        return Bound(math.inf, NONE, "magnitudes are lost")

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Return the majority; ``sent`` is this worker's vote. Raises NotFinite."""
        values = flat_values(tensor)
        magnitudes(values)  # raises NotFinite: not-a-number has no sign
        ballot = pack_signs(values)
        ballots = yield AllGather(ballot)
        counted = made_once(ballots, lambda: majority(ballots, len(values)))
        average = counted * self.magnitude
        vote = unpack_signs(ballot, len(values), self.magnitude)
        return Averaged(average.view_as(tensor), vote.view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllGather, -(-math.prod(shape) // 8))]
