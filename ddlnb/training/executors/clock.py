"""Virtual time: what a gradient and a message cost in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlnb.training.executors.links import Link


def _one_second(rank: int, step: int, workers: int) -> float:
    return 1.0


def _no_time(request: type, bytes_: int, workers: int) -> float:
    return 0.0


def _link_of_sender(sender: int, receiver: int) -> Link:
    return Link(sender)


@dataclass(frozen=True)
class Clock:
    """Seconds of everything that takes time in lockstep.

    ``compute(rank, step, workers)`` is the time of a gradient, ``communicate(request type, bytes,
    workers)`` that of a request; bytes are those of the tensor of an AllReduce and of one payload
    of an AllGather. A PushPull is asked for twice: for the bytes up and for those down. Messages
    take what their ``link(sender, receiver)`` takes. By default a gradient takes a second and
    communication no time.
    """

    compute: Callable[[int, int, int], float] = _one_second
    communicate: Callable[[type, int, int], float] = _no_time
    link: Callable[[int, int], Link] = _link_of_sender
