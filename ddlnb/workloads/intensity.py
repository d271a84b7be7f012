"""Model intensity and the communication-to-computation ratio (survey, section 2)."""

from __future__ import annotations

from ddlnb.errors import require
from ddlnb.workloads.workload import Workload

FLOPS_PER_MAC = 2  # workloads count a multiply and an add; FMA = 1 counts them as one


def intensity(workload: Workload, flops_per_fma: int = 1) -> float:
    """FLOPs per parameter and sample, forward and backward as counted; an FMA is 1 by default."""
    require(flops_per_fma in (1, 2), f"an FMA counts as 1 or 2 FLOPs, not {flops_per_fma}")
    work = workload.flops / FLOPS_PER_MAC * flops_per_fma
    return work / workload.local_batch / workload.parameters


def c2c(intensity: float, batch: int, traffic: float = 1.0) -> float:
    """Communication per computation, D f(n) / (batch C) = f(n) / (batch I).

    ``traffic`` is f(n): how many times its D parameters a worker sends with n workers.

    >>> c2c(248, batch=8) / c2c(249, batch=64)  # doctest: +ELLIPSIS
    8.03...
    """
    require(intensity > 0, f"intensity {intensity} must be positive")
    require(batch >= 1, f"batch {batch} must be at least 1")
    return traffic / (batch * intensity)
