"""What a machine is made of, where a GPU, a count or a network is named beside it."""

from __future__ import annotations

from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect, machines
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.hardware.machine import Machine
from ddlnb.hardware.words import plain


def parts_of(
    machine: Machine,
    gpu: str | Gpu = "",
    gpus_per_node: int | None = None,
    network: str | Interconnect = "",
) -> tuple[Gpu, int, Interconnect]:
    """Return the GPU of a machine, how many are used, and its network, with what is given beside.

    A GPU beside it must be the machine's; a name that leaves its memory open, such as "A100", means
    the one that the machine has. Fewer GPUs of it may be used, and another network than the one
    that it is sold with takes the place of that. Raises UnknownName, and InputError for a GPU that
    the machine does not have, and for more GPUs.

    >>> from ddlnb import get_machine
    >>> parts_of(get_machine("p4d"), "A100", 4)[:2]
    (Gpu('A100-SXM4-40GB'), 4)
    """
    if gpu != "":
        _require_same(machine, gpu)
    count = machine.gpus if gpus_per_node is None else gpus_per_node
    require_whole(gpus_per_node=count)
    require(
        count <= machine.gpus,
        f"gpus_per_node {count} exceeds the {machine.gpus} GPUs of machine {machine.name}; give at "
        f"most {machine.gpus}, or the GPU and the network in place of the machine",
    )
    return machine.gpu, count, get_interconnect(network) if network != "" else machine.interconnect


def _require_same(machine: Machine, gpu: str | Gpu) -> None:
    named, own = get_gpu(gpu), machine.gpu
    is_family = isinstance(gpu, str) and plain(gpu) == plain(own.family)
    if is_family or named == own:
        return
    others = [one.name for one in machines().values() if one.gpu == named]
    hint = f" (it is in {', '.join(others)})" if others else ""
    raise InputError(
        f"GPU {named.name} is not that of machine {machine.name}, {own.name}; leave out one of "
        f"them, or name a machine that has it{hint}"
    )
