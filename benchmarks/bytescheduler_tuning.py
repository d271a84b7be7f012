"""ByteScheduler's own search: partition and credit, by Bayesian optimisation (Peng et al. 2019).

Its paper (section 5) tunes two sizes for every model and network: the next pair to try is the one
with the largest expected improvement under a Gaussian process of the seconds of an iteration over
the logarithms of both sizes. Here the seconds are simulated, or whatever ``seconds`` measures.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require, require_whole
from ddlnb.plans.methods import Method
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.units import KIB, MIB
from ddlnb.workloads.workload import Workload

Numbers = NDArray[np.float64]
SMALLEST, LARGEST = 256 * KIB, 64 * MIB  # of a partition
MOST_CREDIT = 16  # partitions in flight
STARTS = 5  # pairs tried before the process is asked
LENGTH = 0.3  # over which seconds stay alike, as a share of the range of a logarithm
NOISE = 1e-3
GRID = 25


@dataclass(frozen=True)
class Tuned:
    """The method with its best sizes, its seconds, and all pairs tried, with theirs."""

    method: Method
    iteration_seconds: float
    tried: tuple[tuple[int, int, float], ...]


def tune(
    method: Method,
    seconds: Callable[[Method], float],
    *,
    trials: int = 20,
    seed: int = 0,
) -> Tuned:
    """Return a method with a partition and a credit, tuned so that ``seconds`` are few.

    Raises InputError for a method without both sizes.

    >>> from ddlnb.plans.methods import METHODS
    >>> best = tune(METHODS["ByteScheduler-A2A"], lambda one: abs(one.partition_bytes - 4e6))
    >>> 2e6 < best.method.partition_bytes < 8e6
    True
    """
    own_partition, own_credit = method.partition_bytes, method.credit_bytes
    require(
        own_partition is not None and own_credit is not None,
        f"method {method.name!r} has no partition and credit to tune; take a ByteScheduler",
    )
    require_whole(trials=trials)
    generator = np.random.default_rng(seed)
    axis = np.linspace(0.0, 1.0, GRID)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert own_partition is not None
    assert own_credit is not None
    tried = [(own_partition, own_credit, seconds(method))]
    points = [_point(own_partition, own_credit)]
    for number in range(trials - 1):
        if number < STARTS:
            point = generator.random(2)
        else:
            values = np.array([taken for _, _, taken in tried])
            point = grid[np.argmax(expected_improvement(np.array(points), values, grid))]
        partition, credit = _sizes(point)
        sized = replace(method, partition_bytes=partition, credit_bytes=credit)
        tried.append((partition, credit, seconds(sized)))
        points.append(point)
    partition, credit, least = min(tried, key=lambda one: one[2])
    best = replace(method, partition_bytes=partition, credit_bytes=credit)
    return Tuned(best, least, tuple(tried))


def tune_on(
    workload: Workload, cluster: Cluster, method: Method, *, trials: int = 20, seed: int = 0
) -> Tuned:
    """Return `tune` with the seconds that the simulator finds on a cluster of alike workers."""
    require(cluster.is_homogeneous, f"tuning plays alike workers, and those of {cluster!r} differ")

    def seconds(one: Method) -> float:
        program = lower(workload, cluster, plan_on(cluster, workload, one), keep=False)
        return play(program).iteration_seconds

    return tune(method, seconds, trials=trials, seed=seed)


def expected_improvement(points: Numbers, values: Numbers, grid: Numbers) -> Numbers:
    """Return by how much each point of a grid is expected to be below the least value.

    A Gaussian process with a squared-exponential kernel is fitted to the standardised values.
    """
    scale = float(values.std()) or 1.0
    standard = (values - values.mean()) / scale
    between = _kernel(points, points) + NOISE * np.eye(len(points))
    across = _kernel(grid, points)
    solved = np.linalg.solve(between, np.column_stack([standard, across.T]))
    mean = across @ solved[:, 0]
    variance = np.maximum(1.0 - np.sum(across * solved[:, 1:].T, axis=1), 1e-12)
    deviation = np.sqrt(variance)
    below = standard.min() - mean
    z = below / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    found: Numbers = below * ndtr(z) + deviation * density
    return found


def _kernel(left: Numbers, right: Numbers) -> Numbers:
    apart = ((left[:, None, :] - right[None, :, :]) / LENGTH) ** 2
    found: Numbers = np.exp(-apart.sum(axis=2) / 2)
    return found


def _sizes(point: Numbers) -> tuple[int, int]:
    partition = SMALLEST * (LARGEST / SMALLEST) ** float(point[0])
    return round(partition), round(partition * MOST_CREDIT ** float(point[1]))


def _point(partition: int, credit: int) -> Numbers:
    first = math.log(partition / SMALLEST) / math.log(LARGEST / SMALLEST)
    second = math.log(max(credit / partition, 1.0)) / math.log(MOST_CREDIT)
    found: Numbers = np.clip(np.array([first, second]), 0.0, 1.0)
    return found
