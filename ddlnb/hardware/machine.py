"""A machine as it is sold or rented, and what is left of data sheets inside a node."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from ddlnb.files import HARDWARE
from ddlnb.hardware.gpu import WITHOUT_OTHER_KEYS, Gpu
from ddlnb.hardware.interconnect import Interconnect, Known
from ddlnb.reading import read_yaml

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
