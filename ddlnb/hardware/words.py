"""What words for hardware say: names that mean the same, and rates of networks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddlnb.units import BITS_PER_BYTE, GB

MAKERS = re.compile(r"nvidia|geforce|quadro|tesla|amd|instinct|tensorcore|gpu|accelerator")
RATE = r"(\d+(?:,\d{3})*(?:\.\d+)?)\s*(Gb(?:it)?/?p?s?|GB/s|GbE|G\b)"
TIMES = r"(\d+)\s*[x*]\s*(?:[a-zA-Z][\w-]*\s+)?"
PORTS = {"XDR": 800, "NDR": 400, "HDR": 200, "EDR": 100, "FDR": 56}  # Gb/s of an InfiniBand port


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
    if ports := re.search(r"(?:(\d+)\s*[x*]\s*)?\b(XDR|NDR|HDR|EDR|FDR)\b", words):
        rate = PORTS[ports[2]] / BITS_PER_BYTE * GB
        return StatedRate(rate, int(ports[1]) if ports[1] else None, is_number=False)
    return None


def bytes_per_second(number: str, unit: str) -> float:
    """Return a rate in bytes/s; a unit is one of bits, unless it is GB/s."""
    value = float(number.replace(",", "")) * GB
    return value if unit == "GB/s" else value / BITS_PER_BYTE
