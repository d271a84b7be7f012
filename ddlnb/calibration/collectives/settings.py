"""From a row of the table to the circumstances that the cost model knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddlnb.calibration.collectives.cost import Setting
from ddlnb.calibration.collectives.hardware import Gpu, Network, gpu_of, network_of

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
