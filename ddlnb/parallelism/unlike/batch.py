"""How to share a batch among workers of unlike speed, and what their gradients weigh."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from ddlnb.errors import InputError, require_positive, require_whole


def share_batch(samples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the samples of every worker that let the slowest one end as early as possible.

    ``speeds`` are samples per second, in any unit. In BSP an iteration takes as long as its slowest
    worker (arXiv 2404.06114, heterogeneity). Who could end a next sample first gets it: with times
    that grow with every sample no other sharing ends earlier. A worker that is slow enough gets
    none. Exact, as speeds are taken for fractions. Raises InputError for no workers, and for
    numbers that are not above 0.

    >>> share_batch(10, [2.5, 1.0])
    (7, 3)
    """
    require_whole(samples=samples)
    if not speeds:
        raise InputError("there are no workers to share the batch; give their speeds")
    for speed in speeds:
        require_positive(speed=speed)
    exact = [Fraction(speed) for speed in speeds]
    ideal = samples / sum(exact)  # the seconds that nobody can beat
    shares = [math.floor(ideal * speed) for speed in exact]
    ends = [
        ((share + 1) / speed, rank)
        for rank, (share, speed) in enumerate(zip(shares, exact, strict=True))
    ]
    heapq.heapify(ends)
    for _ in range(samples - sum(shares)):
        _, rank = ends[0]
        shares[rank] += 1
        heapq.heapreplace(ends, ((shares[rank] + 1) / exact[rank], rank))
    return tuple(shares)


def equal_shares(samples: int, workers: int) -> tuple[int, ...]:
    """Return the same number of samples for every worker.

    Raises InputError, with the numbers that would do, if they do not divide the batch.

    >>> equal_shares(10, 4)
    Traceback (most recent call last):
    ddlnb.errors.InputError: 4 workers do not divide a batch of 10; take 8 or 12, or shares by speed
    """
    require_whole(samples=samples, workers=workers)
    each, left = divmod(samples, workers)
    if left:
        below = f"{each * workers} or " if each else ""
        raise InputError(
            f"{workers} workers do not divide a batch of {samples}; take {below}"
            f"{(each + 1) * workers}, or shares by speed"
        )
    return (each,) * workers


def gradient_weights(shares: Sequence[int]) -> tuple[float, ...]:
    """Return what the mean gradient of every worker weighs in that of all samples.

    The mean of all samples is the sum of weight times mean: a plain average of the workers would
    count samples of small shares for more. Raises InputError if nobody has a sample.

    >>> gradient_weights((6, 2))
    (0.75, 0.25)
    """
    total = sum(shares)
    if total <= 0 or min(shares) < 0:
        raise InputError(f"shares {tuple(shares)} hold no samples; one must be above 0, none below")
    return tuple(share / total for share in shares)


def slowest_seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Return the seconds of the slowest worker, which are those of all in BSP.

    >>> slowest_seconds((5, 5), [2.5, 1.0])
    5.0
    """
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
