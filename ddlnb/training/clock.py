"""Virtual time: what a gradient and a message cost in lockstep execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _one_second(rank: int, step: int) -> float:
    return 1.0


def _nothing(kind: type, bytes_: int, workers: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Clock:
    """Seconds of computation by (rank, step), of communication by (request type, bytes, workers).

    Bytes are those of the tensor of an AllReduce, of one payload of an AllGather, and of one
    message among Messages. A PushPull is asked for twice: for the bytes up and for those down. By
    default a gradient takes a second and messages no time.
    """

    compute: Callable[[int, int], float] = _one_second
    communicate: Callable[[type, int, int], float] = _nothing
