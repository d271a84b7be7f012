"""Samples and layers shared among workers: evenly, or so that those of other speed end together.

A micro batch takes t_s seconds on stage s of a pipeline, its forward and backward pass together.
One micro batch alone takes their sum, and every further one the slowest stage: m of them take
sum(t) + (m - 1) max(t), exactly so under GPipe.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require, require_positive, require_whole


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
    require(bool(speeds), "there are no workers to share the batch; give their speeds")
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
    ddlnb.errors.InputError: 4 workers do not divide a batch of 10; take 8 or 12
    """
    require_whole(samples=samples, workers=workers)
    each, left = divmod(samples, workers)
    if left:
        below = f"{each * workers} or " if each else ""
        raise InputError(
            f"{workers} workers do not divide a batch of {samples}; take {below}"
            f"{(each + 1) * workers}"
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
    require(
        total > 0 and min(shares) >= 0,
        f"shares {tuple(shares)} hold no samples; one must be above 0, none below",
    )
    return tuple(share / total for share in shares)


def slowest_seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Return the seconds of the slowest worker, which are those of all in BSP.

    >>> slowest_seconds((5, 5), [2.5, 1.0])
    5.0
    """
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))


Numbers = NDArray[np.float64]


def cut_layers(
    costs: Sequence[float],
    speeds: Sequence[float],
    micro_batches: int,
    sizes: Sequence[float] = (),
    room: Sequence[float] = (),
) -> tuple[int, ...]:
    """Return how many layers each stage holds for the shortest iteration, at least one each.

    ``costs`` are of every layer in order, ``speeds`` of the GPU of every stage in order, in units
    that divide to seconds. For every possible slowest stage, from the quickest on, dynamic
    programming finds the least sum of stages that are no slower; it stops once no slower one can
    pay. ``sizes`` are the bytes of every layer, of which stages hold no more than their ``room``,
    if any cut does that. Raises InputError for more stages than layers, and numbers that are not.

    >>> cut_layers([1.0] * 9, [2.0, 1.0], micro_batches=8)
    (6, 3)
    >>> cut_layers([1.0] * 9, [2.0, 1.0], micro_batches=8, sizes=[1.0] * 9, room=[5.0, 5.0])
    (5, 4)
    """
    _check(costs, speeds, micro_batches)
    ends = np.concatenate([[0.0], np.cumsum(costs)])
    whole = ends[None, :] - ends[:, None]  # the cost of layers i to j - 1
    allowed = np.arange(len(ends))[:, None] < np.arange(len(ends))[None, :]
    stages = [np.where(allowed, whole / speed, np.inf) for speed in speeds]
    if len(sizes) or len(room):
        require(
            len(sizes) == len(costs) and len(room) == len(speeds),
            f"{len(sizes)} sizes and {len(room)} rooms do not fit {len(costs)} layers on "
            f"{len(speeds)} stages; give one for each",
        )
        held = np.concatenate([[0.0], np.cumsum(sizes)])
        bytes_held = held[None, :] - held[:, None]
        within = [
            np.where(bytes_held <= most, one, np.inf)
            for one, most in zip(stages, room, strict=True)
        ]
        stages = within if np.isfinite(_quickest(within)) else stages
    times = np.unique(np.concatenate([one[np.isfinite(one)] for one in stages]))
    least_sum = ends[-1] / max(speeds)
    best, found = np.inf, None
    for slowest in times[np.searchsorted(times, _quickest(stages)) :]:
        if least_sum + (micro_batches - 1) * slowest >= best:
            break
        total, cut = _least_sum(stages, float(slowest))
        seconds = total + (micro_batches - 1) * slowest
        if seconds < best:
            best, found = seconds, cut
    assert found is not None  # the quickest slowest stage has a cut
    return found


def stage_seconds(
    costs: Sequence[float], speeds: Sequence[float], cut: Sequence[int]
) -> tuple[float, ...]:
    """Return the seconds of every stage that holds so many layers.

    >>> stage_seconds([1.0] * 9, [2.0, 1.0], (6, 3))
    (3.0, 3.0)
    """
    require(
        sum(cut) == len(costs) and len(cut) == len(speeds),
        f"the cut {tuple(cut)} must hold {len(costs)} layers in {len(speeds)} stages",
    )
    ends = np.cumsum([0, *cut])
    return tuple(
        float(sum(costs[first:stop]) / speed)
        for first, stop, speed in zip(ends[:-1], ends[1:], speeds, strict=True)
    )


@lru_cache(maxsize=4096)
def even_partition(layers: int, parts: int) -> tuple[int, ...]:
    """Return how many layers each part holds: one more in later parts where some are left over.

    But never in the last one, which has the head.

    >>> even_partition(30, 4)
    (7, 8, 8, 7)
    """
    each, left = divmod(layers, parts)
    counts = [each] * parts
    for extra in range(left):
        counts[-2 - extra if parts > 1 else 0] += 1
    return tuple(counts)


def _quickest(stages: Sequence[Numbers]) -> float:
    """Return the seconds of the slowest stage in the cut where it is quickest."""
    best = stages[0][0]
    for one in stages[1:]:
        best = np.maximum(best[:, None], one).min(axis=0)
    return float(best[-1])


def _least_sum(stages: Sequence[Numbers], slowest: float) -> tuple[float, tuple[int, ...]]:
    """Return the least sum of stages none of which takes longer than this, and its cut."""
    fits = [np.where(one <= slowest, one, np.inf) for one in stages]
    best, chosen = fits[0][0], []
    for one in fits[1:]:
        sums = best[:, None] + one
        chosen.append(sums.argmin(axis=0))
        best = sums.min(axis=0)
    ends = [len(best) - 1]
    for starts in reversed(chosen):
        ends.append(int(starts[ends[-1]]))
    return float(best[-1]), tuple(int(n) for n in np.diff([0, *reversed(ends)]))


def _check(costs: Sequence[float], speeds: Sequence[float], micro_batches: int) -> None:
    require_whole(micro_batches=micro_batches)
    require(bool(speeds), "there are no stages; give the speeds of their GPUs")
    for speed in speeds:
        require_positive(speed=speed)
    require(
        min(costs, default=0.0) >= 0 and np.isfinite(np.asarray(costs, dtype=float)).all(),
        f"costs of layers {list(costs)} must be numbers from 0",
    )
    require(
        len(speeds) <= len(costs),
        f"{len(speeds)} stages are more than the {len(costs)} layers; use at most {len(costs)} "
        f"GPUs, or a model of at least {len(speeds)} layers",
    )
