"""The hardware that is known by name: the files of data/hardware, read once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, RootModel

from ddlnb.errors import InputError, UnknownName, require
from ddlnb.files import read_yaml
from ddlnb.hardware.gpu import Gpu, GpuEntry
from ddlnb.hardware.interconnect import Interconnect, InterconnectEntry, Protocol, ProtocolEntry
from ddlnb.hardware.machine import Machine, MachineEntry
from ddlnb.hardware.words import infiniband_data, plain, stated_rate
from ddlnb.paths import HARDWARE

Listed = TypeVar("Listed", Gpu, Interconnect, Machine)
Entry = TypeVar("Entry", bound=BaseModel)


def get_gpu(name: str | Gpu) -> Gpu:
    """Return the GPU of that name, or the GPU itself.

    Makers' words, spaces and signs do not matter. A name that leaves memory or socket open means
    the usual kind: "A100" is the one with 80 GB in a node with NVLink. Raises UnknownName.

    >>> import ddlnb
    >>> ddlnb.get_gpu("NVIDIA GeForce RTX 2080 Ti"), ddlnb.get_gpu("a100-40gb")
    (Gpu('RTX2080Ti'), Gpu('A100-SXM4-40GB'))
    """
    return name if isinstance(name, Gpu) else _named("GPU", name, gpus())


def get_machine(name: str | Machine) -> Machine:
    """Return the machine of that name, such as "DGX-A100" or "p4d.24xlarge", or the machine itself.

    Raises UnknownName.

    >>> import ddlnb
    >>> ddlnb.get_machine("DGX A100").interconnect
    Interconnect('8x200GbIB', InfiniBand, 8 x 200 Gb/s)
    """
    return name if isinstance(name, Machine) else _named("machine", name, machines())


def get_interconnect(name: str | Interconnect) -> Interconnect:
    """Return the network of that name, one that words describe, or the network itself.

    Words have a protocol and a rate, of one port or of several: "25 GbE", "8x400GbIB", "RoCE 4x100
    Gb/s", "3200Gb/s EFA", "2x HDR". The rate is that of a node; old InfiniBand is called by what
    it has on the wire, of which "40 Gb/s IB" and "56 Gb/s IB" keep 32 and 54.5 for data. Raises
    InputError for words that lack either.

    >>> import ddlnb
    >>> ddlnb.get_interconnect("3200Gb/s EFA")
    Interconnect('3200Gb/s EFA', EFA, 1 x 3200 Gb/s)
    """
    if isinstance(name, Interconnect):
        return name
    found = find(name, interconnects()) if isinstance(name, str) else None
    return found or described(name)


def described(words: str) -> Interconnect:
    """Return the network that words describe. Raises InputError, see `get_interconnect`."""
    way_out = (
        f"name one of {', '.join(interconnects())}, or write rate and protocol, such as 25GbE, "
        f"8x400GbIB, '100 Gb/s RoCE' or '3200 Gb/s EFA'"
    )
    require(isinstance(words, str), f"network {words!r} must be a text; {way_out}")
    protocol, rate = protocol_of(words), stated_rate(words)
    if protocol is None:
        known = ", ".join(protocols())
        raise InputError(f"network {words!r} names none of the protocols {known}; {way_out}")
    if rate is None or 0 in (rate.ports, rate.port_rate):
        raise InputError(f"network {words!r} names no rate above 0; {way_out}")
    source = "as described by its words"
    is_infiniband = protocol.name == "InfiniBand"
    port_rate = infiniband_data(rate.port_rate) if is_infiniband else rate.port_rate
    return Interconnect(words.strip(), rate.ports or 1, port_rate, protocol, source)


def protocol_of(words: str) -> Protocol | None:
    """Return the protocol that words name, the first one in the order of the file, or None."""
    return next((one for one in protocols().values() if one.is_named_by(words)), None)


def gpu_in(words: str) -> Gpu | None:
    """Return the GPU that free text names, as "H100-SXM (Dell XE9680)", or None.

    >>> gpu_in("A100-SXM4-40GB (OCI BM.GPU4.8)"), gpu_in("Accelerator 9000")
    (Gpu('A100-SXM4-40GB'), None)
    """
    text = plain(words)
    for names in ({plain(n): gpu for gpu in gpus().values() for n in names_of(gpu)}, families()):
        inside = [name for name in names if name in text]
        if inside:
            return names[max(inside, key=len)]
    return None


@functools.cache
def families() -> Mapping[str, Gpu]:
    """Return the usual GPU of every family, by the family's name in plain letters."""
    named = {plain(gpu.family): gpu for gpu in gpus().values()}
    return {family: find(family, gpus()) or gpu for family, gpu in named.items()}


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """Return the GPUs of data/hardware/gpus by name, the oldest ones first."""
    entries = _entries(HARDWARE / "gpus", GpuEntry)
    listed = [entry.gpu(name) for name, entry in entries.items()]
    return _unique({gpu.name: gpu for gpu in sorted(listed, key=lambda one: one.year)})


@functools.cache
def protocols() -> Mapping[str, Protocol]:
    """Return the protocols of data/hardware/protocols.yaml by name."""
    entries = read_yaml(HARDWARE / "protocols.yaml", RootModel[dict[str, ProtocolEntry]]).root
    return {name: entry.protocol(name) for name, entry in entries.items()}


@functools.cache
def interconnects() -> Mapping[str, Interconnect]:
    """Return the networks of data/hardware/networks by name, the slowest ones first."""
    found = []
    for name, entry in _entries(HARDWARE / "networks", InterconnectEntry).items():
        if entry.protocol not in protocols():
            raise UnknownName(f"protocol of {name}", entry.protocol, protocols())
        found.append(entry.interconnect(name, protocols()[entry.protocol]))
    return _unique({one.name: one for one in sorted(found, key=lambda one: one.line_rate)})


@functools.cache
def machines() -> Mapping[str, Machine]:
    """Return the machines of data/hardware/machines by name."""
    found = {}
    for name, entry in _entries(HARDWARE / "machines", MachineEntry).items():
        gpu, network = get_gpu(entry.gpu), get_interconnect(entry.network)
        found[name] = Machine(name, gpu, entry.gpus, network, entry.source, entry.aliases)
    return _unique(found)


def find(name: str, listed: Mapping[str, Listed]) -> Listed | None:
    """Return the one that has this name or alias in plain letters, or None."""
    wanted = plain(name)
    for one in listed.values():
        if wanted in {plain(known) for known in names_of(one)}:
            return one
    return None


def names_of(one: Gpu | Interconnect | Machine) -> tuple[str, ...]:
    """Return its name and its aliases."""
    return (one.name, *one.aliases)


def _named(what: str, name: object, listed: Mapping[str, Listed]) -> Listed:
    found = find(name, listed) if isinstance(name, str) else None
    if found is None:
        also = (alias for one in listed.values() for alias in one.aliases)
        raise UnknownName(what, name, listed, also)
    return found


def _entries(folder: Path, schema: type[Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, entry in read_yaml(path, RootModel[dict[str, schema]]).root.items():  # type: ignore[valid-type]
            require(name not in found, f"{path}: {name!r} is in another file too; name it once")
            found[name] = entry
    return found


def _unique(listed: dict[str, Listed]) -> dict[str, Listed]:
    """Return them. Raises InputError if two of them share a name or an alias."""
    owner: dict[str, str] = {}
    for one in listed.values():
        for name in {plain(known) for known in names_of(one)}:
            if owner.setdefault(name, one.name) != one.name:
                raise InputError(
                    f"{one.name!r} and {owner[name]!r} are both called {name!r}; name one of them "
                    f"otherwise in data/hardware"
                )
    return listed
