"""A machine as it is sold or rented: which GPUs, how many, and its network.

What is left of data sheets inside a node, and what the software of its workers costs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ddlnb.files import HARDWARE, read_yaml
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect, Known, KnownEntry
from ddlnb.units import bandwidth_from, seconds_from


@dataclass(frozen=True)
class Machine:
    """A node: its GPU, how many of them, and what joins it to others.

    >>> import ddlnb
    >>> ddlnb.get_machine("p4d")
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


class MachineEntry(BaseModel):
    """The keys of a machine in data/hardware/machines."""

    model_config = ConfigDict(extra="forbid")

    aliases: tuple[str, ...]
    gpu: str
    gpus: int = Field(ge=1, le=72)
    network: str
    source: str = Field(min_length=8)


PATH = HARDWARE / "nodes.yaml"
LinkName = Literal[
    "NVLink", "NVLink with adding switches", "PCIe with peers", "PCIe through the host"
]
WITHOUT_PEERS = ("RTX", "TITANRTX")  # families of GPUs whose drivers copy through the host's memory


@dataclass(frozen=True)
class InsideLink:
    """A kind of link between the GPUs of a node.

    ``share`` of its rate that a large message gets, ``computing`` the share of that which is left
    while the GPU computes, ``latency`` the seconds of a hop.
    """

    name: str
    share: Known
    computing: Known
    latency: Known


@dataclass(frozen=True)
class NodeCosts:
    """Kinds of links by name, and costs of software by the name of the effect that they are.

    ``busy`` are shares that computation and communication leave one another where NVLink is.
    ``memory`` are shares of the bandwidth of a GPU's memory, ``duplex`` what both directions of a
    link carry together with TCP, over what one direction does.
    """

    links: Mapping[str, InsideLink]
    busy: Mapping[str, Known]
    software: Mapping[str, Known]
    memory: Mapping[str, Known]
    duplex: Known


def link_inside(gpu: Gpu) -> InsideLink:
    """Return the kind of link between GPUs of this kind in one node.

    >>> from ddlnb import get_gpu
    >>> [link_inside(get_gpu(name)).name for name in ("A100", "T4", "RTX2080Ti")]
    ['NVLink', 'PCIe with peers', 'PCIe through the host']
    """
    if gpu.nvlink is not None:
        adding = " with adding switches" if gpu.nvlink.reduces else ""
        return node_costs().links[f"NVLink{adding}"]
    peers = not gpu.family.startswith(WITHOUT_PEERS)
    return node_costs().links["PCIe with peers" if peers else "PCIe through the host"]


@functools.cache
def node_costs() -> NodeCosts:
    """Return what data/hardware/nodes.yaml says."""
    return read_yaml(PATH, NodesFile).costs()


class LinkEntry(BaseModel):
    """A kind of link inside nodes."""

    model_config = ConfigDict(extra="forbid")

    share: KnownEntry
    computing: KnownEntry
    latency: KnownEntry

    def link(self, name: str) -> InsideLink:
        """Return the kind of link under this name."""
        share, computing = self.share.known(float), self.computing.known(float)
        return InsideLink(name, share, computing, self.latency.known(seconds_from))


class NodesFile(BaseModel):
    """The keys of data/hardware/nodes.yaml; `NodeCosts` has their meanings."""

    model_config = ConfigDict(extra="forbid")

    links: dict[LinkName, LinkEntry]
    busy: dict[str, KnownEntry]
    software: dict[str, KnownEntry]
    memory: dict[str, KnownEntry]
    duplex: KnownEntry

    def costs(self) -> NodeCosts:
        """Return the costs."""
        return NodeCosts(
            {name: entry.link(name) for name, entry in self.links.items()},
            {name: entry.known(float) for name, entry in self.busy.items()},
            {name: _software(name, entry) for name, entry in self.software.items()},
            {name: entry.known(float) for name, entry in self.memory.items()},
            self.duplex.known(float),
        )


def _software(effect: str, entry: KnownEntry) -> Known:
    return entry.known(bandwidth_from if effect.endswith("bandwidth") else seconds_from)
