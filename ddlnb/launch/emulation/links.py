"""The link between a node and its network: bandwidth, latency, jitter and loss."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ddlnb.errors import InputError, UnknownName, require


def _show_rate(bytes_per_second: float) -> str:
    bits = 8 * bytes_per_second
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= size:
            return f"{bits / size:g}{unit}b/s"
    return f"{bits:g}b/s"


@dataclass(frozen=True)
class Link:
    """What joins a node to the switch, in both directions at once.

    ``bandwidth`` is in bytes per second and counts headers; ``latency`` is in seconds, one way from
    a node to another one with the same link; ``jitter`` is the most that is added to it; ``loss``
    the share of packets that get lost at this node.
    """

    bandwidth: float
    latency: float
    jitter: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.bandwidth, self.latency, self.jitter, self.loss)
        require(
            all(isinstance(n, int | float) and math.isfinite(n) for n in numbers),
            f"{self} must consist of finite numbers",
        )
        require(self.bandwidth > 0, f"bandwidth {self.bandwidth} bytes per second must be positive")
        require(self.latency >= 0, f"latency {self.latency} s must not be negative")
        require(self.jitter >= 0, f"jitter {self.jitter} s must not be negative")
        require(0 <= self.loss < 1, f"loss {self.loss} must be from 0 to below 1")

    def slowed(self, scale: float) -> Link:
        """Return the link slowed to ``scale`` of its real speed.

        >>> Link(1.25e9, 20e-6).slowed(1 / 100)
        Link(bandwidth=12500000.0, latency=0.002, jitter=0.0, loss=0.0)
        """
        return replace(
            self,
            bandwidth=self.bandwidth * scale,
            latency=self.latency / scale,
            jitter=self.jitter / scale,
        )

    def __str__(self) -> str:
        parts = [_show_rate(self.bandwidth), f"{1e6 * self.latency:g}us"]
        if self.jitter:
            parts.append(f"jitter {1e6 * self.jitter:g}us")
        if self.loss:
            parts.append(f"loss {100 * self.loss:g}%")
        return " ".join(parts)


# Nominal rates, and latencies one way between two hosts over one switch as such networks have them.
LINKS = {
    "100MbE": Link(100e6 / 8, 100e-6),
    "1GbE": Link(1e9 / 8, 50e-6),
    "10GbE": Link(10e9 / 8, 20e-6),
    "100GbE": Link(100e9 / 8, 10e-6),
    "100GbIB": Link(100e9 / 8, 2e-6),
}
# Apart from `ddlnb.units`: links are written without spaces inside a value and also in plain bits,
# and 50us is 50 / 1e6 here but 50 * 1e-6 there, which differ in the last bit.
_NUMBER = r"(\d[\d.]*(?:e[+-]?\d+)?)"
_RATE = re.compile(_NUMBER + r"\s*(k|M|G)?b(?:it)?/?s?$")
_TIME = re.compile(_NUMBER + r"\s*(s|ms|us)$")
_SHARE = re.compile(_NUMBER + r"()$")
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}  # a prefix multiplies, a smaller unit divides
_PARTS = {"s": 1.0, "ms": 1e3, "us": 1e6}
_HOW = "write a name or, for example, '1Gb/s 50us', '100Mb/s 1ms jitter 200us loss 1%'"


def get_link(text: str | Link) -> Link:
    """Return the link of that name, or the one described in words. Raises InputError.

    >>> get_link("1Gb/s 50us")
    Link(bandwidth=125000000.0, latency=5e-05, jitter=0.0, loss=0.0)
    """
    if isinstance(text, Link):
        return text
    if text in LINKS:
        return LINKS[text]
    words = str(text).replace(",", " ").split()
    if len(words) < 2:
        raise UnknownName("network", str(text), [*LINKS, "1Gb/s 50us"])
    bandwidth = _number(text, words[0], _RATE) / 8
    values = {"latency": _number(text, words[1], _TIME)}
    rest = words[2:]
    require(len(rest) % 2 == 0, f"network {text!r} cannot be read; {_HOW}")
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        if name == "loss" and value.endswith("%"):
            values["loss"] = _number(text, value[:-1], _SHARE) / 100
        elif name == "jitter":
            values["jitter"] = _number(text, value, _TIME)
        else:
            raise InputError(f"network {text!r}: {name!r} {value!r} cannot be read; {_HOW}")
    return Link(bandwidth, **values)


def links_of(network: str | Link | Sequence[str | Link], nodes: int) -> list[Link]:
    """Return one link per node: all alike, or as listed. Raises InputError for another number."""
    if isinstance(network, str | Link):
        return [get_link(network)] * nodes
    links = [get_link(one) for one in network]
    require(
        len(links) == nodes,
        f"network={list(map(str, network))} has {len(links)} links for {nodes} nodes; "
        f"give one for each node, or one for all",
    )
    return links


def _number(text: object, word: str, pattern: re.Pattern) -> float:
    if found := pattern.match(word):
        unit = found[2] or ""
        with suppress(ValueError):  # 1.2.3, say
            return float(found[1]) * _TIMES.get(unit, 1.0) / _PARTS.get(unit, 1.0)
    raise InputError(f"network {text!r}: {word!r} cannot be read; {_HOW}")
