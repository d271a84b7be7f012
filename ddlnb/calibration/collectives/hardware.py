"""What the words for a GPU and a network say about them, from data sheets.

Words of a table are free text, such as "H100-SXM (Dell XE9680)" and "RoCE 8x200 Gb/s". What they
do not say is taken from the ports that such GPUs are sold with, and counts as less certain.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass

from ddlnb.paths import PUBLISHED
from ddlnb.units import BITS_PER_BYTE, GB

PATH = PUBLISHED / "accelerators.csv"
PCIE_INSIDE = 25 * GB  # bytes/s in one direction, of a GPU without NVLink


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU: bytes/s that it sends inside a node and, by its port, between nodes."""

    name: str
    generation: str
    inside: float
    has_switch_reduction: bool
    port: float
    is_known: bool


@dataclass(frozen=True)
class Network:
    """A network: its kind, bytes/s of a node in one direction, and how it was measured.

    Others use a shared one at the same time; where a framework stands between the benchmark and
    NCCL, what is gathered is copied. In one domain of NVLink, several nodes are like one.
    """

    kind: str
    node_rate: float
    rate_is_known: bool
    is_shared: bool = False
    is_copied: bool = False
    is_one_domain: bool = False


@dataclass(frozen=True)
class NetworkKind:
    """How networks of a kind fare: share of the line rate, seconds more per hop than NCCL's.

    ``certainty`` is the standard deviation of the logarithm of the share; ``fine`` is above 1 where
    LL128 can be expected to work.
    """

    pattern: str
    efficiency: float
    hop_seconds: float
    certainty: float
    fine: float


# Efficiencies are those of the transport's headers and, for EFA and TCP, of its software.
KINDS = {
    "RoCE": NetworkKind(r"roce|spectrum", 0.92, 4e-6, 0.08, 4.5),
    "EFA": NetworkKind(r"\befa\b|\baws\b|\bp[45][den]*\b", 0.85, 12e-6, 0.15, 1.0),
    "InfiniBand": NetworkKind(r"infiniband|\bib\b|\b[fehnx]dr\b|quantum", 0.94, 0.5e-6, 0.06, 4.5),
    "Slingshot": NetworkKind(r"slingshot|\bcxi\b|omni-?path", 0.85, 2e-6, 0.15, 1.0),
    "TCP": NetworkKind(r"tcp|socket|gvnic|ethernet|\d+ ?gbe\b", 0.75, 20e-6, 0.3, 0.5),
}
UNKNOWN = NetworkKind("", 0.75, 8e-6, 0.5, 1.5)
SLOW_PORT = 12.5 * GB  # bytes/s; a slower network is hardly one port of several
PORTS = {"XDR": 800, "NDR": 400, "HDR": 200, "EDR": 100, "FDR": 56}  # Gb/s of an InfiniBand port


@functools.cache
def _listed() -> tuple[dict[str, str], ...]:
    with PATH.open(newline="") as file:
        return tuple(csv.DictReader(file))


@functools.cache
def gpu_of(words: str) -> Gpu:
    """Return the kind of GPU that words name; an unknown one is taken for an H100.

    >>> gpu_of("NVIDIA A100-SXM4-40GB (OCI BM.GPU4.8)").generation
    'Ampere'
    """
    text = words.upper().replace(" ", "")
    row = next((one for one in _listed() if one["word"] in text), None)
    known = row or next(one for one in _listed() if one["word"] == "H100")
    on_pcie = "PCIE" in text
    return Gpu(
        known["word"] if row else words.strip(),
        known["generation"],
        PCIE_INSIDE if on_pcie else float(known["inside_GBps"]) * GB,
        known["in_switch"] == "yes" and not on_pcie,
        float(known["port_Gbps"]) / BITS_PER_BYTE * GB,
        row is not None,
    )


@functools.cache
def network_of(words: str, gpu: Gpu, gpus_per_node: int) -> Network:
    """Return the network that words name, for nodes with this many of the GPUs.

    A rate counts as a node's if it has a factor ("8x400 Gb/s"), says so ("per node"), or is of
    EFA or TCP, whose rates usually are; otherwise as that of one port of several, and the node has
    what nodes with such GPUs usually have.
    """
    found = (name for name, kind in KINDS.items() if re.search(kind.pattern, words, re.IGNORECASE))
    kind = next(found, "unknown")
    rate, is_known = _node_rate(words, kind, gpu.port * gpus_per_node)
    one = re.search(r"NVL\d|MNNVL|multi-node nvlink", words, re.IGNORECASE) is not None
    return Network(kind, rate, is_known, is_one_domain=one)


def _node_rate(words: str, kind: str, usual: float) -> tuple[float, bool]:
    """Return bytes/s of a node in one direction, and whether the words say them."""
    number = r"(\d+(?:,\d{3})*(?:\.\d+)?)\s*(Gb(?:it)?/?p?s?|GB/s|GbE|G\b)"
    if times := re.search(r"(\d+)\s*[x*]\s*(?:[\w-]+\s+)?" + number, words):
        return int(times[1]) * _bytes(times[2], times[3]), True
    if stated := re.search(number, words):
        rate = _bytes(stated[1], stated[2])
        of_node = kind in ("EFA", "TCP") or re.search(r"node|host|total", words, re.IGNORECASE)
        whole = of_node or rate < SLOW_PORT or rate > usual / 2
        return (rate, True) if whole else (usual, False)
    ports = re.search(r"(?:(\d+)\s*[x*]\s*)?\b(XDR|NDR|HDR|EDR|FDR)\b", words)
    if ports and ports[1]:
        return int(ports[1]) * PORTS[ports[2]] / BITS_PER_BYTE * GB, True
    return usual, False


def _bytes(number: str, unit: str) -> float:
    value = float(number.replace(",", "")) * GB
    return value if unit == "GB/s" else value / BITS_PER_BYTE
