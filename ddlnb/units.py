"""Bytes and seconds: the only place with factors of 8, 1000 and 1024.

Everything inside ddlnb is in bytes and seconds. Text such as ``"4 MB"`` or ``"10Gbit/s"`` is
converted here, at the edge, and numbers are made readable here on their way out.
"""

from __future__ import annotations

import math
import re

from ddlnb.errors import InputError

KB, MB, GB = 1_000, 1_000_000, 1_000_000_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS, US = 1e-3, 1e-6
BITS_PER_BYTE = 8

_BYTES = {"B": 1, "KB": KB, "MB": MB, "GB": GB, "KIB": KIB, "MIB": MIB, "GIB": GIB}


def bytes_from(text: str | int) -> int:
    """Whole bytes from ``4096``, ``"4096"``, ``"4 MB"`` (10**6) or ``"4 MiB"`` (2**20).

    Raises InputError for anything else, zero and negative sizes.

    >>> bytes_from("4MB"), bytes_from("1 MiB"), bytes_from(4096)
    (4000000, 1048576, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    factor = _BYTES.get((match[2] or "B").upper()) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise InputError(
            f"size {text!r} is not a positive number of bytes; "
            f"write a whole number, or one with a unit such as '4MB' or '64KiB'"
        )
    return round(float(match[1]) * factor)


def gigabits_per_second(bytes_per_second: float) -> float:
    """Gb/s (10**9 bits) from bytes per second.

    >>> gigabits_per_second(1.25e9)
    10.0
    """
    return bytes_per_second * BITS_PER_BYTE / 1e9


def show_bytes(count: float) -> str:
    """A size for people, in powers of ten.

    >>> show_bytes(8_196_000), show_bytes(512)
    ('8.2 MB', '512 B')
    """
    for factor, unit in ((GB, "GB"), (MB, "MB"), (KB, "KB")):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def size_in_words(count: int) -> str:
    """A size for people, in powers of two.

    >>> size_in_words(65536), size_in_words(512)
    ('64 KiB', '512 B')
    """
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} B"


def show_seconds(seconds: float) -> str:
    """A duration for people.

    >>> show_seconds(0.0123), show_seconds(75e-6), show_seconds(90)
    ('12.3 ms', '75 us', '90 s')
    """
    if math.isnan(seconds):
        return "-"
    for factor, unit in ((1.0, "s"), (MS, "ms")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / US:.3g} us"
