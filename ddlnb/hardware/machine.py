"""Machines as they are sold or rented, what is left of data sheets inside, and what joins them.

A network's rate is lanes times bits/s on the wire times the share of them that is data. Classes
here check and convert what a file of data/hardware holds, when it is read as one of them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ddlnb.errors import look_up, require, require_positive
from ddlnb.files import HARDWARE
from ddlnb.hardware.gpu import WITHOUT_OTHER_KEYS, Gpu, Source, in_units, named
from ddlnb.reading import read_yaml
from ddlnb.units import BITS_PER_BYTE, GB, bandwidth_from, quantity_from, show_bandwidth

Quantity = Annotated[float, BeforeValidator(quantity_from)]


@dataclass(frozen=True)
class Known:
    """A number with its 90 % interval, and where it comes from."""

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    value: Quantity
    low: Quantity
    high: Quantity
    source: Annotated[str, Field(alias="from")]

    def __post_init__(self) -> None:
        require(
            0 < self.low <= self.value <= self.high,
            f"{self.value} must lie between its low {self.low} and its high {self.high}, above 0",
        )

    def times(self, factor: float) -> Known:
        """Return this number, with its interval, times a factor."""
        return Known(self.value * factor, self.low * factor, self.high * factor, self.source)


@dataclass(frozen=True)
class Line:
    """Lanes of a network's port, bits/s of each on the wire, and the share of them that is data.

    >>> Line(4, 14.0625e9, Fraction(64, 66)).bandwidth * 8 / 1e9  # FDR, "56 Gb/s"
    54.54545454545455
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    lanes: Annotated[int, Field(ge=1)]
    lane_rate: Annotated[float, *in_units("Gbps", GB)]
    data: Annotated[Fraction, Field(alias="code")]

    @property
    def bandwidth(self) -> float:
        """Bytes/s of data in one direction."""
        return self.lanes * self.lane_rate * float(self.data) / BITS_PER_BYTE


@dataclass(frozen=True)
class Protocol:
    """What software and headers make of a line.

    ``share`` of the line rate is what a large message gets, ``latency`` the seconds of one hop
    between two nodes, ``cap`` the bytes/s that the software of a node moves for each of its ports,
    None where it does not matter. ``words`` is the pattern by which texts name it.
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    words: str
    share: Known
    latency: Known
    cap: Known | None = None

    def is_named_by(self, text: str) -> bool:
        """Return whether a text names this protocol."""
        return re.search(self.words, text, re.IGNORECASE) is not None


@functools.cache
def protocols() -> Mapping[str, Protocol]:
    """Return the protocols of data/hardware/protocols.yaml by name."""
    found: dict[str, Protocol] = read_yaml(HARDWARE / "protocols.yaml", named(Protocol)).root
    return found


def _protocol(name: str) -> Protocol:
    return look_up("protocol", name, protocols())


@dataclass(frozen=True)
class Interconnect:
    """What joins nodes: ports of each, their line rate in bytes/s, and the protocol.

    ``line`` is what a port puts on the wire, None where nobody publishes it.

    >>> import ddlnb
    >>> one = ddlnb.hardware.get_interconnect("8x200GbIB")
    >>> one.protocol.name, one.line_rate / 1e9
    ('InfiniBand', 200.0)
    >>> one_socket = ddlnb.hardware.get_interconnect("100GbE").bandwidth  # which is the limit
    >>> one_socket.value < 0.3 * 12.5e9
    True
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    port_rate: Annotated[float, Field(alias="rate"), BeforeValidator(bandwidth_from)]
    protocol: Annotated[Protocol, BeforeValidator(_protocol)]
    source: Source
    ports: Annotated[int, Field(ge=1)] = 1
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


WITHOUT_PEERS = ("RTX", "TITANRTX")  # families of GPUs whose drivers copy through the host's memory


@dataclass(frozen=True)
class Machine:
    """A node: its GPU, how many of them, and what joins it to others.

    >>> import ddlnb
    >>> ddlnb.hardware.get_machine("p4d")
    Machine('p4d.24xlarge', 8 x A100-SXM4-40GB, EFA-400)
    """

    name: str
    gpu: Gpu
    gpus: int
    interconnect: Interconnect
    source: str
    aliases: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Machine({self.name!r}, {self.gpus} x {self.gpu.name}, {self.interconnect.name})"


@dataclass(frozen=True)
class InsideLink:
    """A kind of link between the GPUs of a node.

    ``share`` of its rate that a large message gets, ``computing`` the share of that which is left
    while the GPU computes, ``latency`` the seconds of a hop.
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    share: Known
    computing: Known
    latency: Known


class NodeCosts(BaseModel):
    """What data/hardware/nodes.yaml says: kinds of links by name, and costs of software by effect.

    ``busy`` are shares that computation and communication leave one another where NVLink is.
    ``memory`` are shares of the bandwidth of a GPU's memory, ``duplex`` what both directions of a
    link carry together with TCP, over what one direction does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    links: dict[str, InsideLink]
    busy: dict[str, Known]
    software: dict[str, Known]
    memory: dict[str, Known]
    duplex: Known

    @field_validator("links", mode="before")
    @classmethod
    def _with_names(cls, links: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
        return {name: {"name": name, **link} for name, link in links.items()}


@functools.cache
def node_costs() -> NodeCosts:
    """Return what data/hardware/nodes.yaml says."""
    return read_yaml(HARDWARE / "nodes.yaml", NodeCosts)


def link_inside(gpu: Gpu) -> InsideLink:
    """Return the kind of link between GPUs of this kind in one node.

    >>> from ddlnb.hardware import get_gpu
    >>> [link_inside(get_gpu(name)).name for name in ("A100", "T4", "RTX2080Ti")]
    ['NVLink', 'PCIe with peers', 'PCIe through the host']
    """
    if gpu.nvlink is not None:
        adding = " with adding switches" if gpu.nvlink.reduces else ""
        return node_costs().links[f"NVLink{adding}"]
    peers = not gpu.family.startswith(WITHOUT_PEERS)
    return node_costs().links["PCIe with peers" if peers else "PCIe through the host"]


def joined_by_nvlink(domain: int, per_node: int, ranks: int) -> int:
    """Return how many of these GPUs a switch of NVLink joins, which then are as one node.

    Of a rack as many are used as divide the ranks: 64 of 72, where these are powers of two.

    >>> joined_by_nvlink(72, 4, 256), joined_by_nvlink(72, 4, 16), joined_by_nvlink(0, 8, 256)
    (64, 16, 8)
    """
    if domain <= per_node:
        return per_node
    return max(one for one in range(1, min(domain, ranks) + 1) if ranks % one == 0)


Joined = TypeVar("Joined", Interconnect, None, Interconnect | None)


def as_nodes(gpu: Gpu, nodes: int, per_node: int, network: Joined) -> tuple[int, int, Joined]:
    """Return nodes, GPUs of each and their network, where those that NVLink joins are one node.

    The ports of all machines in it are its own.
    """
    together = joined_by_nvlink(gpu.nvlink_domain, per_node, nodes * per_node)
    if network is not None:
        network = replace(network, ports=network.ports * together // per_node)
    return nodes * per_node // together, together, network
