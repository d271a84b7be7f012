"""Compressors: how n workers average a tensor with less traffic, and how much less.

A compressor is a frozen dataclass of its parameters. It owns no memory and does no communication:
what it must remember is kept for it in a dictionary, what it must send it yields as requests
(`ddlnb.plans.requests`). So one definition serves every executor, and error feedback stays outside.
It declares what the literature says of it (family, quoted ratio, error bound); the tests compare
that with what it does.

Error feedback keeps what was not sent and adds it to the next tensor (Seide et al. 2014;
Karimireddy et al. 2019, arXiv 1901.09847). It costs as much memory as the gradient on every worker.
The residual is a gradient, as in Seide et al. Algorithm 1 of Karimireddy et al. keeps an update, a
gradient times the learning rate of its step. At a constant rate the two are equal; under a
schedule, what is sent late moves the model here by the rate of the step in which it arrives.

`Payloads` are those of several tensors joined into one, as they travel to a parameter server.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ddlnb.errors import InputError, require
from ddlnb.plans.requests import AllGather, AllReduce, Flow, made_once
from ddlnb.registry import Choice
from ddlnb.seeding import generator

# What travels of a tensor: few bits of every entry, few entries, or few directions.
QUANTISATION, SPARSIFICATION, LOW_RANK = "quantisation", "sparsification", "low rank"
FEEDBACKS = ("needed", "optional", "refused")
FAMILIES = (QUANTISATION, SPARSIFICATION, LOW_RANK)

# The kinds of law that bound an error.
CONTRACTION, UNBIASED, ROUNDING, NONE = "contraction", "unbiased", "rounding", "no bound"

# Where a quote is from: the survey's section, common knowledge of the literature that was not read
# again, or a derivation from the format of the message.
SURVEY, KNOWN, DERIVED = "[A s.3.1.3]", "[k]", "[d]"


@dataclass(frozen=True)
class Quote:
    """How many times fewer bytes a message is said to have than dense float32 numbers.

    The ratio is between ``low`` and ``high``; ``tag`` says where it is from.
    """

    low: float
    high: float
    tag: str

    @classmethod
    def of(cls, ratio: float, tag: str = DERIVED) -> Quote:
        """Return the quote of a single ratio."""
        return cls(ratio, ratio, tag)

    def __str__(self) -> str:
        values = [f"{value:.4g}" for value in dict.fromkeys((self.low, self.high))]
        return f"{' to '.join(values)} {self.tag}"


class Bound(NamedTuple):
    """A bound of the error of one round without memory, averaged over the random draws.

    The mean of |Q(v) - v|^2 is at most ``loss`` times |v|^2, and equal to it if ``exact``.
    """

    loss: float
    law: str
    formula: str
    exact: bool = False


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


class Passes(NamedTuple):
    """Kernels that a GPU starts for one tensor, and bytes that they move for each element of it."""

    kernels: float
    bytes_per_element: float


class OnGpu(NamedTuple):
    """What a compressor does on a GPU before its first request, and with each answer to it.

    An all-reduce has one answer, an all-gather one of every worker.
    """

    encode: Passes
    decode: Passes


class Compressor(Choice):
    """A lossy way to average.

    ``family`` is one of `ddlnb.compression.base.FAMILIES`, and empty only for what carries
    other compressors. ``why_no_feedback`` gives the reason where error feedback is refused,
    ``why_no_payload`` the reason why a compressor is no `Codec`. ``on_gpu`` is None where nobody
    says what it does on a GPU.
    """

    family: ClassVar[str] = ""
    why_no_feedback: str = ""
    why_no_payload: str = ""
    on_gpu: ClassVar[OnGpu | None] = None

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

        The given tensor, of float32, has any shape and is not written to.
        """

    @abstractmethod
    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        """Return the requests that averaging float32 tensors of this shape makes, in order."""

    def averaged(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Average as `average` does. Raises InputError unless it answers with such tensors."""
        found = yield from self.average(tensor, round_, memory)
        require(
            isinstance(found, Averaged) and all(_is_like(one, tensor) for one in found),
            f"compressor {self.name!r} averages {_said(tensor)} to {_said(found)}; return "
            f"Averaged(average, sent), both of its shape and type",
        )
        return found

    def declared_traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        """Return what `traffic` does. Raises InputError for what is no list of requests."""
        found = self.traffic(shape, workers)
        require(
            isinstance(found, list)
            and all(isinstance(one, Traffic) and _is_size(one.bytes) for one in found),
            f"compressor {self.name!r} declares the traffic {found!r} of a tensor of shape "
            f"{shape}; return a list of Traffic(request, bytes), with bytes from 0 on",
        )
        return found

    @property
    def needs_shapes(self) -> bool:
        """Whether what is sent depends on the shape of a tensor, and not on its elements alone."""
        return False

    def codes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape takes any work, or travels whole."""
        return True

    def for_pieces(self, pieces: int) -> tuple[Self, ...]:
        """Return the compressor of each piece of a model: this one, unless pieces differ."""
        return (self,) * pieces

    def of_pieces(self, pieces: int) -> tuple[Self, ...]:
        """Return what `for_pieces` does. Raises InputError for another number of compressors."""
        found = self.for_pieces(pieces)
        require(
            isinstance(found, Sequence) and len(found) == pieces,
            f"compressor {self.name!r} makes {found!r:.60} for {pieces} pieces of a model; let "
            f"for_pieces return a compressor for each",
        )
        return found

    def for_whole_model(self) -> Compressor:
        """Return the form of this compressor that suits the vector of a whole model."""
        return self

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote | None:
        """Return the ratio that is quoted for a matrix of this shape; None if none is."""
        return None

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return what theory allows this compressor to lose of a tensor that is not all zero."""
        return Bound(math.inf, NONE, "none is declared")


class Encoder(Compressor):
    """A compressor that makes one payload of a tensor, which a parameter server can take."""

    @abstractmethod
    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the payload: a flat uint8 tensor of exactly `payload_bytes`."""

    @abstractmethod
    def payload_bytes(self, elements: int) -> int:
        """Return the length of a payload, which depends on the number of elements only."""

    def declared_bytes(self, elements: int) -> int:
        """Return what `payload_bytes` does. Raises InputError for what is no number of bytes."""
        found = self.payload_bytes(elements)
        require(
            isinstance(found, Integral) and found >= 0,
            f"compressor {self.name!r} declares {found!r} bytes for {elements:,} elements; let "
            f"payload_bytes return a whole number from 0 on, such as -(-elements // 8)",
        )
        return int(found)

    def payload_of(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return what `encode` does. Raises InputError for a payload that is none of so many bytes.

        Whoever forecasts and whoever is sent a payload go by what `payload_bytes` declares.
        """
        declared = self.declared_bytes(tensor.numel())
        before = 0 if tensor.is_inference() else tensor._version
        payload = self.encode(tensor, round_, memory)
        require(
            tensor.is_inference() or tensor._version == before,
            f"compressor {self.name!r} writes to the tensor that it encodes, and what it did not "
            f"send would be lost; work on a copy, tensor.clone()",
        )
        require(
            _is_flat(payload, torch.uint8, declared),
            f"compressor {self.name!r} encodes {tensor.numel():,} elements to {_said(payload)}, "
            f"and payload_bytes declares {declared!r} bytes; make both agree (as_bytes makes flat "
            f"bytes of a tensor)",
        )
        return payload


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

    @abstractmethod
    def decode(self, payload: Tensor, elements: int) -> Tensor:
        """Return the flat float32 tensor that a payload stands for."""

    def decoded(self, payload: Tensor, elements: int) -> Tensor:
        """Return what `decode` does. Raises InputError unless it is flat float32 of so many."""
        found = self.decode(payload, elements)
        require(
            _is_flat(found, torch.float32, elements),
            f"compressor {self.name!r} decodes a payload of {elements:,} elements to "
            f"{_said(found)}; return a flat float32 tensor of so many",
        )
        return found

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Gather all payloads on all workers, and average what they stand for in rank order."""
        payload = self.payload_of(tensor, round_, memory)
        payloads = yield AllGather(payload)
        average = made_once(payloads, lambda: self._average(payloads, tensor.numel()))
        sent = self.decoded(payload, tensor.numel())
        return Averaged(average.view_as(tensor), sent.view_as(tensor))

    def _average(self, payloads: Sequence[Tensor], elements: int) -> Tensor:
        total = torch.zeros(elements)
        for theirs in payloads:
            self.add(theirs, total)
        return total / len(payloads)

    def add(self, payload: Tensor, total: Tensor) -> None:
        """Add what a payload stands for to a flat float32 tensor, without decoding if possible."""
        total += self.decoded(payload, len(total))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllGather, self.declared_bytes(math.prod(shape)))]


def _is_flat(found: object, dtype: torch.dtype, count: object) -> bool:
    return isinstance(found, Tensor) and found.dtype == dtype and tuple(found.shape) == (count,)


def _is_size(found: object) -> bool:
    return isinstance(found, Real) and 0 <= float(found) < math.inf


def _is_like(found: object, tensor: Tensor) -> bool:
    if not isinstance(found, Tensor):
        return False
    return (found.shape, found.dtype) == (tensor.shape, tensor.dtype)


def _said(found: object) -> str:
    if isinstance(found, Averaged):
        return f"Averaged({_said(found.average)}, {_said(found.sent)})"
    if isinstance(found, Tensor):
        return f"{found.dtype} of shape {tuple(found.shape)}"
    return f"{found!r:.60}, which is no tensor"


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as flat uint8, not copied if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)


RESIDUAL = "residual"


def average_with_feedback(
    compressor: Compressor, tensor: Tensor, round_: Round, memory: Memory
) -> Flow:
    """Average the tensor plus the residual as the compressor does, and keep what is not sent.

    At every moment what was sent and the residual add up to the sum of the tensors.
    """
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    averaged: Averaged = yield from compressor.averaged(corrected, round_, memory)
    memory[RESIDUAL] = corrected - averaged.sent
    return averaged


def encode_with_feedback(codec: Codec, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
    """Return the payload of the tensor plus the residual, and keep what it does not hold."""
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    payload = codec.payload_of(corrected, round_, memory)
    memory[RESIDUAL] = corrected - codec.decoded(payload, tensor.numel()).view_as(tensor)
    return payload


@dataclass(frozen=True)
class Payloads:
    """The payloads of tensors with these numbers of ``elements``, one after the other.

    Raises InputError for a codec that was made for another number of tensors.
    """

    codec: Any  # an Encoder: a Codec where payloads are decoded, Voting where they are counted
    elements: tuple[int, ...]

    @cached_property
    def codecs(self) -> tuple[Any, ...]:
        """The codec of every tensor."""
        return self.codec.of_pieces(len(self.elements))

    @cached_property
    def sizes(self) -> list[int]:
        """The length of every payload."""
        pairs = zip(self.codecs, self.elements, strict=True)
        return [codec.declared_bytes(elements) for codec, elements in pairs]

    @property
    def payload_bytes(self) -> int:
        """The length of the joined payload."""
        return sum(self.sizes)

    def decode(self, payload: Tensor) -> Tensor:
        """Return the flat float32 tensor that a joined payload stands for.

        Raises InputError for a payload of another length.

        >>> from ddlnb.compression.top_k import TopK
        >>> payloads = Payloads(TopK(0.5), (2, 4))
        >>> payloads.decode(torch.zeros(payloads.payload_bytes, dtype=torch.uint8)).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        """
        triples = zip(self.codecs, self._split(payload), self.elements, strict=True)
        return torch.cat([codec.decoded(part, size) for codec, part, size in triples])

    def tally(self, payloads: Sequence[Tensor], clock: int) -> Tensor:
        """Return the joined payload of the outcome of a vote, the ``clock``-th of all.

        Raises InputError for a payload of another length.
        """
        votes = zip(*map(self._split, payloads), strict=True)  # by piece
        triples = enumerate(zip(self.codecs, votes, self.elements, strict=True))
        return torch.cat(
            [
                codec.tally(of_piece, size, generator(clock, piece))
                for piece, (codec, of_piece, size) in triples
            ]
        )

    def outcome(self, payload: Tensor) -> Tensor:
        """Return the flat float32 tensor that the joined payload of an outcome stands for."""
        triples = zip(self.codecs, self._split(payload), self.elements, strict=True)
        return torch.cat([codec.outcome(part, size) for codec, part, size in triples])

    def _split(self, payload: Tensor) -> list[Tensor]:
        if len(payload) != self.payload_bytes:
            raise InputError(
                f"a payload has {len(payload)} bytes and must have {self.payload_bytes}, those of "
                f"{self.codec} for tensors of {self.elements} elements"
            )
        # A copy is aligned for floats; a slice of bytes need not be.
        return [part.clone() for part in payload.split(self.sizes)]


ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Uncompressed(Codec):
    """One all-reduce of the whole tensor; a payload holds its float32 numbers."""

    name = "uncompressed"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """All-reduce the tensor; all of it is ``sent``, so that feedback keeps zeros."""
        total = yield AllReduce(tensor.detach().flatten().clone())
        return Averaged((total / round_.workers).view_as(tensor), tensor)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllReduce, self.declared_bytes(math.prod(shape)))]

    def error_bound(self, tensor: Tensor) -> Bound:
        return Bound(0.0, CONTRACTION, "nothing is lost", exact=True)

    def payload_bytes(self, elements: int) -> int:
        return ELEMENT_BYTES * elements

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        return as_bytes(tensor.detach()).clone()

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return payload.clone().view(torch.float32)
