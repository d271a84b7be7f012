"""Estimate what an iteration of any method costs on a cluster: the one entry of this room."""

from __future__ import annotations

import re

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.profile import FREE, CompressionProfile, compression_profile
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.training.cost.cluster_clock import Slowness
from ddlnb.training.cost.iteration import IterationCost
from ddlnb.training.cost.lockstep import lockstep_cost
from ddlnb.training.cost.overlapped import lossless_cost, overlapped_cost
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.workloads.workload import Workload

BASE = "MG-WFBP"  # the lossless method whose messages BSP sends, unless another is named
STEPS = 24  # simulated iterations of a method that runs in lockstep


def iteration_cost(
    workload: Workload,
    cluster: str | Cluster,
    method: str | Method | TrainingMethod,
    *,
    workers: int | None = None,
    compression: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    overlap: bool = True,
    slower: Slowness | None = None,
    steps: int = STEPS,
) -> IterationCost:
    """Return the seconds and bytes of one iteration of a method, lossless or lossy.

    ``method`` is a row of METHODS ("WFBP-A2A"), or a training method ("local(8) + top-k(0.01)").
    ``workers`` of the cluster take part, by default all. An iteration is one gradient of every
    worker; where workers run at different speeds, as many gradients as there are workers.

    Rows of METHODS are simulated as `ddlnb.simulate` does. So is BSP on A2A, compressed or not:
    its messages leave during the backward pass like those of ``base``, a method that ends in A2A
    and cuts no tensors. With ``overlap`` false its communication follows the computation, as that
    of all other methods does: their own loops run in lockstep, ``steps`` iterations of every
    worker, rounded up to whole cycles. In lockstep ``slower(rank, step, workers)`` multiplies the
    seconds of a worker's computation. ``compression`` is a profile of what compressing takes, by
    default nothing.

    Raises UnknownName, and InputError for servers that the cluster lacks, a compressor that the
    profile lacks, a base that does not fit, ``slower`` where messages overlap, and a
    synchronisation whose iterations have no one cost, as those of post-local SGD.

    >>> import ddlnb
    >>> resnet = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> dense = ddlnb.iteration_cost(resnet, "survey-10GbE", "MG-WFBP", workers=16)
    >>> sparse = ddlnb.iteration_cost(resnet, "survey-10GbE", "bsp + top-k(0.001)", workers=16)
    >>> round(sparse.bytes / dense.bytes, 3)
    0.016
    """
    cluster = get_cluster(cluster, workers)
    if isinstance(method, str):
        method = _named(method)
    if isinstance(method, Method):
        require(
            overlap and slower is None,
            f"lossless method {method.name} has a schedule of its own and equal workers; leave out "
            f"overlap and slower, or ask for 'bsp on A2A' or 'bsp on PS'",
        )
        return lossless_cost(workload, cluster, method)
    profile = compression_profile(compression)
    if not (overlap and method.overlaps):
        return lockstep_cost(workload, cluster, method, profile, slower, steps)
    require(
        slower is None,
        f"stragglers cannot be simulated while messages of {method} overlap; pass overlap=False",
    )
    return overlapped_cost(workload, cluster, method, profile, get_method(base))


def _named(text: str) -> Method | TrainingMethod:
    if text in METHODS:
        return METHODS[text]
    try:
        return training_method(text)
    except UnknownName:
        if re.fullmatch(r"[\w-]+", text):  # one word, which may be meant for either catalogue
            raise UnknownName("method", text, [*METHODS, *SYNCHRONISATIONS]) from None
        raise


def best_lossless(workload: Workload, cluster: Cluster) -> IterationCost:
    """Return the cost of the quickest lossless method there, of those that the cluster can run.

    Raises InputError if it can run none of them.
    """
    costs = []
    for method in METHODS.values():
        try:
            costs.append(lossless_cost(workload, cluster, method))
        except InputError:  # no servers, say
            continue
    require(bool(costs), f"no lossless method runs on {cluster!r}; give the cluster servers")
    return min(costs, key=lambda cost: cost.iteration_seconds)
