"""Tries plans: seconds of a steady iteration, and the quickest plan so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ddlnb.plans.plan import Plan
from ddlnb.progress import Show, bar
from ddlnb.search.sent import Sending
from ddlnb.search.space import Candidate


@dataclass
class Trials:
    """The plans tried so far, and the quickest of them. ``most`` and ``deadline`` end a search."""

    sending: Sending
    most: int
    deadline: float
    progress: Show = None
    evaluated: int = 0
    best_plan: Plan | None = None
    best_seconds: float = float("inf")
    known: dict[Candidate, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bar = bar(total=self.most, unit="plan", progress=self.progress)

    @property
    def is_over(self) -> bool:
        """Whether as many plans were tried as may be, or the time is up."""
        return self.evaluated >= self.most or time.monotonic() > self.deadline

    def plan(self, plan: Plan) -> float:
        """Return the seconds of a plan; inf where iterations do not become alike."""
        seconds = self.sending.seconds(plan)
        self.evaluated += 1
        self._bar.update()
        if seconds < self.best_seconds:
            self.best_plan, self.best_seconds = plan, seconds
            self._bar.set_description(f"{1e3 * self.best_seconds:.4g} ms")
        return seconds

    def candidate(self, one: Candidate) -> float:
        """Return the seconds of a candidate, played once; inf for too many messages."""
        if one not in self.known:
            plan = self.sending.plan(one)
            self.known[one] = float("inf") if plan is None else self.plan(plan)
        return self.known[one]

    def close(self) -> None:
        """End the bar."""
        self._bar.close()
