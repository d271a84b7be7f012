"""Partition and credit by simulation: the sizes with which a method is quickest on a cluster.

ByteScheduler tunes both for every model and network, by Bayesian optimisation of the speed that it
measures (Peng et al., SOSP 2019, section 5). Simulated seconds have no noise: going downhill finds
what a fine grid finds (`benchmarks.bytescheduler_tuning`) if partitions of all sizes are tried
first, since an all-reduce may change its algorithm with its size.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlnb.errors import InputError
from ddlnb.plans.methods import Method
from ddlnb.workloads.workload import Workload

Sizes = tuple[int, int]  # partition and credit, in bytes

GAIN = 0.01  # of the seconds: less is not worth another size
MOST_PARTS = 1500  # of all gradients, by a partition smaller than the method's own
PARTS = 8  # of a credit, where partitions of all sizes are tried as a start
# What is changed at once, both ways, as powers of two of partition and credit.
MOVES = ((0, 1), (0, 2), (1, 1), (1, 0), (1, 2))


def tuned(
    method: Method, workload: Workload, seconds: Callable[[Method], float], servers: int = 0
) -> Method:
    """Return the method with the partition and credit for which ``seconds`` are few.

    Both are the method's own times powers of two: partitions that cut tensors, or the share of one
    of so many servers, and credits from one partition to all gradients. The result is never slower
    than the method's own sizes. Raises InputError for a method that lacks one of them.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("bert-base_b64_rtx2080ti")
    >>> method = ddlnb.get_method("ByteScheduler-A2A")
    >>> best = tuned(method, workload, lambda one: abs(one.partition_bytes - 30e6))
    >>> best.partition_bytes, best.tunes
    (32000000, False)
    """
    partition, credit = method.partition_bytes, method.credit_bytes
    if partition is None or credit is None:
        raise InputError(
            f"method {method.name!r} has no partition and credit to tune; take a ByteScheduler"
        )
    everything = workload.gradient_bytes
    whole = max(gradient.bytes for gradient in workload.gradients)
    if servers:
        whole = min(whole, -(-everything // servers))
    while partition >= 2 * whole:  # half of it cuts nothing either
        partition //= 2
    while credit >= 2 * max(everything, partition):
        credit //= 2
    least = min(partition, everything // MOST_PARTS)
    known: dict[Sizes, float] = {}

    def cost(sizes: Sizes) -> float:
        if sizes not in known:
            known[sizes] = seconds(method.tuned(partition=sizes[0], credit=sizes[1]))
        return known[sizes]

    def is_tried(sizes: Sizes) -> bool:
        return least <= sizes[0] < 2 * whole and sizes[0] <= sizes[1] < 2 * everything

    best, before = (partition, credit), None
    for power in range(whole.bit_length(), -partition.bit_length(), -1):
        size = int(partition * 2.0**power)
        if is_tried(sizes := (size, PARTS * size)) and cost(sizes) < (1 - GAIN) * cost(best):
            best = sizes
    while best != before:
        before = best
        for move in (move for one in MOVES for move in (one, (-one[0], -one[1]))):
            while is_tried(sizes := _times(best, move)) and cost(sizes) < (1 - GAIN) * cost(best):
                best = sizes
    return method.tuned(partition=best[0], credit=best[1])


def _times(sizes: Sizes, powers: Sizes) -> Sizes:
    """Return the sizes times these powers of two."""
    partition, credit = (int(size * 2.0**power) for size, power in zip(sizes, powers, strict=True))
    return partition, credit
