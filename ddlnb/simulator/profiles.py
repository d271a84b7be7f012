"""The workload that a model's name stands for on a cluster: the kept profile for its hardware."""

from __future__ import annotations

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError, UnknownName
from ddlnb.paths import PROFILES
from ddlnb.workloads.hardware import require_same_hardware
from ddlnb.workloads.workload import Workload, read_profile

YOUR_OWN = "or a Workload of your own, see docs/own_model.md"


def workload_on(
    model: str | Workload, cluster: Cluster, local_batch: int | None = None
) -> Workload:
    """Return the workload itself, or the profile of the model of that name (see `profile_for`).

    Raises InputError for seconds of other hardware than the cluster's, and for anything else, of
    which it says how a workload is made of it.
    """
    if isinstance(model, Workload):
        require_same_hardware(model, cluster.name, cluster.hardware)
        return model
    if isinstance(model, str):
        return profile_for(model, cluster, local_batch)
    raise InputError(
        f"model {model!r} must be the name of a model or a Workload; ddlnb.profile(task) measures "
        f"one here, ddlnb.read_profile(name) reads one of data/profiles"
    )


def profile_for(model: str, cluster: Cluster, local_batch: int | None = None) -> Workload:
    """Return the profile of a model for the cluster's hardware, as data/profiles names them.

    Names read model_bBATCH_HARDWARE. Without a batch there must be just one. Raises UnknownName
    for a model that has neither a profile nor a task, and InputError that lists what there is and
    says how to make another.
    """
    _require_known(model)
    batch = "*" if local_batch is None else local_batch
    found = sorted(path.stem for path in PROFILES.glob(f"{model}_b{batch}_{cluster.hardware}.json"))
    if len(found) != 1:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.json")))
        raise InputError(
            f"{len(found) or 'no'} profiles match model {model!r}, batch {batch}, hardware "
            f"{cluster.hardware!r} ({', '.join(found) or 'none'}), and {known} are there; "
            f"give --throughput with the samples per second of one GPU, or make a profile on "
            f"that hardware: {_how_to_profile(model, batch, cluster.hardware)}"
        )
    return workload_on(read_profile(found[0]), cluster)


def _how_to_profile(model: str, batch: object, hardware: str) -> str:
    device = "" if hardware.startswith("cpu") else " --device cuda"
    size = "BATCH" if batch == "*" else batch
    return (
        f"ddlnb profile --model {model} --batch {size}{device} "
        f"--name {model}_b{size}_{hardware or 'HARDWARE'}"
    )


def _require_known(model: str) -> None:
    known = {path.stem.partition("_b")[0] for path in PROFILES.glob("*.json")}
    if model not in known:
        from ddlnb.workloads.catalogue import TASKS  # which loads torch

        if model not in TASKS:
            raise UnknownName("model", model, [*sorted({*known, *TASKS}), YOUR_OWN])
