"""Tells a network that drifts from noise, by the seconds of iterations alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

THRESHOLD = 1.5  # times as long, or as short, as under the network that was planned for
CHANCE = 1 / 200  # at most, that noise alone makes two windows as unlike as drift does


class Drift:
    """Compares windows of iterations with the first one that it is shown.

    There is drift where two things hold: the median of a window is over ``THRESHOLD`` times that of
    the first or under its inverse, and the ranks of the seconds of both (Mann and Whitney's U)
    would lie so far apart by chance in one window of 200 at most. The second holds for noise of any
    distribution, as long as iterations are independent of one another: a load that lasts as long
    as a window looks like drift. No single iteration counts for more than its rank.

    >>> drift = Drift()
    >>> drift.found([0.10, 0.11] * 5), drift.found([0.11] * 9 + [9.0]), drift.found([0.2] * 10)
    (False, False, True)
    """

    def __init__(self) -> None:
        self._first: Sequence[float] = ()

    def found(self, seconds: Sequence[float]) -> bool:
        """Return whether a window of iterations, in seconds, is unlike the first."""
        if not self._first:
            self._first = tuple(seconds)
            return False
        ratio = statistics.median(seconds) / statistics.median(self._first)
        return max(ratio, 1 / ratio) > THRESHOLD and chance(self._first, seconds) <= CHANCE


def chance(before: Sequence[float], now: Sequence[float]) -> float:
    """Return how probable windows as unlike as these are, in either direction, if nothing changed.

    Of all pairs of one before and one now, U are slower now; normal approximation of U's
    distribution, ties counted half. H. B. Mann and D. R. Whitney, Annals of Mathematical
    Statistics 18 (1947).

    >>> round(chance([1, 2, 3, 4], [1, 2, 3, 4]), 3), round(chance([1] * 10, [2] * 10), 4)
    (1.0, 0.0002)
    """
    pairs = len(before) * len(now)
    slower = sum((b < n) + 0.5 * (b == n) for b in before for n in now)
    deviation = math.sqrt(pairs * (len(before) + len(now) + 1) / 12)
    return math.erfc(abs(slower - pairs / 2) / deviation / math.sqrt(2))
