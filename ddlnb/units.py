"""Bytes and seconds: the only place with factors of 8, 1000 and 1024.

Everything inside ddlnb is in bytes and seconds. Text such as ``"4 MB"`` or ``"10Gbit/s"`` is
converted here, at the edge, and numbers are made readable here on their way out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ddlnb.errors import InputError, require

KB, MB, GB = 1_000, 1_000_000, 1_000_000_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS, US = 1e-3, 1e-6
BITS_PER_BYTE = 8

_SECONDS = {
    "s": 1.0, "ms": MS, "us": US, "ns": 1e-9, "min": 60.0, "h": 3600.0,
    "day": 86_400.0, "days": 86_400.0,
}  # fmt: skip
_BANDWIDTHS = {
    f"{prefix}{unit}/s": factor / divisor
    for unit, divisor in (("B", 1), ("b", BITS_PER_BYTE))
    for prefix, factor in (("k", KB), ("M", MB), ("G", GB))
}
_BYTES = {"B": 1, "KB": KB, "MB": MB, "GB": GB, "KIB": KIB, "MIB": MIB, "GIB": GIB}


def bytes_from(text: str | int) -> int:
    """Whole bytes from ``4096``, ``"4096"``, ``"4 MB"`` (10**6) or ``"4 MiB"`` (2**20).

    Raises InputError for anything else, zero and negative sizes.

    >>> bytes_from("4MB"), bytes_from("1 MiB"), bytes_from(4096)
    (4000000, 1048576, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?![kKMG]i?b\b)[a-zA-Z]*)\s*", str(text))
    factor = _BYTES.get((match[2] or "B").upper()) if match else None
    if match is None or factor is None or not 1 <= float(match[1]) * factor < math.inf:
        raise InputError(
            f"size {text!r} is not a positive number of bytes; "
            f"write a whole number, or one with a unit such as '4MB' or '64KiB'"
        )
    return round(float(match[1]) * factor)


def seconds_from(text: str) -> float:
    """Seconds from text with a unit: ``"95.6 us"``, ``"3 ms"``, ``"0.2 s"``, ``"2 days"``.

    Raises InputError for anything else, a number without a unit and negative times.

    >>> seconds_from("1.5 ms"), seconds_from("0 s"), seconds_from("1 day")
    (0.0015, 0.0, 86400.0)
    """
    return _quantity(text, _SECONDS, "duration", "'95.6 us' or '3 ms'")


def bandwidth_from(text: str) -> float:
    """Bytes per second from text with a unit: bits as ``"9.1 Gb/s"``, bytes as ``"4.6 GB/s"``.

    ``"unlimited"`` is infinite. Raises InputError for anything else, a number without a unit, zero
    and negative bandwidths.

    >>> bandwidth_from("8 Gb/s"), bandwidth_from("1 GB/s"), bandwidth_from("unlimited")
    (1000000000.0, 1000000000.0, inf)
    """
    if str(text).strip() == "unlimited":
        return math.inf
    value = _quantity(text, _BANDWIDTHS, "bandwidth", "'9.1 Gb/s' or '4.6 GB/s', or 'unlimited'")
    require(value > 0, f"bandwidth {text!r} must be positive; leave it out where there is no limit")
    return value


def quantity_from(value: float | str) -> float:
    """A number as it is, and seconds or bytes per second from text with a unit.

    >>> quantity_from(0.85), quantity_from("34 us"), quantity_from("8 Gb/s")
    (0.85, 3.4e-05, 1000000000.0)
    """
    if isinstance(value, int | float):
        return float(value)
    return bandwidth_from(value) if value.endswith("/s") else seconds_from(value)


_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def count_from(text: float | str) -> float:
    """Return a number, or one with k, M, B (10**9) or T behind it, as tokens are counted.

    Raises InputError for anything else, zero and negative numbers.

    >>> count_from("2T"), count_from("1.5e12"), count_from("300B"), count_from("15,000,000")
    (2000000000000.0, 1500000000000.0, 300000000000.0, 15000000.0)
    """
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", str(text))
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([kMBGT]?)\s*", plain)
    value = float(match[1]) * _COUNTS[match[2]] if match else 0.0
    require(
        0 < value < math.inf,
        f"{text!r} is no number above 0; write it like '300B', '2T' or '2e12'",
    )
    return value


def show_count(number: float) -> str:
    """A large number for people, of three digits.

    >>> show_count(2e12), show_count(227_412.0), show_count(12.34)
    ('2T', '227k', '12.3')
    """
    for name in ("T", "B", "M", "k"):
        if number >= _COUNTS[name]:
            return f"{number / _COUNTS[name]:.3g}{name}"
    return f"{number:.3g}"


def _quantity(text: str, factors: dict[str, float], what: str, examples: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([a-zA-Z/]+)\s*", str(text))
    if match is None or match[2] not in factors:
        raise InputError(
            f"{what} {text!r} is no number of 0 or more with one of the units "
            f"{', '.join(factors)}; write it like {examples}"
        )
    return float(match[1]) * factors[match[2]]


def gigabits_per_second(bytes_per_second: float) -> float:
    """Gb/s (10**9 bits) from bytes per second.

    >>> gigabits_per_second(1.25e9)
    10.0
    """
    return bytes_per_second * BITS_PER_BYTE / 1e9


def digits(value: float, count: int) -> str:
    """Return a number rounded to so many digits, never with an exponent.

    >>> digits(38_812, 3), digits(0.12345, 3), digits(16, 3)
    ('38800', '0.123', '16')
    """
    return f"{float(f'{value:.{count}g}'):.15g}"


def show_bytes(count: float) -> str:
    """A size for people, in powers of ten.

    >>> show_bytes(8_196_000), show_bytes(512), show_bytes(1.746e12)
    ('8.2 MB', '512 B', '1750 GB')
    """
    for factor, unit in ((GB, "GB"), (MB, "MB"), (KB, "KB")):
        if abs(count) >= factor:
            return f"{digits(count / factor, 3)} {unit}"
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


def show_bandwidth(bytes_per_second: float) -> str:
    """A bandwidth for people, in bits; `bandwidth_from` reads it back.

    >>> show_bandwidth(1.25e9), show_bandwidth(1.6e12), show_bandwidth(math.inf)
    ('10 Gb/s', '12800 Gb/s', 'unlimited')
    """
    if math.isinf(bytes_per_second):
        return "unlimited"
    return f"{digits(gigabits_per_second(bytes_per_second), 4)} Gb/s"


def show_seconds(seconds: float) -> str:
    """A duration for people.

    >>> [show_seconds(seconds) for seconds in (0.0123, 75e-6, 999.9e-6, 90, 86_400)]
    ['12.3 ms', '75 us', '1 ms', '90 s', '86400 s']
    """
    if math.isnan(seconds):
        return "-"
    for factor, unit in ((1.0, "s"), (MS, "ms")):
        if abs(float(f"{seconds:.3g}")) >= factor:  # as it is shown
            return f"{digits(seconds / factor, 3)} {unit}"
    return f"{seconds / US:.3g} us"


def show_rate(per_second: float) -> str:
    """Return a rate, such as samples per second, with four digits and never with an exponent.

    >>> show_rate(12904.8), show_rate(71.694)
    ('12905', '71.69')
    """
    return f"{per_second:.0f}" if per_second >= 1000 else f"{per_second:.4g}"


def show_rates(low: float, high: float) -> str:
    """Return an interval of rates, of which NaN says that there is none.

    >>> show_rates(99.5, 12904.8), show_rates(math.nan, math.nan)
    ('99.5 to 12905', 'no interval')
    """
    return "no interval" if math.isnan(low) else f"{show_rate(low)} to {show_rate(high)}"


def counted(count: int, one: str, several: str = "") -> str:
    """Return a number of things in words; what several are called ends in s unless it is given.

    >>> counted(1, "message"), counted(1200, "message"), counted(2, "process", "processes")
    ('1 message', '1,200 messages', '2 processes')
    """
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Return words with commas between them, and one before the last.

    >>> listed(["4", "5", "8"], "or"), listed(["ring", "tree"]), listed([])
    ('4, 5 or 8', 'ring and tree', '')
    """
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def gpus_in_words(count: int) -> str:
    """Return a number of GPUs in words.

    >>> gpus_in_words(1), gpus_in_words(8)
    ('1 GPU', '8 GPUs')
    """
    return counted(count, "GPU")
