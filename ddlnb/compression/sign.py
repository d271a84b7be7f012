"""signSGD with majority vote: one bit per element, and all workers step as the majority votes.

A parameter server counts the votes and answers with one bit per element; without a server every
worker gathers all votes and counts them itself.

Source: Bernstein et al. 2018 (arXiv 1802.04434; majority vote: arXiv 1810.05291, algorithm 1).
Magnitudes are lost, so the method need not converge: see Karimireddy et al. 2019 (arXiv 1901.09847)
and, for the remedy, `scaled_sign`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    NONE,
    QUANTISATION,
    SURVEY,
    Averaged,
    Bound,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    Traffic,
    Voting,
)
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
class SignVote(Voting):
    """An element moves by ``magnitude`` as the majority of workers votes.

    Tied elements stay where they are if workers count; a server has no third answer in one bit, and
    lets a coin decide. At magnitude 1 the learning rate is the length of every element's step,
    whatever the gradient: choose about the usual learning rate times the usual size of an element.
    Zero votes plus.
    """

    magnitude: float = 1.0

    name = "signsgd"
    family = QUANTISATION
    on_gpu = OnGpu(Passes(3, 9), Passes(3, 14))  # compare, pack; unpack, scale to +-1, count
    feedback = "refused"
    why_no_feedback = "a majority is no average of votes, and magnitudes are not sent; use ef-sign"
    why_no_payload = (
        "votes are counted, and neighbours add up what they read, as is right for ef-sign"
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
        elements, ballot = tensor.numel(), self.encode(tensor, round_, memory)
        ballots = yield AllGather(ballot)
        counted = made_once(ballots, lambda: majority(ballots, elements))
        average = counted * self.magnitude
        vote = self.outcome(ballot, elements)
        return Averaged(average.view_as(tensor), vote.view_as(tensor))

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return this worker's vote. Raises NotFinite."""
        values = flat_values(tensor)
        magnitudes(values)  # raises NotFinite: not-a-number has no sign
        return pack_signs(values)

    def tally(self, payloads: Sequence[Tensor], elements: int, draw: torch.Generator) -> Tensor:
        votes = majority(payloads, elements)
        coin = torch.randint(2, (elements,), generator=draw).float() - 0.5
        return pack_signs(flat_values(torch.where(votes == 0, coin, votes)))

    def outcome(self, payload: Tensor, elements: int) -> Tensor:
        return unpack_signs(payload, elements, self.magnitude)

    def payload_bytes(self, elements: int) -> int:
        return -(-elements // 8)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllGather, self.declared_bytes(math.prod(shape)))]
