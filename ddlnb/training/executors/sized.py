"""Compressors reduced to the sizes of what they send, for runs without values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    Averaged,
    Codec,
    Compressor,
    Encoder,
    Memory,
    Round,
    Traffic,
    Voting,
)
from ddlnb.compression.gtop_k import tree
from ddlnb.plans.requests import AllGather, AllReduce, Flow, Messages

ROUNDS = "rounds"


@dataclass(frozen=True)
class Sized(Compressor):
    """Makes the requests of compressor ``of``, with payloads of its sizes and no contents.

    What a compressor sends as Messages is taken to go up a binary tree of the workers and back.
    """

    of: Compressor

    name = "sized"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Return the tensor itself, after the requests of the compressor."""
        _count_round(memory)
        up, down = tree(round_.rank, round_.workers)
        steps = iter([*up, *down])
        for request, size in self.traffic(tuple(tensor.shape), round_.workers):
            payload = _bytes(size)
            if request is AllReduce:
                yield AllReduce(payload)
            elif request is AllGather:
                yield AllGather(payload)
            else:
                outgoing, incoming = next(steps)
                yield Messages(dict.fromkeys(outgoing, payload), dict.fromkeys(incoming, size))
        return Averaged(tensor, tensor)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return self.of.traffic(shape, workers)

    def for_pieces(self, pieces: int) -> tuple[Compressor, ...]:
        return tuple(map(sized, self.of.for_pieces(pieces)))


@dataclass(frozen=True)
class SizedEncoder(Sized, Encoder):
    """`Sized`, of what makes payloads."""

    of: Encoder

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        _count_round(memory)
        return _bytes(self.payload_bytes(tensor.numel()))

    def payload_bytes(self, elements: int) -> int:
        return self.of.payload_bytes(elements)

    def for_pieces(self, pieces: int) -> tuple[Encoder, ...]:
        return (self,) * pieces


@dataclass(frozen=True)
class SizedVoting(SizedEncoder, Voting):
    """`Sized`, of what makes votes."""

    of: Voting

    def tally(self, payloads: Sequence[Tensor], elements: int, draw: torch.Generator) -> Tensor:
        return _bytes(self.payload_bytes(elements))

    def outcome(self, payload: Tensor, elements: int) -> Tensor:
        return torch.empty(elements, device="meta")


@dataclass(frozen=True)
class SizedCodec(SizedEncoder, Codec):
    """`Sized`, of a codec."""

    of: Codec

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return torch.empty(elements, device="meta")

    def for_pieces(self, pieces: int) -> tuple[Codec, ...]:
        return tuple(map(SizedCodec, self.of.for_pieces(pieces)))


def sized(compressor: Compressor) -> Compressor:
    """Return the compressor's sizes without its work."""
    if isinstance(compressor, Voting):
        return SizedVoting(compressor)
    return SizedCodec(compressor) if isinstance(compressor, Codec) else Sized(compressor)


def rounds(memory: Memory) -> int:
    """Return how often the piece with this memory was compressed."""
    return int(memory.get(ROUNDS, 0))


def _count_round(memory: Memory) -> None:
    memory[ROUNDS] = rounds(memory) + 1


def _bytes(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="meta")
