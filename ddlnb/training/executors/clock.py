"""Virtual time: what a gradient and a message cost in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlnb.plans.requests import PushPull
from ddlnb.training.executors.links import Link
from ddlnb.training.executors.server_links import Trip

PUSH, PULL, HELD_PULL = "push", "pull", "held pull"  # an answer at once, or one after waiting


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
    of an AllGather. Messages take what their ``link(sender, receiver)`` takes. A PushPull is asked
    for twice, for the bytes up and for those down: ``trip(rank, way, bytes, workers)`` says what
    they take and which links they pass, where way is PUSH, PULL for an answer that comes at once,
    or HELD_PULL for one that its worker was made to wait for; without it they take what
    ``communicate`` says, and share no link. By default a gradient takes a second and communication
    no time.
    """

    compute: Callable[[int, int, int], float] = _one_second
    communicate: Callable[[type, int, int], float] = _no_time
    link: Callable[[int, int], Link] = _link_of_sender
    trip: Callable[[int, str, int, int], Trip] | None = None

    def trip_of(self, rank: int, way: str, bytes_: int, workers: int) -> Trip:
        """Return what a push of this worker, or the answer to it, takes."""
        if self.trip is None:
            return Trip(self.communicate(PushPull, bytes_, workers))
        return self.trip(rank, way, bytes_, workers)
