"""The hardware that is known by name, and what words say about it: the files of data/hardware.

Names that mean the same are read alike, networks are read from their rate and protocol, and free
text is searched for a GPU. A machine is one of them with the GPUs and the network that are named
beside it, if any.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from pydantic import Field

from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.files import HARDWARE
from ddlnb.hardware.gpu import WITHOUT_OTHER_KEYS, Gpu, Source, named
from ddlnb.hardware.machine import Interconnect, Machine, Protocol, protocols
from ddlnb.reading import read_yaml
from ddlnb.units import BITS_PER_BYTE, GB

MAKERS = re.compile(r"nvidia|geforce|quadro|tesla|amd|instinct|tensorcore|gpu|accelerator")
OTHERS = r"(?:ti|super(?!\W*comp)|d|laptop|mobile|max.?q)(?![a-z])"  # of cards by four digits
UNIT = r"GB/s|GBps|GB(?=E\b|IB\b)|G(?=E\b)|[Gg]ig(?:abit|E)?\b|[MmGgTt]b(?:it)?/?p?s?|[GT]\b"
WHOLE = r"(?<![\d.,])(?<!\d[eE])(?<!\d[eE][+-])(?<!(?<!\w)-)"  # not the end of another number
RATE = rf"{WHOLE}(\d+(?:,\d{{3}})*(?:\.\d+)?)\s*({UNIT})"
TIMES = r"(\d+)\s*[x*]\s*(?:[a-zA-Z][\w-]*\s+){0,2}"  # 4x HDR InfiniBand 200 Gb/s
USUAL_PORTS = rf"{WHOLE}(\d{{1,2}})\s*[x*]\s*(10|25|40|50|56|100|200|400|800)\b"  # RoCE 2x200
LINKS = r"[\d.,]+\s*[GT]B(?:/s|ps)"  # of NVLink, beside the network
OF_NVLINK = rf"nv(?:link|switch)[^,;+/]{{0,15}}?{LINKS}|{LINKS}\s*(?:of\s+)?nv(?:link|switch)"
BYTES = ("GB/s", "GBps")
PREFIXES = {"m": 1e-3, "g": 1.0, "t": 1e3}
FDR = 56.25 * 64 / 66
# Gb/s of data of an InfiniBand port: four lanes, less their code.
PORTS = {"XDR": 800, "NDR": 400, "HDR": 200, "EDR": 100, "FDR": FDR, "QDR": 32, "DDR": 16, "SDR": 8}
# HDR100 is half a port. "4x EDR" are four ports; "4X EDR" is one, whose four lanes are counted.
GENERATION = rf"(?:(\d+)\s*(?-i:x|\*)\s*|\b)({'|'.join(PORTS)})(\d{{3}})?\b"
ON_THE_WIRE: dict[float, float] = {
    10: 8,
    20: 16,
    40: 32,
    56: FDR,
}  # old ports are called by what includes the code

SLOWEST, FASTEST = 0.01, 10_000.0  # Gb/s of a port that is not a slip of the pen
MOST_LETTERS = 1_000  # in which a rate is looked for
OF_NAME = re.compile(r"_b\d+_(.+)$")  # profiles are named MODEL_bBATCH_HARDWARE


@functools.lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return a name without the words of makers, without spaces and signs, in small letters.

    The point and the minus of a number stay: they are part of what it says.

    >>> plain("NVIDIA GeForce RTX 2080 Ti"), plain("A100-SXM4-80GB"), plain("2.5 GbE")
    ('rtx2080ti', 'a100sxm480gb', '2.5gbe')
    """
    return MAKERS.sub("", re.sub(r"(?!(?<=\d)\.\d|^-\d)[^a-z0-9]", "", name.strip().lower()))


@dataclass(frozen=True)
class StatedRate:
    """A rate that words state: bytes/s of a port in one direction, and of how many ports.

    ``ports`` is None where the words give one rate, of a port or of the node. ``is_number`` is
    False for the rate of a generation of InfiniBand, such as HDR, that is named without a number.
    """

    port_rate: float
    ports: int | None = None
    is_number: bool = True


def stated_rate(words: str) -> StatedRate | None:
    """Return the rate of a network that words state, or None: NVLink's, beside it, is none.

    In very many words none is looked for.

    >>> stated_rate("RoCE 8x200 Gb/s")
    StatedRate(port_rate=25000000000.0, ports=8, is_number=True)
    >>> stated_rate("HDR").is_number, stated_rate("fast")
    (False, None)
    >>> stated_rate("NVLink 900 GB/s, InfiniBand 2xNDR").ports
    2
    """
    if len(words) > MOST_LETTERS:  # the patterns take the square of that many steps
        return None
    words = re.sub(OF_NVLINK, "", words, flags=re.IGNORECASE)
    if times := re.search(TIMES + RATE, words):
        return StatedRate(bytes_per_second(times[2], times[3]), int(times[1]))
    if stated := re.search(rf"{RATE}(?:\s*[x*]\s*(\d+)\b)?", words):
        count = int(stated[3]) if stated[3] else None
        return StatedRate(bytes_per_second(stated[1], stated[2]), count)
    if several := re.search(USUAL_PORTS, words):
        return StatedRate(float(several[2]) / BITS_PER_BYTE * GB, int(several[1]))
    if ports := re.search(GENERATION, words, re.IGNORECASE):
        gigabits = float(ports[3]) if ports[3] else PORTS[ports[2].upper()]
        count = int(ports[1]) if ports[1] else None
        return StatedRate(gigabits / BITS_PER_BYTE * GB, count, is_number=bool(ports[3]))
    return None


def infiniband_data(port_rate: float) -> float:
    """Return bytes/s of data of an InfiniBand port that is called by a rate in bytes/s.

    >>> infiniband_data(5e9) / 5e9, infiniband_data(12.5e9) / 12.5e9  # QDR and EDR
    (0.8, 1.0)
    """
    gigabits = port_rate * BITS_PER_BYTE / GB
    return ON_THE_WIRE.get(round(gigabits, 6), gigabits) / BITS_PER_BYTE * GB


def bytes_per_second(number: str, unit: str) -> float:
    """Return a rate in bytes/s; a unit is one of bits, unless it is GB/s.

    >>> bytes_per_second("100", "Mb/s"), bytes_per_second("1", "GB/s")
    (12500000.0, 1000000000.0)
    """
    value = float(number.replace(",", "")) * GB
    return value if unit in BYTES else PREFIXES[unit[0].lower()] * value / BITS_PER_BYTE


Listed = TypeVar("Listed", Gpu, Interconnect, Machine)
Entry = TypeVar("Entry")


def get_gpu(name: str | Gpu) -> Gpu:
    """Return the GPU of that name, or the GPU itself.

    Makers' words, spaces and signs do not matter. A name that leaves memory or socket open means
    the usual kind: "A100" is the one with 80 GB in a node with NVLink. Raises UnknownName.

    >>> import ddlnb
    >>> ddlnb.hardware.get_gpu("NVIDIA GeForce RTX 2080 Ti"), ddlnb.hardware.get_gpu("a100-40gb")
    (Gpu('RTX2080Ti'), Gpu('A100-SXM4-40GB'))
    """
    if isinstance(name, Gpu):
        return name
    if many := re.fullmatch(r"(\d+) ?x ?(.+)", str(name).strip(), re.IGNORECASE):
        count, one = many.groups()
        require(
            find(one, gpus()) is None,
            f"{name!r} is several GPUs; name one of them, and say how many a node has: "
            f"--gpu {one} --gpus-per-node {count} (gpu={one!r}, gpus_per_node={count})",
        )
    return _called("GPU", name, gpus())


def get_machine(name: str | Machine) -> Machine:
    """Return the machine of that name, such as "DGX-A100" or "p4d.24xlarge", or the machine itself.

    Raises UnknownName.

    >>> import ddlnb
    >>> ddlnb.hardware.get_machine("DGX A100").interconnect
    Interconnect('8x200GbIB', InfiniBand, 8 x 200 Gb/s)
    """
    return name if isinstance(name, Machine) else _called("machine", name, machines())


def get_interconnect(name: str | Interconnect) -> Interconnect:
    """Return the network of that name, one that words describe, or the network itself.

    Words have a protocol and a rate, of one port or of several: "25 GbE", "8x400GbIB", "RoCE 4x100
    Gb/s", "3200Gb/s EFA", "2x HDR". The rate is that of a node; old InfiniBand is called by what
    it has on the wire, of which "40 Gb/s IB" and "56 Gb/s IB" keep 32 and 54.5 for data. Raises
    InputError for words that lack either.

    >>> import ddlnb
    >>> ddlnb.hardware.get_interconnect("3200Gb/s EFA")
    Interconnect('3200Gb/s EFA', EFA, 1 x 3200 Gb/s)
    """
    if isinstance(name, Interconnect):
        return name
    found = find(name, interconnects()) if isinstance(name, str) else None
    several = found is None and re.fullmatch(r"([1-9]\d*) ?[x*] ?(.+)", str(name).strip())
    if several and (one := find(several[2], interconnects())):
        return replace(one, name=name.strip(), ports=int(several[1]) * one.ports, aliases=())
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
        raise InputError(f"network {words!r} names no rate above 0 in Mb/s or Gb/s; {way_out}")
    gigabits = rate.port_rate * BITS_PER_BYTE / GB
    require(
        SLOWEST <= gigabits <= FASTEST,
        f"network {words!r} has {gigabits:g} Gb/s a port, and ports have {SLOWEST:g} to "
        f"{FASTEST:,.0f}; {way_out}",
    )
    data = infiniband_data if protocol.name == "InfiniBand" else float  # of what is on the wire
    return Interconnect(
        words.strip(), data(rate.port_rate), protocol, "as described by its words", rate.ports or 1
    )


def protocol_of(words: str) -> Protocol | None:
    """Return the protocol that words name, the first one in the order of the file, or None."""
    return next((one for one in protocols().values() if one.is_named_by(words)), None)


def gpu_in(words: str) -> Gpu | None:
    """Return the GPU that free text names, as "H100-SXM (Dell XE9680)", or None.

    Names are whole: an A4000 is no A40, and an RTX 3090 Ti no RTX 3090.

    >>> gpu_in("A100-SXM4-40GB (OCI BM.GPU4.8)"), gpu_in("RTX A4000"), gpu_in("Accelerator 9000")
    (Gpu('A100-SXM4-40GB'), None, None)
    """
    flat, text = plain(words), MAKERS.sub(" ", words.lower().replace("tensor core", " "))
    for names in ({n: gpu for gpu in gpus().values() for n in names_of(gpu)}, families()):
        inside = [name for name in names if plain(name) in flat and _is_whole(name, text)]
        if inside:
            return names[max(inside, key=lambda name: len(plain(name)))]
    return None


def _is_whole(name: str, text: str) -> bool:
    """Whether a name stands in text, with any signs between its parts, and nothing longer does.

    A letter alone at the end stands at its number: a V100 server is no V100S.
    """
    parts = re.findall(r"\d+[a-z]$|\d+|[a-z]+", MAKERS.sub("", name.lower()))
    before = r"(?<![a-wyz])" if parts[0].isalpha() else r"(?<![a-wyz0-9])"  # 8xA100, 4x2080Ti
    after = r"(?!\d)" if parts[-1].isdigit() else r"(?![a-wyz]|x\D)"
    after += rf"(?![^a-z0-9]*{OTHERS})" if re.search(r"\d{4}", name) else ""
    return bool(re.search(before + r"[^a-z0-9.]*".join(parts) + after, text))


@functools.cache
def families() -> Mapping[str, Gpu]:
    """Return the usual GPU of every family, by the family's name in plain letters."""
    usual = {plain(gpu.family): gpu for gpu in gpus().values()}
    return {family: find(family, gpus()) or gpu for family, gpu in usual.items()}


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """Return the GPUs of data/hardware/gpus by name, the oldest ones first."""
    return _unique(sorted(_read("gpus", Gpu), key=lambda gpu: gpu.year))


@functools.cache
def interconnects() -> Mapping[str, Interconnect]:
    """Return the networks of data/hardware/networks by name, the slowest ones first."""
    return _unique(sorted(_read("networks", Interconnect), key=lambda network: network.line_rate))


@functools.cache
def machines() -> Mapping[str, Machine]:
    """Return the machines of data/hardware/machines by name."""
    return _unique(
        [
            Machine(
                entry.name,
                get_gpu(entry.gpu),
                entry.gpus,
                get_interconnect(entry.network),
                entry.source,
                entry.aliases,
            )
            for entry in _read("machines", MachineEntry)
        ]
    )


@dataclass(frozen=True)
class MachineEntry:
    """A machine as a file has it: its GPU and its network are names."""

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    aliases: tuple[str, ...]
    gpu: str
    gpus: Annotated[int, Field(ge=1, le=72)]
    network: str
    source: Source


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


def _called(what: str, name: object, listed: Mapping[str, Listed]) -> Listed:
    found = find(name, listed) if isinstance(name, str) else None
    if found is None:
        also = (alias for one in listed.values() for alias in one.aliases)
        raise UnknownName(what, name, listed, also)
    return found


def _read(folder: str, kind: Callable[..., Entry]) -> list[Entry]:
    """Return all things of a kind that the files of a folder of data/hardware have."""
    found: dict[str, Entry] = {}
    for path in sorted((HARDWARE / folder).glob("*.yaml")):
        for name, entry in read_yaml(path, named(kind)).root.items():
            require(name not in found, f"{path}: {name!r} is in another file too; name it once")
            found[name] = entry
    return list(found.values())


def _unique(listed: Sequence[Listed]) -> dict[str, Listed]:
    """Return them by name. Raises InputError if two of them share a name or an alias."""
    owner: dict[str, str] = {}
    for one in listed:
        for name in {plain(known) for known in names_of(one)}:
            if owner.setdefault(name, one.name) != one.name:
                raise InputError(
                    f"{one.name!r} and {owner[name]!r} are both called {name!r}; name one of them "
                    f"otherwise in data/hardware"
                )
    return {one.name: one for one in listed}


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

    >>> from ddlnb.hardware import get_machine
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
