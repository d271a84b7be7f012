"""What a row of a table says about its network: the rate of a node, and whether it is TCP."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from ddlnb.clusters.named import usual_network
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_interconnect, protocol_of
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.parallelism.forecast.row import Row
from ddlnb.units import BITS_PER_BYTE, GB

PORTS = re.compile(r"(\d+)\s*x\s*[^\d]*(\d+)\s*Gb", re.IGNORECASE)  # 8x HDR 200 Gb/s


def network_of(row: Row, gpu: Gpu, per_node: int) -> dict[str, float]:
    """Return bytes/s of a node to others: ``across`` by the line, ``sockets`` over TCP.

    A protocol that the words do not name is the usual one for the GPU.
    """
    words, across = row.text("network"), _line_rate(row, gpu, per_node)
    joined = _named(words)
    if joined is None:
        usual = get_interconnect(usual_network(gpu, per_node))
        joined = replace(usual, protocol=protocol_of(words) or usual.protocol)
    ports = max(1, round(across / joined.port_rate))
    sockets = replace(joined, ports=ports).socket_bandwidth
    return {"across": across, "sockets": sockets}


@lru_cache(maxsize=256)
def _named(words: str) -> Interconnect | None:
    try:
        return get_interconnect(words) if words else None
    except InputError:
        return None


def _line_rate(row: Row, gpu: Gpu, per_node: int) -> float:
    """Return what words say, otherwise the ports usual for the GPU."""
    words, usual = row.text("network"), gpu.port * per_node
    if ports := PORTS.search(words):
        return int(ports[1]) * float(ports[2]) / BITS_PER_BYTE * GB
    joined = _named(words)
    if joined is None:
        row.notes.add("the rate of the network", f"that of the ports usual for {gpu.name}")
        return usual
    if "per gpu" in words.lower():
        return joined.line_rate * per_node
    if "node" not in words.lower() and joined.line_rate < usual / 2:
        row.notes.add(f"a rate per node (network {words!r})", "that of one GPU's port")
        return joined.line_rate * per_node
    return joined.line_rate
