"""Write a cluster as a file of data/clusters, which `read_cluster` reads back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import BANDWIDTH, SECONDS, UNITS, Effects
from ddlnb.clusters.file import ClusterFile
from ddlnb.clusters.unlike import Unlike
from ddlnb.files import write_atomically
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.units import GB, KB, MB, MS, US, gigabits_per_second

STRUCTURE = ClusterFile.model_fields.keys() - {"effects"}
NETWORK = ("between", "server", "connection", "duplex")  # bandwidths written in bits, not bytes
WRITTEN = ("inside_bandwidth", "between_bandwidth", "server_bandwidth")  # even if unlimited


def write_cluster(cluster: Cluster, path: str | Path) -> Path:
    """Write facts, then effects with their intervals, and return the path.

    Numbers have six digits. The name of a cluster is that of its file; how many of its workers
    are in use is not written.
    """
    effects = "".join(f"  {name}: {_flow(value)}\n" for name, value in _effects(cluster).items())
    head = yaml.safe_dump(_structure(cluster), sort_keys=False, allow_unicode=True, width=math.inf)
    return write_atomically(path, f"{head}effects:\n{effects}")


def _structure(cluster: Cluster) -> dict[str, Any]:
    """Return all but the effects, where it differs from the default."""
    found: dict[str, Any] = {"about": cluster.about} if cluster.about else {}
    for entry in fields(Cluster):
        if entry.name not in STRUCTURE - {"about"}:
            continue
        value = getattr(cluster, entry.name)
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        if value == default:
            continue
        if isinstance(value, AlphaBeta):
            value = {
                "latency": _text("operation_latency", value.latency_seconds),
                "bandwidth": _text("inside_bandwidth", value.bytes_per_second),
            }
        if isinstance(value, Unlike):
            value = _unlike(value)
        found[entry.name] = dict(value) if isinstance(value, Mapping) else value
    return found


def _unlike(unlike: Unlike) -> dict[str, Any]:
    """Return what differs from workers that are alike."""
    found: dict[str, Any] = {
        name: dict(factors)
        for name, factors in (("compute", unlike.compute), ("link", unlike.link))
        if factors
    }
    if (delay := unlike.delay) is not None:
        drawn = {"distribution": delay.distribution, "mean": f"{delay.mean:.6g} s"}
        shape = {} if delay.shape is None else {"shape": delay.shape}
        found["delay"] = {**drawn, **shape, "seed": delay.seed}
    return found


def _effects(cluster: Cluster) -> dict[str, Any]:
    default = Effects()
    found: dict[str, Any] = {}
    for name in UNITS:
        value, fit = getattr(cluster.effects, name), cluster.fits.get(name)
        if fit is not None:
            found[name] = _fitted(name, value, fit)
        elif value != getattr(default, name) or name in WRITTEN:
            found[name] = _text(name, value)
    return found


def _fitted(name: str, value: float, fit: Fit) -> dict[str, Any]:
    return {
        "value": _text(name, value),
        "low": _text(name, fit.low),
        "high": _text(name, fit.high),
        "from": fit.source,
    }


def _text(name: str, value: float) -> str | float:
    """Return a value with a unit that suits its size."""
    if UNITS[name] is SECONDS:
        unit, factor = ("us", US) if value < MS else ("ms", MS) if value < 1 else ("s", 1.0)
        return f"{value / factor:.6g} {unit}"
    if UNITS[name] is not BANDWIDTH:
        return float(f"{value:.6g}")
    if math.isinf(value):
        return "unlimited"
    if name.partition("_")[0] in NETWORK:
        return f"{gigabits_per_second(value):.6g} Gb/s"
    unit, factor = ("GB/s", GB) if value >= GB else ("MB/s", MB) if value >= MB else ("kB/s", KB)
    return f"{value / factor:.6g} {unit}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text.removesuffix("\n...\n").rstrip("\n")
