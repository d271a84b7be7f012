"""Estimate what an iteration of any method costs on a cluster: the one entry of this room."""

from __future__ import annotations

import math
import re

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.profile import FREE, CompressionProfile, compression_profile
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import KeptPlan, method_of
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.workers import Slowness
from ddlnb.training.cost.lockstep import lockstep_cost
from ddlnb.training.cost.overlapped import (
    IterationCost,
    lossless_cost,
    overlapped_cost,
    planned_cost,
    require_all_to_all,
    with_own_plans,
)
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.workloads.roofline import require_same_hardware
from ddlnb.workloads.workload import Workload

BASE = "MG-WFBP"  # the lossless method whose messages BSP sends, unless another is named
STEPS = 24  # simulated iterations of a method that runs in lockstep


def iteration_cost(
    workload: str | Workload,
    cluster: str | Cluster,
    method: str | Method | TrainingMethod | Plan,
    *,
    workers: int | None = None,
    compression: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    overlap: bool = True,
    slower: Slowness | None = None,
    steps: int = STEPS,
) -> IterationCost:
    """Return the seconds and bytes of one iteration of a method, lossless or lossy.

    ``method`` is a row of METHODS ("WFBP-A2A"), a training method ("local(8) + top-k(0.01)"), or a
    plan, the messages of which may be compressed (`ddlnb.search_plan` with ``sent``).
    ``workload`` may be the name of a model with a profile for the cluster's hardware.
    ``workers`` of the cluster take part, by default all. An iteration is one gradient of every
    worker; where workers run at different speeds, as many gradients as there are workers.

    Rows of METHODS are simulated as `ddlnb.simulate` does. So is BSP on A2A, compressed or not:
    its messages leave during the backward pass like those of ``base``, a method that ends in A2A
    and cuts no tensors; one that merges gradients merges them by what is sent and the cluster's
    own cost of it. BSP on PS without compression is WFBP-PS. The loops of all other methods run in
    lockstep, ``steps`` iterations of every worker, rounded up to whole cycles. There workers push
    to servers layer by layer, and all other communication follows the computation. With ``overlap``
    false all of it does.
    ``slower(rank, step, workers)`` multiplies the seconds of a worker's computation, in each of
    ``steps`` iterations. ``compression`` is a profile of what compressing takes, by default
    nothing.

    Raises UnknownName, and InputError for servers that the cluster lacks, a compressor that the
    profile lacks, a base that does not fit, and a synchronisation whose iterations have no one
    cost, as those of post-local SGD.

    >>> import ddlnb
    >>> resnet = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> dense = ddlnb.iteration_cost(resnet, "survey-10GbE", "MG-WFBP", workers=16)
    >>> sparse = ddlnb.iteration_cost(resnet, "survey-10GbE", "bsp + top-k(0.001)", workers=16)
    >>> round(sparse.bytes / dense.bytes, 3)
    0.016
    """
    cluster = get_cluster(cluster, workers)
    workload = workload_on(workload, cluster)
    if isinstance(method, Plan):
        method = method_of(method)
    if not isinstance(method, Method | TrainingMethod):
        method = _named(method)
    if isinstance(method, Method):
        require(
            overlap,
            f"lossless method {method.name} has a schedule of its own; leave out overlap, or ask "
            f"for 'bsp on A2A' or 'bsp on PS'",
        )
        if isinstance(method.planner, KeptPlan) and method.planner.plan.compressed_by:
            profile = compression_profile(compression)
            return planned_cost(workload, cluster, method.planner.plan, profile, slower, steps)
        return lossless_cost(workload, cluster, method, slower, steps)
    require_all_to_all(get_method(base))  # even if this method sends no messages like its
    profile = compression_profile(compression)
    if overlap and method.pushes_gradients and method.compressor is None:
        return lossless_cost(workload, cluster, METHODS["WFBP-PS"], slower, steps)
    if not (overlap and method.overlaps):
        return lockstep_cost(workload, cluster, method, profile, slower, steps, overlap)
    here = with_own_plans(cluster)
    return overlapped_cost(workload, here, method, profile, get_method(base), slower, steps)


def _named(text: object) -> Method | TrainingMethod:
    if not isinstance(text, str):
        raise UnknownName("method", text, [*METHODS, *SYNCHRONISATIONS])
    if text in METHODS:
        return METHODS[text]
    try:
        return training_method(text)
    except UnknownName:
        if re.fullmatch(r"[\w-]+", text):  # one word, which may be meant for either catalogue
            raise UnknownName("method", text, [*METHODS, *SYNCHRONISATIONS]) from None
        raise


def best_lossless(
    workload: Workload,
    cluster: Cluster,
    slower: Slowness | None = None,
    steps: int = STEPS,
    *,
    most_machines: float = math.inf,
) -> IterationCost:
    """Return the cost of the quickest lossless method there, of those that the cluster can run.

    Methods merge gradients by the cluster's own cost, as compressed ones do, even where the cluster
    says that they were run with another. ``most_machines`` is how many machines for parameter
    servers the method may take beside those of the workers; ``slower`` and ``steps`` are those of
    `iteration_cost`. Raises InputError if the cluster can run none of them.
    """
    require_same_hardware(workload, cluster.name, cluster.hardware)
    cluster = with_own_plans(cluster)
    if slower is not None:
        slower(0, 0, cluster.workers)  # raises InputError for a worker that is not there
    costs = []
    for method in METHODS.values():
        if cluster.server_machines(method.architecture) > most_machines:
            continue
        try:
            costs.append(lossless_cost(workload, cluster, method, slower, steps))
        except InputError:  # no servers, say
            continue
    require(bool(costs), f"no lossless method runs on {cluster!r}; give the cluster servers")
    return min(costs, key=lambda cost: cost.iteration_seconds)
