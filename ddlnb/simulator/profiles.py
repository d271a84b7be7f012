"""The workload that a model's name stands for on a cluster: the kept profile for its hardware."""

from __future__ import annotations

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError
from ddlnb.paths import PROFILES
from ddlnb.workloads.workload import Workload, read_profile


def profile_for(model: str, cluster: Cluster, local_batch: int | None = None) -> Workload:
    """Return the profile of a model for the cluster's hardware, as data/profiles names them.

    Names read model_bBATCH_HARDWARE. Without a batch there must be just one. Raises InputError
    that lists what there is and says how to make another.
    """
    batch = "*" if local_batch is None else local_batch
    found = sorted(path.stem for path in PROFILES.glob(f"{model}_b{batch}_{cluster.hardware}.json"))
    if len(found) != 1:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.json")))
        raise InputError(
            f"{len(found) or 'no'} profiles match model {model!r}, batch {batch}, hardware "
            f"{cluster.hardware!r} ({', '.join(found) or 'none'}); name one of {known}, "
            f"or make one: ddlnb profile --model {model} --name {model}_bBATCH_HARDWARE, or "
            f"--throughput with the samples per second of one GPU"
        )
    return read_profile(found[0])
