"""What words for hardware say: names that mean the same, and rates of networks."""

from __future__ import annotations

import re

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


def stated_rate(words: str) -> tuple[int, float] | None:
    """Return how many ports words name, and bytes/s of one in one direction; None if they do not.

    >>> stated_rate("RoCE 8x200 Gb/s"), stated_rate("HDR"), stated_rate("fast")
    ((8, 25000000000.0), (1, 25000000000.0), None)
    """
    if times := re.search(TIMES + RATE, words):
        return int(times[1]), bytes_per_second(times[2], times[3])
    if stated := re.search(RATE, words):
        return 1, bytes_per_second(stated[1], stated[2])
    if ports := re.search(r"(?:(\d+)\s*[x*]\s*)?\b(XDR|NDR|HDR|EDR|FDR)\b", words):
        return int(ports[1] or 1), PORTS[ports[2]] / BITS_PER_BYTE * GB
    return None


def bytes_per_second(number: str, unit: str) -> float:
    """Return a rate in bytes/s; a unit is one of bits, unless it is GB/s."""
    value = float(number.replace(",", "")) * GB
    return value if unit == "GB/s" else value / BITS_PER_BYTE
