"""Clusters: how many nodes of how many GPUs, how they are joined, and what every effect costs.

A cluster is a file in data/clusters. It keeps facts about the hardware, which somebody looked up,
apart from the effects, which somebody fitted and which carry their uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from ddlnb.clusters.effects import UNITS, Effects
from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.paths import CLUSTERS
from ddlnb.plans.alpha_beta import ALL_REDUCES, AlphaBeta, Traffic
from ddlnb.plans.placement import PLACEMENTS

SERVER_PLACES = ("extra machines", "workers' nodes")


@dataclass(frozen=True)
class Fit:
    """What is known of one effect: a 90 % interval in its unit, and what it was fitted on."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Cluster:
    """Workers, how they are joined, and the effects that cost time.

    ``workers`` fill nodes of ``gpus_per_node`` one after the other. ``server_place`` is None when
    there are no parameter servers. ``planning`` is the cost of an all-reduce by which methods merge
    gradients, where it is not the cluster's own. ``model_error`` is the relative standard deviation
    of measured from simulated seconds that no uncertainty of an effect explains. ``hardware`` is
    the word for its GPU in the names of profiles.
    """

    name: str
    network: str
    nodes: int
    gpus_per_node: int
    effects: Effects
    workers: int = 0  # all of them
    all_reduce: str = "ring"
    server_place: str | None = None
    placement: str = "balanced"
    planning: AlphaBeta | None = None
    model_error: float = 0.0
    hardware: str = ""
    about: str = field(default="", compare=False)
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)
    fits: Mapping[str, Fit] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        require_whole(nodes=self.nodes, gpus_per_node=self.gpus_per_node)
        if self.workers == 0:
            object.__setattr__(self, "workers", self.most_workers)
        require(
            isinstance(self.model_error, int | float) and 0 <= self.model_error < 1,
            f"model_error {self.model_error!r} must be a number from 0 to below 1",
        )
        choices: list[tuple[str, Any, Iterable[str]]] = [
            ("all-reduce", self.all_reduce, ALL_REDUCES),
            ("place of servers", self.server_place, SERVER_PLACES),
            ("placement of keys", self.placement, PLACEMENTS),
        ]
        for what, value, known in choices:
            if value is None and what == "place of servers":
                continue  # there are none
            if not isinstance(value, str) or value not in known:
                raise UnknownName(what, value, known)
        self._check_workers()

    @property
    def most_workers(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def workers_per_node(self) -> int:
        """Workers on each node in use."""
        return min(self.workers, self.gpus_per_node)

    @property
    def nodes_in_use(self) -> int:
        """Nodes that hold workers."""
        return self.workers // self.workers_per_node

    @property
    def default_servers(self) -> int:
        """One server for every node in use, as in the survey (section 4.1)."""
        return self.nodes_in_use

    @property
    def traffic(self) -> Traffic:
        """What an all-reduce among the workers puts on the links."""
        return ALL_REDUCES[self.all_reduce](self.nodes_in_use, self.workers_per_node)

    @property
    def cost(self) -> AlphaBeta:
        """Seconds of one all-reduce among the workers while they compute."""
        startup, per_byte, computing = self.all_reduce_seconds
        return AlphaBeta(startup / self.effects.startup_share, per_byte / computing)

    @property
    def all_reduce_seconds(self) -> tuple[float, float, float]:
        """Start-up seconds, seconds per byte, and the share of bandwidth left while computing."""
        effects, traffic = self.effects, self.traffic
        startup = (
            effects.operation_startup
            + effects.rank_startup * self.workers
            + effects.inside_startup * traffic.inside_hops
            + effects.between_startup * traffic.between_hops
        )
        inside = traffic.inside_bytes / effects.inside_bandwidth
        between = traffic.between_bytes / effects.between_bandwidth
        joined = max if traffic.overlaps else _plus
        free = joined(inside, between)
        busy = joined(inside / effects.inside_share, between / effects.between_share)
        return startup, free, free / busy if busy else 1.0

    def with_workers(self, workers: int) -> Cluster:
        """The same cluster with this many of its GPUs in use.

        Raises InputError when it has fewer, or when a node would be partly used.
        """
        require_whole(workers=workers)
        return replace(self, workers=workers)

    def _check_workers(self) -> None:
        require_whole(workers=self.workers)
        require(
            self.workers <= self.most_workers,
            f"{self.workers} workers exceed the {self.most_workers} GPUs of cluster {self.name!r} "
            f"({self.nodes} nodes of {self.gpus_per_node}); use fewer, or a larger cluster",
        )
        require(
            self.workers <= self.gpus_per_node or self.workers % self.gpus_per_node == 0,
            f"{self.workers} workers do not fill nodes of {self.gpus_per_node} GPUs of cluster "
            f"{self.name!r}; use a multiple of {self.gpus_per_node}",
        )

    def with_effects(self, **values: float) -> Cluster:
        """The same cluster with these effects replaced: seconds, bytes per second, shares."""
        for name in values:
            if name not in UNITS:
                raise UnknownName("effect", name, UNITS)
        return replace(self, effects=replace(self.effects, **values))

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, workers={self.workers} of {self.most_workers})"


def _plus(left: float, right: float) -> float:
    return left + right


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
        given.keys() == {"startup", "bandwidth"},
        f"planning has the keys {sorted(map(str, given))}; it must have startup and bandwidth",
    )
    try:
        startup = _parsed("operation_startup", given["startup"])
        bandwidth = _parsed("between_bandwidth", given["bandwidth"])
    except InputError as error:
        raise InputError(f"planning: {error}") from error
    return AlphaBeta(startup, 1 / bandwidth)


def describe(cluster: Cluster) -> list[dict[str, str]]:
    """One row per effect that the cluster has: its value, its interval and where it is from."""
    default = Effects()
    rows = []
    for effect, unit in UNITS.items():
        value = getattr(cluster.effects, effect)
        if value == getattr(default, effect):
            continue
        fit = cluster.fits.get(effect)
        rows.append(
            {
                "effect": effect,
                "value": unit.show(value),
                "90 % interval": f"{unit.show(fit.low)} to {unit.show(fit.high)}" if fit else "-",
                "from": fit.source if fit else "given",
            }
        )
    return rows
