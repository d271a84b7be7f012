"""How the learning rate changes during a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ddlnb.choices import one_of, parsed, shown
from ddlnb.errors import UnknownName, require, require_whole

DECAYS = ("none", "cosine")


class RateSchedule(ABC):
    """A factor for the learning rate, step by step."""

    name: ClassVar[str]

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step, counted from one, of a run of ``steps``."""

    @property
    def rising_steps(self) -> int:
        """Steps until the full rate."""
        return 0

    def require_fits(self, steps: int, what: str = "the run") -> None:
        """Raise InputError for a run that ends before the rate has risen to its full height."""
        require(
            self.rising_steps <= steps,
            f"schedule {self} rises over {self.rising_steps} steps, and {what} has {steps}: it "
            f"would never reach its rate; take a shorter warm-up or more steps",
        )

    def __str__(self) -> str:
        return shown(self.name, self)


@dataclass(frozen=True)
class Constant(RateSchedule):
    """The same rate at every step."""

    name = "constant"

    def factor(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmUp(RateSchedule):
    """A linear rise over the first ``over`` steps, then constant (Goyal et al. 2017)."""

    over: int = 50
    name = "warm-up"

    def __post_init__(self) -> None:
        require_whole(over=self.over)

    @property
    def rising_steps(self) -> int:
        return self.over

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, step / self.over)


@dataclass(frozen=True)
class Cosine(RateSchedule):
    """A linear rise over ``warm_up`` steps, then half a cosine (Loshchilov et al. 2017).

    The cosine would reach zero one step after the last, so every step has an effect.
    """

    warm_up: int = 0
    name = "cosine"

    def __post_init__(self) -> None:
        require_whole(0, warm_up=self.warm_up)

    @property
    def rising_steps(self) -> int:
        return self.warm_up

    def factor(self, step: int, steps: int) -> float:
        if step < self.warm_up:
            return step / self.warm_up
        top = max(1, self.warm_up)  # the step of the full rate
        return (1 + math.cos(math.pi * (step - top) / (steps + 1 - top))) / 2


@dataclass(frozen=True)
class LinearScaling(RateSchedule):
    """The rate of one worker times ``times``, for a batch that many times as large.

    The factor rises from one over the first ``over`` steps (Goyal et al. 2017, arXiv 1706.02677,
    sections 2.1 and 2.2). It is constant then or, with a ``decay`` of cosine, falls as `Cosine`.
    """

    times: float = 8.0
    over: int = 50
    decay: str = one_of("none", DECAYS)
    name = "linear-scaling"

    def __post_init__(self) -> None:
        require(self.times >= 1, f"times {self.times!r} must be at least 1")
        require_whole(over=self.over)
        if self.decay not in DECAYS:
            raise UnknownName("decay", self.decay, DECAYS)

    @property
    def rising_steps(self) -> int:
        return self.over

    def factor(self, step: int, steps: int) -> float:
        if step < self.over:
            return 1 + (self.times - 1) * step / self.over
        return self.times * (Cosine(self.over).factor(step, steps) if self.decay != "none" else 1)


SCHEDULES: dict[str, type[RateSchedule]] = {
    kind.name: kind for kind in (Constant, WarmUp, Cosine, LinearScaling)
}


def get_schedule(text: str | RateSchedule) -> RateSchedule:
    """Return the schedule that a text such as ``"warm-up(50)"`` names.

    Raises UnknownName and InputError.

    >>> get_schedule("warm-up(50)").factor(25, 300)
    0.5
    """
    return text if isinstance(text, RateSchedule) else parsed("schedule", text, SCHEDULES)
