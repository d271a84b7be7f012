"""What the words for a GPU and a network say about them, by the catalogue of hardware.

Words of a table are free text, such as "H100-SXM (Dell XE9680)" and "RoCE 8x200 Gb/s". What they
do not say is taken from the ports that such GPUs are sold with, and counts as less certain.

From a row of the table to the circumstances that the cost model knows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddlnb.calibration.collectives.cost import Setting
from ddlnb.hardware.catalogue import get_gpu, gpu_in, protocol_of, stated_rate
from ddlnb.units import GB

PCIE_INSIDE = 25 * GB  # bytes/s in one direction, of a GPU without NVLink
UNKNOWN_GPU = "H100"  # what an unknown one is taken for
# Generations of NCCL's tables that others are taken for.
LIKE = {
    "Kepler": "Volta", "Maxwell": "Volta", "Pascal": "Volta", "Turing": "Volta", "Ada": "Ampere",
    "CDNA 2": "Ampere", "CDNA 3": "Hopper", "CDNA 4": "Hopper",
}  # fmt: skip


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

    efficiency: float
    hop_seconds: float
    certainty: float
    fine: float


# By protocol. Efficiencies are those of headers and, for EFA and TCP, of software.
KINDS = {
    "RoCE": NetworkKind(0.92, 4e-6, 0.08, 4.5),
    "EFA": NetworkKind(0.85, 12e-6, 0.15, 1.0),
    "InfiniBand": NetworkKind(0.94, 0.5e-6, 0.06, 4.5),
    "Slingshot": NetworkKind(0.85, 2e-6, 0.15, 1.0),
    "TCP": NetworkKind(0.75, 20e-6, 0.3, 0.5),
}
UNKNOWN = NetworkKind(0.75, 8e-6, 0.5, 1.5)
SLOW_PORT = 12.5 * GB  # bytes/s; a slower network is hardly one port of several


@functools.cache
def gpu_of(words: str) -> Gpu:
    """Return the kind of GPU that words name; an unknown one is taken for an H100.

    >>> gpu_of("NVIDIA A100-SXM4-40GB (OCI BM.GPU4.8)").generation
    'Ampere'
    """
    found = gpu_in(words)
    known = found or get_gpu(UNKNOWN_GPU)
    linked = known.nvlink if "PCIE" not in words.upper().replace(" ", "") else None
    return Gpu(
        known.family if found else words.strip(),
        LIKE.get(known.generation, known.generation),
        linked.bandwidth if linked else min(PCIE_INSIDE, known.pcie_bandwidth),
        linked is not None and linked.reduces,
        known.port,
        found is not None,
    )


@functools.cache
def network_of(words: str, gpu: Gpu, gpus_per_node: int) -> Network:
    """Return the network that words name, for nodes with this many of the GPUs.

    A rate counts as a node's if it has a factor ("8x400 Gb/s"), says so ("per node"), or is of
    EFA or TCP, whose rates usually are; otherwise as that of one port of several, and the node has
    what nodes with such GPUs usually have.
    """
    protocol = protocol_of(words)
    kind = "unknown" if protocol is None else protocol.name
    rate, is_known = _node_rate(words, kind, gpu.port * gpus_per_node)
    one = re.search(r"NVL\d|MNNVL|multi-node nvlink", words, re.IGNORECASE) is not None
    return Network(kind, rate, is_known, is_one_domain=one)


def _node_rate(words: str, kind: str, usual: float) -> tuple[float, bool]:
    """Return bytes/s of a node in one direction, and whether the words say them."""
    stated = stated_rate(words)
    if stated is not None and stated.ports is not None:
        return stated.ports * stated.port_rate, True
    if stated is None or not stated.is_number:
        return usual, False
    rate = stated.port_rate
    of_node = kind in ("EFA", "TCP") or re.search(r"node|host|total", words, re.IGNORECASE)
    whole = of_node or rate < SLOW_PORT or rate > usual / 2
    return (rate, True) if whole else (usual, False)


_ALGORITHMS = {
    "NVLSTree": r"nvls_?tree",
    "NVLS": r"\bnvls\b(?!_)",
    "CollNet": r"coll_?net|sharp",
    "PAT": r"\bpat\b",
    "Ring": r"\bring\b",
    "Tree": r"\btree\b",
}
_PROTOCOLS = {"LL128": r"\bLL128\b", "LL": r"\bLL\b", "Simple": r"\bSimple\b"}
_WITHOUT_SWITCHES = r"NVLS_ENABLE\s*=\s*0|no[- ]nvls|without nvls|nvls[ =:]*(?:off|disabled)"


def hardware_of(row: Mapping[str, Any]) -> tuple[Gpu, Network]:
    """Return the GPU and the network that a row's words name."""
    gpu = gpu_of(_text(row, "gpu"))
    words = " ".join(_text(row, name) for name in ("network", "library", "settings"))
    network = network_of(_text(row, "network"), gpu, int(row["gpus_per_node"]))
    shared = re.search(r"\bshared|production", words, re.IGNORECASE) is not None
    copied = re.search(r"torch", words, re.IGNORECASE) is not None
    return gpu, replace(network, is_shared=shared, is_copied=copied)


def setting_of(row: Mapping[str, Any]) -> Setting:
    """Return the circumstances of a row with collective, nodes, GPUs per node, and words.

    Settings force an algorithm or a protocol if they name it, such as "Ring" and
    "NCCL_ALGO=NVLSTree"; those that begin with "default" name what NCCL chose, and force nothing.
    """
    gpu, network = hardware_of(row)
    nodes, per_node = int(row["nodes"]), int(row["gpus_per_node"])
    if network.is_one_domain:
        nodes, per_node = 1, nodes * per_node
    settings = _text(row, "settings")
    free = settings.casefold().startswith("default")
    off = re.search(_WITHOUT_SWITCHES, settings, re.IGNORECASE) is not None
    words = re.sub(_WITHOUT_SWITCHES, "", settings, flags=re.IGNORECASE)
    return Setting(
        str(row["collective"]),
        nodes,
        per_node,
        gpu.generation,
        gpu.has_switch_reduction and not off,
        frozenset() if free else _named(_ALGORITHMS, words, re.IGNORECASE),
        frozenset() if free else _named(_PROTOCOLS, words, 0),
    )


def _named(known: dict[str, str], words: str, flags: int) -> frozenset[str]:
    return frozenset(name for name, pattern in known.items() if re.search(pattern, words, flags))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    return value if isinstance(value, str) else ""
