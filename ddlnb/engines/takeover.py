"""What a job needs to plan anew, and what its report says of the plans that took over."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.search.space import Space
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class Replanning:
    """What a job needs to plan anew.

    ``window`` timed iterations lie between two meetings; the search takes at most
    ``search_seconds``, during which all ranks wait. ``scale`` is that of a slowed network.
    """

    workload: Workload
    space: Space
    window: int
    search_seconds: float = 2.0
    scale: float = 1.0


@dataclass(frozen=True)
class Meeting:
    """A meeting of all ranks before ``iteration``, and for how many seconds it kept this one.

    ``drifted`` says whether the cost of an all-reduce was measured, and a plan searched for it.
    """

    iteration: int
    seconds: float
    drifted: bool


@dataclass(frozen=True)
class Takeover:
    """A plan that took over before ``iteration``, counted from 0 and warm-up included.

    ``cost`` is that of the all-reduce it was searched for, in real seconds.
    """

    iteration: int
    digest: str
    messages: int
    cost: AlphaBeta

    def __str__(self) -> str:
        return f"{self.digest} from iteration {self.iteration}"
