"""Virtual time: what a gradient and a message cost in lockstep execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlnb.training.links import Link


def _one_second(rank: int, step: int, workers: int) -> float:
    return 1.0


def _nothing(kind: type, bytes_: int, workers: int) -> float:
    return 0.0


def _of_the_sender(sender: int, receiver: int) -> Link:
    return Link(sender)


@dataclass(frozen=True)
class Clock:
    """Seconds of computation by (rank, step, workers), of communication by (request type, bytes,
    workers).

    Bytes are those of the tensor of an AllReduce and of one payload of an AllGather. A PushPull is
    asked for twice: for the bytes up and for those down. Messages take what their links do, by
    (sender, receiver). By default a gradient takes a second and communication no time.
    """

    compute: Callable[[int, int, int], float] = _one_second
    communicate: Callable[[type, int, int], float] = _nothing
    link: Callable[[int, int], Link] = _of_the_sender
