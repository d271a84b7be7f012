"""The workload of a model on a cluster: its structure, and seconds from the best source there is.

Seconds come from the workload itself, from a measured rate, from a kept profile of the cluster's
hardware, or from the data sheet of its GPU, in this order; ``source`` of the workload says which.
Seconds of a profile at another batch grow as those of the data sheet.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.files import PROFILES
from ddlnb.hardware.catalogue import gpu_in
from ddlnb.simulator.tasks import alone
from ddlnb.workloads.kept_traces import kept_trace
from ddlnb.workloads.roofline import EAGER, estimate, from_throughput, require_same_hardware
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    from ddlnb.workloads.task import Task

YOUR_OWN = "or a Workload of your own, see docs/own_model.md"


def workload_on(
    model: str | Task | Workload,
    cluster: Cluster,
    local_batch: int | None = None,
    *,
    sequence: int | None = None,
    throughput: float | None = None,
    precision: str = "",
    software: str = "",
) -> Workload:
    """Return what one worker of the cluster computes in an iteration, with its seconds.

    ``model`` is a Workload, a Task, or the name of one (`ddlnb.workloads.resolve`). ``throughput``
    are the samples per second of one worker, ``precision`` that of the computation (see
    `estimate`), ``software`` how the program was written (the same), ``sequence`` the tokens of a
    sample. A profile of data/profiles is taken where none of the four is given, also one of another
    batch if the GPU has a data sheet. Raises InputError for seconds of other hardware than the
    cluster's, and where there is no source of seconds, with the ways to get one.
    """
    is_plain = throughput is None and not precision and not software and sequence is None
    if is_plain and isinstance(model, str) and _profiles(model, cluster, local_batch):
        return profile_for(model, cluster, local_batch)
    if is_plain and isinstance(model, str) and (near := _grown(model, cluster, local_batch)):
        return near
    seen = kept_trace(model, local_batch) if isinstance(model, str) and sequence is None else None
    if seen is not None:
        traced = _measured(seen, cluster) if is_plain else seen
        return _with_seconds(traced, cluster, throughput, precision, software)
    if isinstance(model, Workload):
        found: Task | Workload = model
    else:
        from ddlnb.workloads.resolve import resolve  # which may load torch

        found = resolve(model, sequence=sequence)
    if isinstance(found, Workload):
        require(
            local_batch in (None, found.local_batch),
            f"local_batch {local_batch} is not that of the workload of {found.model!r}, "
            f"{found.local_batch}; leave it out, or take workload.at_batch({local_batch})",
        )
        traced = found
    else:
        from ddlnb.workloads.tracing import trace

        traced = trace(found, found.local_batch if local_batch is None else local_batch)
        traced = _measured(traced, cluster) if is_plain else traced
    return _with_seconds(traced, cluster, throughput, precision, software)


def _measured(traced: Workload, cluster: Cluster) -> Workload:
    """Return the kept profile of the same structure for the cluster's hardware, if there is one."""
    names = _profiles(traced.model, cluster, traced.local_batch) if cluster.hardware else []
    alike = (one for one in map(read_profile, names) if one.structure == traced.structure)
    return next(alike, traced)


def _grown(model: str, cluster: Cluster, local_batch: int | None) -> Workload | None:
    """Return the workload at this batch whose seconds grow from those of the nearest profile.

    The data sheet says by how much. None without one, without a profile, or where the data sheet is
    thought to be nearer to the truth than the profile.
    """
    names = _profiles(model, cluster, None) if gpu_in(cluster.hardware) else []
    if local_batch is None or not names:
        return None
    kept = min(
        map(read_profile, names), key=lambda one: abs(math.log(one.local_batch / local_batch))
    )
    there, here = (
        workload_on(model, cluster, batch, software=EAGER)
        for batch in (kept.local_batch, local_batch)
    )
    if kept.spread >= here.spread:
        return None
    return grown(kept, there, here)


# Spread of how seconds grow by a data sheet: of 30 pairs of batches that were measured on an H100
# and an H200, nine in ten are within its 90 % interval (tests/simulator/test_forecast.py).
PER_DOUBLING = 0.06


def grown(kept: Workload, there: Workload, here: Workload) -> Workload:
    """Return the seconds of ``kept`` at the batch of ``here``, and as unsure as that makes them.

    They grow as a data sheet's do from the batch of ``kept``, whose seconds ``there`` says.
    """
    doublings = math.log2(here.local_batch / there.local_batch)
    spread = min(math.hypot(kept.spread, PER_DOUBLING * doublings), here.spread)
    source = f"seconds at batch {there.local_batch} grown as by the data sheet; {kept.source}"
    found = here.scaled(kept.compute_seconds / there.compute_seconds, source)
    return replace(found, spread=max(kept.spread, spread))


def _with_seconds(
    workload: Workload, cluster: Cluster, throughput: float | None, precision: str, software: str
) -> Workload:
    """Return the workload with seconds of a worker of the cluster."""
    gpu = gpu_in(cluster.hardware)
    by_sheet = precision or software
    if throughput is None and not by_sheet and workload.compute_seconds > 0:
        require_same_hardware(workload, cluster.name, cluster.hardware)
        return workload
    if gpu is not None:
        found = estimate(
            workload, gpu, precision, samples_per_second=throughput, software=software or EAGER
        )
        return _at_rate(found.on_hardware(cluster.hardware), cluster, throughput)
    require(
        not by_sheet,
        f"{'precision' if precision else 'software'} {by_sheet!r} needs the data sheet of a GPU, "
        f"and that of cluster {cluster.name!r}, {cluster.hardware!r}, is not here; leave it out",
    )
    if throughput is None:
        kind = (
            f"{cluster.hardware!r} has no data sheet here"
            if cluster.hardware
            else "is unnamed (write, say, hardware: cpu-1thread into its file)"
        )
        raise InputError(
            f"nothing says how long {workload.model!r} computes on cluster {cluster.name!r}, whose "
            f"hardware {kind}; give --throughput with the samples per second of one worker, or "
            f"make a profile on that hardware: "
            f"{_how_to_profile(workload.model, workload.local_batch, cluster.hardware)}"
        )
    source = f"work shared out over the time of one worker at {throughput:g} samples/s"
    found = from_throughput(workload, throughput, source, hardware=cluster.hardware)
    return _at_rate(found, cluster, throughput)


def _at_rate(workload: Workload, cluster: Cluster, throughput: float | None) -> Workload:
    """Return the workload with the seconds with which one worker alone has this throughput, if any.

    The update is in what was measured. It is taken for nine tenths of that at most, since its rate
    may be that of a data sheet.
    """
    if throughput is None:
        return workload
    whole = alone(workload)
    update = replace(whole, own_seconds=0 * whole.own_seconds).seconds(cluster.effects, 1).sum()
    computing = whole.seconds(cluster.effects, 1).sum() - update
    measured = workload.local_batch / throughput
    return workload.scaled(max(measured - update, measured / 10) / computing, workload.source)


def _profiles(model: str, cluster: Cluster, local_batch: int | None) -> list[str]:
    """Return the names of profiles of a model for the cluster's hardware."""
    batch = r"\d+" if local_batch is None else str(local_batch)
    named = rf"{re.escape(model)}_b{batch}_{re.escape(cluster.hardware)}"
    return sorted(path.stem for path in PROFILES.glob("*.json") if re.fullmatch(named, path.stem))


def profile_for(model: str, cluster: Cluster, local_batch: int | None = None) -> Workload:
    """Return the profile of a model for the cluster's hardware, as data/profiles names them.

    Names read model_bBATCH_HARDWARE. Without a batch, the profile of the model's own batch is taken
    where there are several. Raises UnknownName for a model that has neither a profile nor a task,
    and InputError that lists what there is and says how to make another.
    """
    _require_known(model)
    found = _profiles(model, cluster, local_batch)
    if local_batch is None and len(found) > 1:
        from ddlnb.workloads.resolve import resolve  # which loads torch

        with suppress(UnknownName):  # a profile of a model that is no task here
            found = _profiles(model, cluster, resolve(model).local_batch) or found
    require(
        bool(found or cluster.hardware),
        f"cluster {cluster.name!r} says no hardware, by which profiles are found; write it into "
        f"its file, such as hardware: cpu-1thread",
    )
    if len(found) != 1:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.json")))
        which = f"model {model!r}, batch {local_batch or '*'}, hardware {cluster.hardware!r}"
        require(
            not found,
            f"{len(found)} profiles match {which} ({', '.join(found)}); say which by its batch "
            f"(--batch)",
        )
        raise InputError(
            f"no profile matches {which}, and {known} are there; make one on that hardware: "
            f"{_how_to_profile(model, local_batch or 'BATCH', cluster.hardware)}"
        )
    workload = read_profile(found[0])
    require_same_hardware(workload, cluster.name, cluster.hardware)
    return workload


def _how_to_profile(model: str, batch: object, hardware: str) -> str:
    device = "" if not hardware or hardware.startswith("cpu") else " --device cuda"
    return (
        f"ddlnb measure profile --model {model} --batch {batch}{device} "
        f"--name {model}_b{batch}_{hardware or 'HARDWARE'}"
    )


def _require_known(model: str) -> None:
    known = {path.stem.partition("_b")[0] for path in PROFILES.glob("*.json")}
    if model not in known:
        from ddlnb.workloads.models import TASKS  # which loads torch

        if model not in TASKS:
            raise UnknownName("model", model, [*sorted({*known, *TASKS}), YOUR_OWN])
