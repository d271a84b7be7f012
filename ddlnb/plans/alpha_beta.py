"""The seconds of an exchange that a plan assumes, in closed form, and the fit of alpha and beta.

Symbols: n workers, M message bytes, a latency seconds of one point-to-point message, b seconds
per byte. Formulas: survey of Shi et al. 2020 (section 2) and the cost table of Thakur et al. 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlnb.errors import require
from ddlnb.units import gigabits_per_second, show_seconds


@dataclass(frozen=True)
class AlphaBeta:
    """The time of one primitive as a + b M: latency seconds and seconds per byte.

    Of the latency, ``occupied_share`` holds up the next message, and the rest passes while the next
    one is sent (the gap and the latency of LogP: Culler et al. 1993); 1 where this was not
    measured. Raises InputError for a term that is negative or not finite, and for a share that is
    not in 0 to 1.

    >>> import ddlnb
    >>> cost = ddlnb.plans.AlphaBeta(latency_seconds=1e-3, seconds_per_byte=1e-9)
    >>> print(cost)
    1 ms + M / (8 Gb/s)
    >>> cost.seconds(1_000_000)
    0.002
    """

    latency_seconds: float
    seconds_per_byte: float
    occupied_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("latency_seconds", "seconds_per_byte"):
            value = getattr(self, name)
            require(0 <= value < float("inf"), f"{name} {value} must be finite and not negative")
        share = self.occupied_share
        require(0 <= share <= 1, f"occupied_share {share} must be between 0 and 1")

    def seconds(self, message_bytes: float) -> float:
        """Return the seconds for a message of this many bytes.

        >>> AlphaBeta(1e-3, 1e-9).seconds(1_000_000)
        0.002
        """
        return self.latency_seconds + self.seconds_per_byte * message_bytes

    @property
    def bytes_per_second(self) -> float:
        """Asymptotic bandwidth; infinite when a byte costs nothing."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else float("inf")

    @property
    def half_peak_bytes(self) -> float:
        """Message size a / b that reaches half of the asymptotic bandwidth."""
        return self.latency_seconds * self.bytes_per_second

    def __str__(self) -> str:
        gigabits = gigabits_per_second(self.bytes_per_second)
        return f"{show_seconds(self.latency_seconds)} + M / ({gigabits:.3g} Gb/s)"


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """Return the a + b M with the least squared *relative* error, neither term negative.

    Relative, because a fit of absolute errors is blind to the small messages that decide the
    latency. Raises InputError for fewer than two different sizes.

    >>> print(fit_alpha_beta([1e3, 1e6], [1.001e-3, 2e-3]))
    1 ms + M / (8 Gb/s)
    """
    import numpy as np
    from scipy.optimize import nnls

    require(len(sizes) == len(seconds), f"{len(sizes)} sizes but {len(seconds)} durations")
    require(len(set(sizes)) >= 2, f"sizes {list(sizes)} must hold at least two different values")
    size, time = np.asarray(sizes, float), np.asarray(seconds, float)
    require(bool((time > 0).all()), "durations must be positive")
    scale = size.max()
    columns = np.stack([np.ones_like(size), size / scale], axis=1) / time[:, None]
    (latency, slope), _ = nnls(columns, np.ones_like(time))
    return AlphaBeta(float(latency), float(slope / scale))


def ring_all_reduce(link: AlphaBeta, workers: int) -> AlphaBeta:
    """Ring all-reduce: 2 (n-1) steps of M / n bytes each.

    >>> print(ring_all_reduce(AlphaBeta(1e-4, 1e-9), 4))
    600 us + M / (5.33 Gb/s)
    """
    steps = 2 * (workers - 1)
    return AlphaBeta(steps * link.latency_seconds, steps / workers * link.seconds_per_byte)


def push_pull(link: AlphaBeta, workers: int, servers: int = 1) -> AlphaBeta:
    """Push to k servers on machines of their own, and pull: 2 a + max(M, n M / k) b.

    Pushes and pulls use the two directions of a link, so each counts once; n / k of a message cross
    the link of every server.

    >>> print(push_pull(AlphaBeta(1e-4, 1e-9), workers=4, servers=2))
    200 us + M / (4 Gb/s)
    """
    crossing = max(1.0, workers / servers)
    return AlphaBeta(2 * link.latency_seconds, crossing * link.seconds_per_byte)


def ring_bytes_sent(message_bytes: int, workers: int) -> float:
    """Bytes that one worker sends in a ring all-reduce, 2 (n-1) / n M.

    >>> ring_bytes_sent(1000, 4)
    1500.0
    """
    return 2 * (workers - 1) / workers * message_bytes


def tree_levels(ranks: int) -> int:
    """Return the levels of a binary tree over the ranks, below its root.

    >>> tree_levels(1), tree_levels(5), tree_levels(8)
    (0, 3, 3)
    """
    return max(0, ranks - 1).bit_length()


def double_tree_share(ranks: int) -> float:
    """Return how often the busiest rank of a double binary tree sends the message.

    Each tree has half of it. A rank with two children in one tree, and a parent, is a leaf of the
    other; of two ranks each is the root of one tree and the leaf of the other.

    >>> [double_tree_share(ranks) for ranks in (1, 2, 3, 4, 64)]
    [0.0, 1.0, 1.5, 2.0, 2.0]
    """
    return {1: 0.0, 2: 1.0, 3: 1.5}.get(ranks, 2.0)
