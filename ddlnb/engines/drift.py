"""Tells a network that drifts from noise, by the seconds of iterations alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

THRESHOLD = 1.5  # times as long, or as short, as under the network that was planned for
SPREAD = 3  # of the median deviations of the first window; medians of noise stay within


class Drift:
    """Compares windows of iterations with the first one that it is shown.

    There is drift where the median of a window is over ``THRESHOLD`` times the first window's or
    under its inverse, and further from it than ``SPREAD`` times the median deviation within the
    first, as ratios. Single iterations that take long, however long, move no median.

    >>> drift = Drift()
    >>> drift.found([0.10, 0.11, 0.12]), drift.found([0.11, 0.12, 9.0]), drift.found([0.2] * 3)
    (False, False, True)
    """

    def __init__(self) -> None:
        self._first: Sequence[float] = ()

    def found(self, seconds: Sequence[float]) -> bool:
        """Return whether a window of iterations, in seconds, is unlike the first."""
        if not self._first:
            self._first = tuple(seconds)
            return False
        now, before = statistics.median(seconds), statistics.median(self._first)
        deviation = statistics.median(abs(math.log(one / before)) for one in self._first)
        return abs(math.log(now / before)) > max(math.log(THRESHOLD), SPREAD * deviation)
