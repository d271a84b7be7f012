"""Fit the cost model to measured collectives, cluster by cluster.

A cluster is what one source measured with one kind of GPU on one network. Its parameters are drawn
from their posterior (`sampling`); priors are from words and data sheets (`priors`), moved to where
other fitted clusters with the same kind of GPU or network have been found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlnb.calibration.collectives.cost import Array, Setting, seconds
from ddlnb.calibration.collectives.hardware import Gpu, Network
from ddlnb.calibration.collectives.priors import BETWEEN, NAMES, Prior, parameters, prior_of
from ddlnb.calibration.collectives.sampling import posterior_draws
from ddlnb.calibration.collectives.settings import hardware_of, setting_of
from ddlnb.errors import require
from ddlnb.results.collectives.rows import SECONDS

if TYPE_CHECKING:
    import pandas as pd

TABLE = ["block", "collective", "nodes", "gpus_per_node", "settings"]
NOISE = 0.10  # of the logarithm of a measured time
FREEDOM = 4.0  # degrees of freedom of Student's t: some rows are outliers
INDEPENDENT = 8.0  # rows that a table counts as, at most: neighbouring sizes err alike
OF_CALLS = ("host",)  # a parameter of the benchmark, which others do not share


class Key(NamedTuple):
    """What makes rows those of one cluster."""

    source: str
    gpu: str
    network: str
    gigabits: int


@dataclass(frozen=True)
class Cluster:
    """A fitted cluster: draws of the logarithms of its parameters, (draws, parameters)."""

    gpu: Gpu
    network: Network
    stems: frozenset[str]
    most_nodes: int
    prior: Prior
    draws: Array

    @property
    def deviation(self) -> tuple[Array, Array]:
        """Return by how much the logarithms differ from what words say, and their variances."""
        words = prior_of(self.gpu, self.network)
        return self.draws.mean(axis=0) - words.mean, self.draws.var(axis=0)


@dataclass(frozen=True)
class Observed:
    """Measured times of one setting: sizes, logarithms of seconds, and what each counts."""

    setting: Setting
    sizes: Array
    logarithms: Array
    weight: float


@dataclass(frozen=True)
class FittedCollectives:
    """Fitted clusters by key."""

    clusters: dict[Key, Cluster]
    count: int
    seed: int

    def draws_for(self, row: Mapping[str, Any]) -> tuple[Array, int]:
        """Return draws for the cluster of a row, and the most nodes that were seen of it.

        A cluster that was seen on one node only has its network from words, and one that was
        not seen has all from words and from what others like it were found to be (0 nodes).
        """
        gpu, network = hardware_of(row)
        key = key_of(row, gpu, network)
        stem = _stem(str(row.get("block", "")))
        of_kind = [c for k, c in self.clusters.items() if k[1:] == key[1:] and stem in c.stems]
        found = self.clusters.get(key) or next(iter(of_kind), None)
        if found and (found.most_nodes > 1 or row["nodes"] == 1):
            return found.draws, found.most_nodes
        random = np.random.default_rng([self.seed, sum(map(ord, "".join(map(str, key))))])
        draws = shared_prior(gpu, network, list(self.clusters.values())).draws(self.count, random)
        same = [c for k, c in self.clusters.items() if k[:2] == key[:2]]
        if not same:
            return draws, 0
        of_nodes = [NAMES.index(name) for name in NAMES if name not in BETWEEN]
        draws[:, of_nodes] = same[0].draws[:, of_nodes]
        return draws, 1


def fit_collectives(rows: pd.DataFrame, *, draws: int = 600, seed: int = 0) -> FittedCollectives:
    """Return the cost model fitted to rows of `read_collectives`. Raises InputError without rows.

    Twice: the second time, every cluster's prior knows what the first found of the others.
    """
    require(len(rows) > 0, "there are no rows to fit; give a table with at least one")
    parts = list(_clusters(rows))
    first: dict[Key, Cluster] = {}
    found: dict[Key, Cluster] = {}
    for known, target in (({}, first), (first, found)):
        for number, (key, part) in enumerate(parts):
            others = [cluster for other, cluster in known.items() if other != key]
            random = np.random.default_rng([seed, number])
            target[key] = _fitted(part, others, draws, random)
    return FittedCollectives(found, draws, seed)


def key_of(row: Mapping[str, Any], gpu: Gpu, network: Network) -> Key:
    """Return the key of a row's cluster."""
    texts = (row.get(name, "") for name in ("source_url", "source", "block"))
    source = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    rate = round(network.node_rate * 8e-9) if network.rate_is_known else 0
    return Key(source, gpu.name, network.kind, rate)


def shared_prior(gpu: Gpu, network: Network, others: list[Cluster]) -> Prior:
    """Return the prior of words, moved towards clusters with such a GPU or such a network.

    The shift that clusters of a kind have in common is itself normal around 0, with the prior's
    standard deviation; what each cluster says of it counts by its own variance.
    """
    prior = prior_of(gpu, network)
    shift = np.zeros(len(NAMES))
    for number, name in enumerate(NAMES):
        like = [c for c in others if _is_like(c, name, gpu, network)]
        told = [tuple(part[number] for part in cluster.deviation) for cluster in like]
        precisions = [1 / (variance + prior.std[number] ** 2) for _, variance in told]
        sum_of = sum(p * deviation for p, (deviation, _) in zip(precisions, told, strict=True))
        shift[number] = sum_of / (sum(precisions) + 1 / prior.std[number] ** 2)
    return replace(prior, mean=prior.mean + shift)


def _is_like(cluster: Cluster, name: str, gpu: Gpu, network: Network) -> bool:
    if name in OF_CALLS:
        return False
    if name in BETWEEN:
        return cluster.network.kind == network.kind and cluster.most_nodes > 1
    return cluster.gpu.generation == gpu.generation or name in ("few", "many", "pipe")


def _clusters(rows: pd.DataFrame) -> Iterator[tuple[Key, pd.DataFrame]]:
    keys = [key_of(row, *hardware_of(row)) for row in rows.to_dict("records")]
    for key in dict.fromkeys(keys):
        yield key, rows[[other == key for other in keys]]


def _fitted(
    rows: pd.DataFrame, others: list[Cluster], count: int, random: np.random.Generator
) -> Cluster:
    largest = rows.loc[rows["gpus_per_node"].idxmax()].to_dict()
    gpu, network = hardware_of(largest)
    prior = shared_prior(gpu, network, others)
    observed = list(_observed(rows))

    def log_likelihood(logarithms: Array) -> Array:
        drawn = parameters(logarithms)
        total = np.zeros(len(logarithms))
        for one in observed:
            off = (np.log(seconds(one.setting, one.sizes, drawn)) - one.logarithms) / NOISE
            terms = np.log1p(off**2 / FREEDOM).sum(axis=1)
            total -= one.weight * (FREEDOM + 1) / 2 * terms
        return total

    stems = frozenset(_stem(str(block)) for block in rows.get("block", ()))
    draws = posterior_draws(prior, log_likelihood, count, random)
    return Cluster(gpu, network, stems, int(rows["nodes"].max()), prior, draws)


def _observed(rows: pd.DataFrame) -> Iterator[Observed]:
    by = [name for name in TABLE if name in rows]
    for _, part in rows.groupby(by, sort=False, dropna=False):
        yield Observed(
            setting_of(part.iloc[0].to_dict()),
            part["size_bytes"].to_numpy(float),
            np.log(part[SECONDS].to_numpy(float)),
            min(1.0, INDEPENDENT / len(part)),
        )


def _stem(block: str) -> str:
    """Return a block's name without its numbers, which count nodes and GPUs.

    >>> _stem("h100-16way") == _stem("h100-32way")
    True
    """
    return re.sub(r"\d+", "#", block)
