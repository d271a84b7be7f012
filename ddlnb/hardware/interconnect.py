"""How nodes are joined: the line, what a protocol makes of it, and how well that is known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddlnb.errors import InputError, require, require_positive
from ddlnb.hardware.gpu import Line, LineEntry
from ddlnb.units import bandwidth_from, seconds_from, show_bandwidth


@dataclass(frozen=True)
class Known:
    """A number with its 90 % interval, and where it comes from."""

    value: float
    low: float
    high: float
    source: str

    def __post_init__(self) -> None:
        require(
            0 < self.low <= self.value <= self.high,
            f"{self.value} must lie between its low {self.low} and its high {self.high}, above 0",
        )

    def times(self, factor: float) -> Known:
        """Return this number, with its interval, times a factor."""
        return Known(self.value * factor, self.low * factor, self.high * factor, self.source)


@dataclass(frozen=True)
class Protocol:
    """What software and headers make of a line.

    ``share`` of the line rate is what a large message gets, ``latency`` the seconds of one hop
    between two nodes, ``cap`` the bytes/s that the software of a node moves for each of its ports,
    None where it does not matter. ``words`` is the pattern by which texts name it.
    """

    name: str
    words: str
    share: Known
    latency: Known
    cap: Known | None = None

    def is_named_by(self, text: str) -> bool:
        """Return whether a text names this protocol."""
        return re.search(self.words, text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Interconnect:
    """What joins nodes: ports of each, their line rate in bytes/s, and the protocol.

    ``line`` is what a port puts on the wire, None where nobody publishes it.

    >>> import ddlnb
    >>> one = ddlnb.get_interconnect("8x200GbIB")
    >>> one.protocol.name, one.line_rate / 1e9
    ('InfiniBand', 200.0)
    >>> ddlnb.get_interconnect("100GbE").bandwidth.value < 0.3 * 12.5e9  # one socket is the limit
    True
    """

    name: str
    ports: int
    port_rate: float
    protocol: Protocol
    source: str
    aliases: tuple[str, ...] = ()
    line: Line | None = None

    def __post_init__(self) -> None:
        require_positive(ports=self.ports, port_rate=self.port_rate)

    @property
    def line_rate(self) -> float:
        """Bytes/s of a node in one direction, by the data sheet."""
        return self.ports * self.port_rate

    @property
    def latency(self) -> Known:
        """Seconds of one hop between two nodes, software included."""
        return self.protocol.latency

    @property
    def bandwidth(self) -> Known:
        """Bytes/s of a large message of a node in one direction: the line, or its software."""
        line, cap = self.protocol.share.times(self.line_rate), self.protocol.cap
        limit = cap and cap.times(self.ports)
        if limit is None or line.value <= limit.value:
            return line
        return Known(
            limit.value, min(limit.low, line.low), min(limit.high, line.high), limit.source
        )

    @property
    def socket_bandwidth(self) -> float:
        """Bytes/s of a node over TCP, as ``bandwidth``; infinite for a protocol without sockets."""
        return math.inf if self.protocol.cap is None else self.bandwidth.value

    def is_like(self, other: Interconnect) -> bool:
        """Return whether another one has the same rate and protocol, whatever it is called."""
        return (self.line_rate, self.protocol) == (other.line_rate, other.protocol)

    def __repr__(self) -> str:
        return (
            f"Interconnect({self.name!r}, {self.protocol.name}, "
            f"{self.ports} x {show_bandwidth(self.port_rate)})"
        )


class KnownEntry(BaseModel):
    """A number with its interval as a file writes it."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    value: str
    low: str
    high: str
    source: str = Field(alias="from")

    def known(self, read: Callable[[str], float]) -> Known:
        """Return the number, its texts read so."""
        return Known(read(self.value), read(self.low), read(self.high), self.source)


class ProtocolEntry(BaseModel):
    """The keys of a protocol in data/hardware/protocols.yaml."""

    model_config = ConfigDict(extra="forbid")

    words: str
    share: KnownEntry
    latency: KnownEntry
    cap: KnownEntry | None = None

    def protocol(self, name: str) -> Protocol:
        """Return the protocol under this name."""
        cap = None if self.cap is None else self.cap.known(bandwidth_from)
        share, latency = self.share.known(float), self.latency.known(seconds_from)
        return Protocol(name, self.words, share, latency, cap)


class InterconnectEntry(BaseModel):
    """The keys of a network in data/hardware/networks."""

    model_config = ConfigDict(extra="forbid")

    aliases: tuple[str, ...]
    rate: str
    ports: int = Field(default=1, ge=1)
    line: LineEntry | None = None
    protocol: str
    source: str = Field(min_length=8)

    @model_validator(mode="after")
    def _rate(self) -> InterconnectEntry:
        try:
            bandwidth_from(self.rate)
        except InputError as error:
            raise InputError(f"rate: {error}") from error
        return self

    def interconnect(self, name: str, protocol: Protocol) -> Interconnect:
        """Return the network under this name."""
        rate = bandwidth_from(self.rate)
        line = None if self.line is None else self.line.line()
        return Interconnect(name, self.ports, rate, protocol, self.source, self.aliases, line)
