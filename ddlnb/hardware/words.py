"""What words for hardware say: names that mean the same, and rates of networks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddlnb.units import BITS_PER_BYTE, GB

MAKERS = re.compile(r"nvidia|geforce|quadro|tesla|amd|instinct|tensorcore|gpu|accelerator")
UNIT = r"GB/s|GBps|GB(?=E\b|IB\b)|G(?=E\b)|[Gg]ig(?:abit|E)?\b|[MmGgTt]b(?:it)?/?p?s?|G\b"
RATE = rf"(\d+(?:,\d{{3}})*(?:\.\d+)?)\s*({UNIT})"
TIMES = r"(\d+)\s*[x*]\s*(?:[a-zA-Z][\w-]*\s+)?"
BYTES = ("GB/s", "GBps")
PREFIXES = {"m": 1e-3, "g": 1.0, "t": 1e3}
FDR = 56.25 * 64 / 66
# Gb/s of data of an InfiniBand port: four lanes, less their code.
PORTS = {"XDR": 800, "NDR": 400, "HDR": 200, "EDR": 100, "FDR": FDR, "QDR": 32, "DDR": 16, "SDR": 8}
# HDR100 is half a port. "4x EDR" are four ports; "4X EDR" is one, whose four lanes are counted.
GENERATION = rf"(?:(\d+)\s*(?-i:x|\*)\s*)?\b({'|'.join(PORTS)})(\d{{3}})?\b"
ON_THE_WIRE: dict[float, float] = {
    10: 8,
    20: 16,
    40: 32,
    56: FDR,
}  # old ports are called by what includes the code


def plain(name: str) -> str:
    """Return a name without the words of makers, without spaces and signs, in small letters.

    >>> plain("NVIDIA GeForce RTX 2080 Ti"), plain("A100-SXM4-80GB")
    ('rtx2080ti', 'a100sxm480gb')
    """
    return MAKERS.sub("", re.sub(r"[^a-z0-9]+", "", name.lower()))


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
    """Return the rate that words state, or None.

    >>> stated_rate("RoCE 8x200 Gb/s")
    StatedRate(port_rate=25000000000.0, ports=8, is_number=True)
    >>> stated_rate("HDR").is_number, stated_rate("fast")
    (False, None)
    """
    if times := re.search(TIMES + RATE, words):
        return StatedRate(bytes_per_second(times[2], times[3]), int(times[1]))
    if stated := re.search(RATE, words):
        return StatedRate(bytes_per_second(stated[1], stated[2]))
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
