"""Compressors: how n workers average a tensor with less traffic, and how much less.

A compressor is a frozen dataclass of its parameters. It owns no memory and does no communication:
what it must remember is kept for it in a dictionary, what it must send it yields as requests
(`ddlnb.plans.requests`). So one definition serves every executor, and error feedback stays outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ddlnb.choices import shown
from ddlnb.compression.literature import NONE, Bound, Quote
from ddlnb.plans.requests import AllGather, Flow, made_once
from ddlnb.seeding import generator

Memory = dict[str, Any]  # what one worker remembers of one piece; empty at first


class Averaged(NamedTuple):
    """The average that all workers agree on, and what this worker contributed to it.

    The mean of ``sent`` over the workers is ``average``, up to the rounding of sums in the number
    format that travels; error feedback keeps the rest.
    """

    average: Tensor
    sent: Tensor


@dataclass(frozen=True)
class Round:
    """One average: who takes part, and what random numbers are drawn from."""

    rank: int
    workers: int
    step: int
    piece: int = 0
    seed: int = 0

    def own(self) -> torch.Generator:
        """Return random numbers that differ between workers, steps and pieces."""
        return generator(self.seed, self.step, self.piece, self.rank + 1)

    def shared(self) -> torch.Generator:
        """Return random numbers that are the same on all workers."""
        return generator(self.seed, self.step, self.piece, 0)


class Traffic(NamedTuple):
    """One request that a compressor makes: its type in `ddlnb.plans.requests`, and its bytes.

    Bytes are those of the tensor of an AllReduce, of one payload of an AllGather, and of all
    payloads that the busiest worker sends in Messages.
    """

    request: type
    bytes: int


class Compressor(ABC):
    """A lossy way to average.

    ``family`` is one of `ddlnb.compression.literature.FAMILIES`, and empty only for what carries
    other compressors. ``why_no_feedback`` gives the reason where error feedback is refused,
    ``why_no_payload`` the reason why a compressor is no `Codec`.
    """

    name: ClassVar[str]
    family: ClassVar[str] = ""
    why_no_feedback: str = ""
    why_no_payload: str = ""

    @property
    @abstractmethod
    def feedback(self) -> str:
        """Whether error feedback is "needed" to converge, "optional", or "refused"."""

    @property
    def own_momentum(self) -> float:
        """The momentum that the compressor applies before it compresses."""
        return 0.0

    @abstractmethod
    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Yield requests and return `Averaged`, its tensors of the given shape and dtype.

        The given tensor has any shape and is not written to.
        """

    @abstractmethod
    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        """Return the requests that averaging float32 tensors of this shape makes, in order."""

    @property
    def needs_shapes(self) -> bool:
        """Whether what is sent depends on the shape of a tensor, and not on its elements alone."""
        return False

    def for_pieces(self, pieces: int) -> tuple[Compressor, ...]:
        """Return the compressor of each piece of a model: this one, unless pieces differ."""
        return (self,) * pieces

    def for_whole_model(self) -> Compressor:
        """Return the form of this compressor that suits the vector of a whole model."""
        return self

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote | None:
        """Return the ratio that is quoted for a matrix of this shape; None if none is."""
        return None

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return what theory allows this compressor to lose of a tensor that is not all zero."""
        return Bound(math.inf, NONE, "none is declared")

    def __str__(self) -> str:
        return shown(self.name, self)


class Encoder(Compressor):
    """A compressor that makes one payload of a tensor, which a parameter server can take."""

    def for_pieces(self, pieces: int) -> tuple[Encoder, ...]:
        """Return encoders, as for every compressor."""
        return (self,) * pieces

    @abstractmethod
    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the payload: a flat uint8 tensor of exactly `payload_bytes`."""

    @abstractmethod
    def payload_bytes(self, elements: int) -> int:
        """Return the length of a payload, which depends on the number of elements only."""


class Voting(Encoder):
    """A compressor whose payloads are votes: a server counts them and answers with the outcome.

    The answer is a payload like those that are pushed, so that both ways are compressed.
    """

    @abstractmethod
    def tally(self, payloads: Sequence[Tensor], elements: int, draw: torch.Generator) -> Tensor:
        """Return the payload of the outcome; ``draw`` decides what the votes leave open."""

    @abstractmethod
    def outcome(self, payload: Tensor, elements: int) -> Tensor:
        """Return the flat float32 tensor that the payload of an outcome stands for."""


class Codec(Encoder):
    """A compressor that turns a tensor into bytes, and bytes into a tensor.

    Its payloads can travel anywhere: to all workers, to a parameter server, to neighbours.
    """

    def for_pieces(self, pieces: int) -> tuple[Codec, ...]:
        """Return codecs, as for every compressor."""
        return (self,) * pieces

    @abstractmethod
    def decode(self, payload: Tensor, elements: int) -> Tensor:
        """Return the flat float32 tensor that a payload stands for."""

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Gather all payloads on all workers, and average what they stand for in rank order."""
        payload = self.encode(tensor, round_, memory)
        payloads = yield AllGather(payload)
        average = made_once(payloads, lambda: self._average(payloads, tensor.numel()))
        sent = self.decode(payload, tensor.numel())
        return Averaged(average.view_as(tensor), sent.view_as(tensor))

    def _average(self, payloads: Sequence[Tensor], elements: int) -> Tensor:
        total = torch.zeros(elements)
        for theirs in payloads:
            self.add(theirs, total)
        return total / len(payloads)

    def add(self, payload: Tensor, total: Tensor) -> None:
        """Add what a payload stands for to a flat float32 tensor, without decoding if possible."""
        total += self.decode(payload, len(total))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllGather, self.payload_bytes(math.prod(shape)))]


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as flat uint8, not copied if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)
