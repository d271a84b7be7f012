"""Rules of parameter servers that do not wait for everyone, and those that read compressed pushes.

They keep the sum of all updates: workers push updates, changes of the parameters, and are answered
with the sum of all updates since the start. These rules differ in when they answer. A worker that
has pushed k times has a *lead* over the one that has pushed least. All count the *staleness* of
every push: how many updates of other workers were applied since this worker was last answered,
those of the same iteration included. With bound 0 it is (n - 1) / 2 on average, though every worker
computes at the parameters that BSP computes at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from ddlnb.errors import require, require_whole
from ddlnb.plans.server_rules import Rule


class Decoding:
    """Another rule, ``inner``, for pushes that may be compressed: bytes are decoded first.

    Pushes of dtype uint8 are what ``decode`` turns into a tensor; all others pass as they are.
    """

    def __init__(self, inner: Rule, decode: Callable[[torch.Tensor], torch.Tensor]):
        self.inner, self._decode = inner, decode

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Give what the bytes stand for to the inner rule."""
        dense = self._decode(value) if value.dtype == torch.uint8 else value
        self.inner.push(worker, key, clock, dense, now)

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return what the inner rule answers."""
        return self.inner.pull(worker, key, clock)


class Tallying:
    """Another rule, ``inner``, for pushes that may be votes: bytes are counted when all are there.

    Pushes of dtype uint8 are answered with ``tally(payloads in rank order, clock)`` once every
    worker has pushed (majority vote; Bernstein et al. 2019, arXiv 1810.05291); all others pass as
    they are. Workers push either at the same clock.
    """

    def __init__(
        self,
        inner: Rule,
        workers: int,
        tally: Callable[[Sequence[torch.Tensor], int], torch.Tensor],
    ):
        self.inner, self.workers, self._tally = inner, workers, tally
        self._votes: dict[tuple[int, int], dict[int, torch.Tensor]] = defaultdict(dict)
        self._outcomes: dict[tuple[int, int], torch.Tensor] = {}
        self._pulled: dict[tuple[int, int], int] = defaultdict(int)

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Keep a vote, and count when it is the last; give anything else to the inner rule."""
        if value.dtype != torch.uint8:
            self.inner.push(worker, key, clock, value, now)
            return
        votes = self._votes[key, clock]
        votes[worker] = value
        if len(votes) == self.workers:
            payloads = [votes[rank] for rank in range(self.workers)]
            self._outcomes[key, clock] = self._tally(payloads, clock)

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return the outcome, None while votes are missing, or what the inner rule answers."""
        if (key, clock) not in self._votes:
            return self.inner.pull(worker, key, clock)
        if (key, clock) not in self._outcomes:
            return None
        outcome = self._outcomes[key, clock]
        self._pulled[key, clock] += 1
        if self._pulled[key, clock] == self.workers:
            for kept in (self._votes, self._outcomes, self._pulled):
                del kept[key, clock]
        return outcome


class _Updates:
    """The sum of one key, and who has pushed and seen how many updates of it."""

    def __init__(self, workers: int):
        self.total: torch.Tensor | None = None
        self.applied = 0
        self.pushes = [0] * workers
        self.seen = [0] * workers  # updates in the last answer to this worker

    def add(self, worker: int, value: torch.Tensor) -> int:
        """Return the staleness of this push."""
        # A fresh tensor: the last one may still be on its way to a slow worker.
        self.total = value.clone() if self.total is None else self.total + value
        staleness = self.applied - self.seen[worker]
        self.applied += 1
        self.pushes[worker] += 1
        return staleness

    def lead(self, worker: int) -> int:
        return self.pushes[worker] - min(self.pushes)

    def read(self, worker: int) -> torch.Tensor:
        assert self.total is not None
        self.seen[worker] = self.applied
        return self.total


class _SumOfUpdates:
    """Keeps the sum of all updates of every key; ``staleness`` lists that of every push."""

    def __init__(self, workers: int):
        require_whole(workers=workers)
        self.workers = workers
        self.staleness: list[int] = []
        self._updates: dict[int, _Updates] = defaultdict(lambda: _Updates(workers))

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Add the update to the sum."""
        self.staleness.append(self._updates[key].add(worker, value))


class BoundedStaleness(_SumOfUpdates):
    """Answer while no worker is more than ``bound`` iterations behind; None: answer at once.

    Stale synchronous parallel (SSP; Ho et al. 2013), and asynchronous (ASP) without a bound. So
    a worker that computes its iteration i has seen all updates of iterations before i - bound.
    Raises InputError for a bound that is not a whole number.
    """

    def __init__(self, workers: int, bound: int | None):
        super().__init__(workers)
        if bound is not None:
            require_whole(0, bound=bound)
        self.bound = bound

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return the sum of all updates so far, or None while a worker is too far behind."""
        updates = self._updates[key]
        waits = self.bound is not None and updates.lead(worker) > self.bound
        return None if waits else updates.read(worker)


class DynamicBound(_SumOfUpdates):
    """Bounded staleness with a bound between ``low`` and ``high`` (DSSP; Zhao et al. 2019).

    A worker whose push takes its lead beyond ``low`` must wait until it is ``low`` again, now or,
    at the price of staleness, after its lead has grown by r, as far as ``high`` allows (Algorithm
    1). The rule predicts the times of their next pushes from how long the worker and the slowest
    one took between their last answer and push, and grants the r with the shortest wait until the
    slowest worker's next push, the smallest such r (Algorithm 2). Waits are left out of these
    times, or a worker that is held would look as slow as the one that holds it. Without any times
    known there is no extra. In the paper the fastest worker alone asks for more, and others beyond
    the bound wait; here every worker may ask.
    """

    def __init__(self, workers: int, low: int, high: int):
        super().__init__(workers)
        require_whole(0, low=low, high=high)
        require(low <= high, f"low {low} must be at most high {high}; exchange them")
        self.low, self.high = low, high
        self._times: dict[int, list[_Times]] = defaultdict(
            lambda: [_Times(low) for _ in range(workers)]
        )
        self._now = 0.0

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Add the update to the sum, and choose the worker's bound."""
        super().push(worker, key, clock, value)
        updates, times = self._updates[key], self._times[key]
        self._now = now
        own, lead = times[worker], updates.lead(worker)
        own.seconds = now - own.answered
        if lead > own.bound == self.low:
            slowest = times[updates.pushes.index(min(updates.pushes))]
            own.bound += _best_extra(own, slowest, now, self.high - self.low)
        elif lead > own.bound or lead <= self.low:  # what was granted is used, or not needed
            own.bound = self.low

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return the sum of all updates so far, or None while a worker is too far behind."""
        updates, own = self._updates[key], self._times[key][worker]
        if updates.lead(worker) > own.bound:
            return None
        own.answered = self._now
        return updates.read(worker)


class _Times:
    def __init__(self, bound: int):
        self.bound = bound
        self.answered = math.nan  # when
        self.seconds = math.nan  # from there to the next push


def _best_extra(worker: _Times, slowest: _Times, now: float, most: int) -> int:
    """Return the number of iterations, up to the most, after which the worker would wait least."""
    due = slowest.answered + slowest.seconds
    if not (worker.seconds > 0 and slowest.seconds > 0 and math.isfinite(due)):
        return 0
    due = max(now, due)

    def wait(extra: int) -> float:
        pushes = now + extra * worker.seconds
        late = max(0, math.ceil((pushes - due) / slowest.seconds))
        return due + late * slowest.seconds - pushes

    return min(range(most + 1), key=lambda extra: (wait(extra), extra))


class RoundRobin(_SumOfUpdates):
    """Apply and answer pushes in the order of ranks, over and over (R2SP; Chen et al. 2019).

    An early push waits for its turn, so what workers see does not depend on their speed: from the
    second cycle on every push has staleness ``workers`` - 1.
    """

    def __init__(self, workers: int):
        super().__init__(workers)
        self._early: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
        self._answers: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Keep the update, and apply those whose turn it is."""
        updates, early = self._updates[key], self._early[key]
        early[worker] = value
        while (turn := updates.applied % self.workers) in early:
            self.staleness.append(updates.add(turn, early.pop(turn)))
            self._answers[key][turn] = updates.read(turn)

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return the sum of all updates up to this worker's own, or None before its turn."""
        return self._answers[key].pop(worker, None)
