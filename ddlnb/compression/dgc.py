"""Deep Gradient Compression: top-k of accumulated velocities, for momentum SGD.

Source: Lin et al. 2018 (arXiv 1712.01887), section 3. Momentum applied after compression would be
wrong for entries that waited long, so every worker has its own velocity and sends the largest
entries of what its velocities added up to. Train with plain SGD: momentum in the optimizer would
be applied twice and is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import KNOWN, Averaged, Memory, OnGpu, Passes, Quote, Round, Traffic
from ddlnb.compression.sparse import ENTRY_BYTES, Sparsifier, kept, largest_entries, total_of
from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import AllGather, Flow, made_once

VELOCITY, UNSENT, ROUNDS = "velocity", "unsent", "rounds"
FIRST_DENSITY = 0.25  # the warm-up starts here, section 3.3


@dataclass(frozen=True)
class DeepGradientCompression(Sparsifier):
    """A share ``density`` of the entries travels after ``warm_up`` rounds; before, up to a quarter.

    A round is one average. Rounds are counted in the memory, since local SGD has fewer of them
    than steps. ``clip`` bounds the norm of the average gradient as clipping without compression
    does where gradients are independent: every worker clips its own to ``clip`` sqrt(n), which is
    the paper's ``clip`` / sqrt(n) of gradients divided by n, per tensor that is compressed. With
    ``masking`` the velocity of entries that were sent restarts at zero; at density 1 that leaves
    plain SGD, and without it momentum SGD remains.
    """

    density: float = 0.001
    momentum: float = 0.9
    clip: float | None = None
    warm_up: int = 0
    masking: bool = True

    name = "dgc"
    # Velocity, sum and both masks; top-k of the sum.
    on_gpu = OnGpu(Passes(18, 84), Passes(2, 4))
    feedback = "refused"
    why_no_feedback = "it keeps what was not sent itself"
    why_no_payload = "its payloads are longer while it warms up, and servers know one length"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, f"momentum {self.momentum!r} must be from 0 to below 1")
        require(
            self.clip is None or self.clip > 0,
            f"clip {self.clip!r} must be a norm above 0, or None for no clipping",
        )
        require_whole(0, warm_up=self.warm_up)

    @property
    def own_momentum(self) -> float:
        """The momentum that the optimizer must not apply again."""
        return self.momentum

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        """Return the paper's ratios, of whole trainings with other codings than ours."""
        return Quote(270, 600, KNOWN)

    def density_after(self, rounds: int) -> float:
        """Return the density after this number of rounds: it falls exponentially from a quarter.

        >>> dgc = DeepGradientCompression(1 / 1024, warm_up=4)
        >>> [1 / dgc.density_after(rounds) for rounds in range(6)]
        [4.0, 16.0, 64.0, 256.0, 1024.0, 1024.0]
        """
        if rounds >= self.warm_up or self.density >= FIRST_DENSITY:
            return self.density
        return FIRST_DENSITY * (self.density / FIRST_DENSITY) ** (rounds / self.warm_up)

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        flat = self._clipped(tensor.detach().flatten(), round_.workers)
        velocity = memory.setdefault(VELOCITY, torch.zeros_like(flat))
        unsent = memory.setdefault(UNSENT, torch.zeros_like(flat))
        velocity.mul_(self.momentum).add_(flat)
        unsent.add_(velocity)
        rounds = memory.get(ROUNDS, 0)
        entries = largest_entries(unsent, kept(self.density_after(rounds), len(flat)))
        memory[ROUNDS] = rounds + 1
        unsent[entries.indices] = 0
        if self.masking:
            velocity[entries.indices] = 0
        payloads = yield AllGather(entries.payload())
        total = made_once(payloads, lambda: total_of(payloads, len(flat)))
        sent = entries.dense(len(flat))
        return Averaged((total / round_.workers).view_as(tensor), sent.view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        """Return the requests of a round after the warm-up."""
        count = kept(self.density, math.prod(shape))
        return [Traffic(AllGather, ENTRY_BYTES * count)]

    def _clipped(self, flat: Tensor, workers: int) -> Tensor:
        if self.clip is None:
            return flat
        allowed = self.clip * math.sqrt(workers)
        norm = flat.norm().item()
        return flat * (allowed / norm) if norm > allowed else flat
