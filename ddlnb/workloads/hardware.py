"""What takes a workload's seconds: the hardware of a profile, beside that of a cluster.

A cluster names its GPU by a word, such as "a100"; a profile measured on one has the GPU's own name,
such as "NVIDIA A100-SXM4-80GB". Both mean the same if the word is made of whole parts of the name.
"""

from __future__ import annotations

import re

from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import find, gpus
from ddlnb.workloads.workload import Workload

OF_NAME = re.compile(r"_b\d+_(.+)$")  # profiles are named MODEL_bBATCH_HARDWARE


def is_same_hardware(one: str, other: str) -> bool:
    """Return whether two names may mean the same hardware; an empty one means any.

    >>> is_same_hardware("NVIDIA A100-SXM4-80GB", "a100"), is_same_hardware("a100", "a10")
    (True, False)
    >>> is_same_hardware("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti")
    True
    >>> is_same_hardware("a100-80gb", "NVIDIA A100-SXM4-80GB")  # by data/hardware
    True
    """
    if not one or not other:
        return True
    known = find(one, gpus())
    if known is not None and known == find(other, gpus()):
        return True
    return _word(one) in _runs(other) or _word(other) in _runs(one)


def require_same_hardware(workload: Workload, cluster: str, hardware: str) -> None:
    """Raise InputError for seconds of other hardware than that of the cluster of this name."""
    if is_same_hardware(workload.hardware, hardware):
        return
    raise InputError(
        f"the seconds of workload {workload.model!r} are those of {workload.hardware!r}, and "
        f"cluster {cluster!r} has {hardware!r}; give the samples per second of one of its GPUs "
        f"(--throughput, or from_throughput), profile the model there, or scale the seconds "
        f"yourself: workload.scaled(FACTOR, WHY, hardware={hardware!r})"
    )


def require_named_for(name: str, hardware: str) -> None:
    """Raise InputError if the name of a profile says that it is of other hardware than this."""
    said = OF_NAME.search(name)
    if said is None or is_same_hardware(said.group(1), hardware):
        return
    fitting = hardware if _word(hardware) == hardware.replace("-", "") else _word(hardware)
    raise InputError(
        f"profile name {name!r} says {said.group(1)!r}, and its seconds are those of "
        f"{hardware!r}; name it {name[: said.start(1)]}{fitting}, or profile the model there"
    )


def _word(name: str) -> str:
    return "".join(_parts(name))


def _parts(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _runs(name: str) -> set[str]:
    """Return what neighbouring parts of a name make when joined."""
    parts = _parts(name)
    return {
        "".join(parts[start:stop])
        for start in range(len(parts))
        for stop in range(start + 1, len(parts) + 1)
    }
