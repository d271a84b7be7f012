"""Writes a cluster as a file of data/clusters, from which `read_cluster` has it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import BANDWIDTH, SECONDS, UNITS, Effects
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.files import write_atomically
from ddlnb.paths import CLUSTERS
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.units import GB, KB, MB, MS, US, gigabits_per_second

NETWORK = ("between", "server", "connection", "duplex")  # are given in bits, others in bytes
NEEDED = ("inside_bandwidth", "between_bandwidth", "server_bandwidth")  # by read_cluster


def write_cluster(cluster: Cluster, path: str | Path) -> Path:
    """The path, which now describes the cluster: first facts, then effects with their intervals.

    Numbers have six digits. The name of a cluster is that of its file; how many of its workers
    are in use is not written.
    """
    effects = "".join(f"  {name}: {_flow(value)}\n" for name, value in _effects(cluster).items())
    head = yaml.safe_dump(_structure(cluster), sort_keys=False, allow_unicode=True, width=math.inf)
    return write_atomically(path, f"{head}effects:\n{effects}")


def _structure(cluster: Cluster) -> dict[str, Any]:
    """What is not an effect and differs from what a cluster has without being told."""
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
        found[entry.name] = dict(value) if isinstance(value, Mapping) else value
    return found


def _effects(cluster: Cluster) -> dict[str, Any]:
    default = Effects()
    found: dict[str, Any] = {}
    for name in UNITS:
        value, fit = getattr(cluster.effects, name), cluster.fits.get(name)
        if fit is not None:
            found[name] = _fitted(name, value, fit)
        elif value != getattr(default, name) or name in NEEDED:
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
    """A value with its unit; the unit is chosen so that people can read it."""
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


def get_cluster(
    name: str | Cluster, workers: int | None = None, folder: Path = CLUSTERS
) -> Cluster:
    """The named cluster of data/clusters, one at the given path, or the Cluster itself.

    ``workers`` is the number of its GPUs in use, by default all. Raises UnknownName with the names
    there are, InputError for a file that does not describe a cluster.
    """
    if isinstance(name, Cluster):
        cluster = name
    elif str(name).endswith((".yaml", ".yml")):
        cluster = read_cluster(Path(name))
    else:
        known = cluster_names(folder)
        if name not in known:
            raise UnknownName("cluster", name, [*known, "or the path of a .yaml file"])
        cluster = read_cluster(folder / f"{name}.yaml")
    return cluster if workers is None else cluster.with_workers(workers)


def cluster_names(folder: Path = CLUSTERS) -> list[str]:
    """The names of the clusters in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


STRUCTURE = {entry.name for entry in fields(Cluster)} - {"effects", "name", "workers", "fits"}


def read_cluster(path: Path) -> Cluster:
    """The cluster that a YAML file describes. Raises InputError, naming the file and the key."""
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cluster file {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"cluster file {path} is not YAML: {error}") from error
    require(isinstance(raw, dict), f"cluster file {path} must be a mapping of keys to values")
    try:
        return _cluster_from(path.stem, raw)
    except InputError as error:
        error.args = (f"cluster file {path}: {error}",)
        raise


def _cluster_from(name: str, raw: dict[str, Any]) -> Cluster:
    for key in raw:
        if key not in STRUCTURE | {"effects"}:
            raise UnknownName("key", key, sorted(STRUCTURE | {"effects"}))
    for key in ("network", "nodes", "gpus_per_node", "effects"):
        require(key in raw, f"key {key!r} is missing; every cluster has one")
    for key in ("effects", "facts", "planning"):
        require(isinstance(raw.get(key, {}), dict), f"{key} must be a mapping of names to values")
    values, fits = {}, {}
    for effect, given in raw["effects"].items():
        if effect not in UNITS:
            raise UnknownName("effect", effect, UNITS)
        values[effect], fit = _effect_from(effect, given)
        if fit is not None:
            fits[effect] = fit
    _require_links(raw, values)
    structure = {key: raw[key] for key in raw if key in STRUCTURE - {"planning"}}
    return Cluster(
        name=name,
        effects=Effects(**values),
        fits=fits,
        planning=_planning_from(raw["planning"]) if "planning" in raw else None,
        **{**structure, "network": str(raw["network"])},
    )


def _require_links(raw: dict[str, Any], values: Mapping[str, float]) -> None:
    """A link that is there must have a bandwidth, even if that is 'unlimited'."""
    needed = {
        "inside_bandwidth": (raw["gpus_per_node"] != 1, "nodes hold several GPUs"),
        "between_bandwidth": (raw["nodes"] != 1, "there are several nodes"),
    }
    for effect, (is_needed, why) in needed.items():
        require(
            not is_needed or effect in values,
            f"effects lack {effect}, but {why}; add it, with a unit or as 'unlimited'",
        )


def _effect_from(effect: str, given: Any) -> tuple[float, Fit | None]:
    """The value of an effect and what is known of it."""
    if not isinstance(given, dict):
        return _parsed(effect, given), None
    allowed = {"value", "low", "high", "from"}
    for key in given:
        if key not in allowed:
            raise UnknownName(f"key of {effect}", key, sorted(allowed))
    missing = sorted(allowed - given.keys())
    require(not missing, f"{effect} lacks {missing}; give all of {sorted(allowed)}, or a value")
    value, low, high = (_parsed(effect, given[key]) for key in ("value", "low", "high"))
    require(
        low <= value <= high,
        f"{effect} {given['value']} must lie between its low {given['low']} and its high "
        f"{given['high']}",
    )
    return value, Fit(low, high, str(given["from"]))


def _parsed(effect: str, text: Any) -> float:
    unit = UNITS[effect]
    try:
        value = unit.parse(text)
    except InputError as error:
        raise InputError(f"{effect}: {error}") from error
    require(
        not math.isnan(value) and unit.least <= value <= unit.most,
        f"{effect} {text!r} must be {unit.name}, from {unit.least:g} to {unit.most:g}",
    )
    return value


def _planning_from(given: dict[str, Any]) -> AlphaBeta:
    require(
        given.keys() == {"latency", "bandwidth"},
        f"planning has the keys {sorted(map(str, given))}; it must have latency and bandwidth",
    )
    try:
        latency = _parsed("operation_latency", given["latency"])
        bandwidth = _parsed("between_bandwidth", given["bandwidth"])
    except InputError as error:
        raise InputError(f"planning: {error}") from error
    return AlphaBeta(latency, 1 / bandwidth)
