"""Fit NCCL's cost model to measured collectives, forecast others, and say how far off that is.

A cluster is what one source measured with one kind of GPU on one network. What is known of its
parameters before a row of it is seen is from words and data sheets, moved to where other fitted
clusters with the same kind of GPU or network have been found. Efficiencies of NVLink are those that
a ring and the switches reach on one node; they were chosen on the published rows. Parameters are
drawn from their posterior: rows of two nodes often leave open whether a ring or a tree was at work,
and a single best fit would have to guess.

Forecasts have 90 % intervals. `ddlnb.calibration.collective_scores` says how far off they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddlnb.calibration.collective_tables import (
    SECONDS,
    completed,
    read_collectives,
    read_published,
    read_questions,
)
from ddlnb.calibration.fit import Numbers, Prior, Problem, student
from ddlnb.calibration.nccl import (
    KINDS,
    NORMAL_TAIL,
    UNKNOWN,
    Array,
    Gpu,
    Network,
    Parameters,
    delivered,
    hardware_of,
    seconds,
    setting_of,
)
from ddlnb.calibration.posterior import tempered_draws
from ddlnb.errors import require, require_whole
from ddlnb.units import GB, MB, US, size_in_words

NAMES = tuple(field.name for field in fields(Parameters))
BETWEEN = ("between", "hop", "flush", "fine", "spread")  # of the network; the others of the nodes
SWITCH_SHARE = 0.58  # of NVLink's rate in one direction
UNKNOWN_RATE = 0.5  # standard deviation of the logarithm
COPY_RATE, NO_COPY = 1.2e12, 1e15  # bytes/s of a copy in the memory of a GPU; none is made
DEDICATED, SHARED = 0.03, 0.14  # spread of the speeds of nodes


def prior_of(gpu: Gpu, network: Network) -> Prior:
    """Return what is known of clusters of this GPU on this network."""
    kind = KINDS.get(network.kind, UNKNOWN)
    between, certainty = delivered(network)
    is_known = network.rate_is_known and network.is_nccl
    rate = np.hypot(certainty, 0.0 if is_known else UNKNOWN_RATE)
    known = {
        "inside": (gpu.share * gpu.inside, gpu.certainty),
        "switch": (SWITCH_SHARE * gpu.inside, gpu.certainty),
        "between": (between, rate),
        "hop": (kind.hop_seconds, 0.8 if kind is not UNKNOWN else 1.2),
        "flush": (kind.hop_seconds, 1.0 if kind is not UNKNOWN else 2.0),
        "fine": (kind.fine, 1.0),
        "few": (1.0, 0.2),
        "many": (1.0, 0.25),
        "host": (1.5e-6, 1.0),
        "pipe": (11 * MB, 0.4),
        "spread": (SHARED if network.is_shared else DEDICATED, 0.5),
    }
    known["copying"] = (COPY_RATE if network.is_copied else NO_COPY, 0.5)
    mean, std = zip(*(known[name] for name in NAMES), strict=True)
    return Prior(NAMES, np.log(mean), np.array(std))


# Judged: the share of clusters that are not as their sheets promise, and by how much: the standard
# deviation of the logarithm. No open table has such a cluster.
MISTAKEN, MISTAKEN_BY = 0.1, 0.7


@dataclass(frozen=True, eq=False)
class Doubted(Prior):
    """A prior whose rates may be those of a cluster that is not set up as its data sheets promise.

    Only a fit asks it: a cluster that nobody measured is taken to be as it should be.
    """

    @cached_property
    def _wider(self) -> Numbers:
        is_rate = np.isin(self.names, ("inside", "switch", "between"))
        return np.where(is_rate, np.maximum(MISTAKEN_BY / self.spread, 1.0), 1.0)

    def log_density(self, points: Numbers) -> Numbers:
        """Return the logarithm of the density at points (rows), up to a constant."""
        off = self.residuals(points)
        usual = math.log(1 - MISTAKEN) - 0.5 * off**2
        other = np.log(MISTAKEN / self._wider) - 0.5 * (off / self._wider) ** 2
        return np.asarray(np.logaddexp(usual, other).sum(axis=1))

    def draws(self, count: int, generator: np.random.Generator) -> Numbers:
        """Draw ``count`` rows of logarithms."""
        off = generator.standard_normal((count, len(self.names)))
        is_off = generator.random(off.shape) < MISTAKEN
        return np.asarray(self.mean + self.spread * off * np.where(is_off, self._wider, 1.0))


def parameters(logarithms: Array) -> Parameters:
    """Return draws of logarithms, (draws, parameters), as the cost model takes them."""
    return Parameters(*(column[:, None] for column in np.exp(logarithms).T))


TABLE = ["block", "collective", "nodes", "gpus_per_node", "settings", "nvlink_domain"]
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
    """A fitted cluster: draws of the logarithms of its parameters, (draws, parameters).

    ``error`` is the standard deviation of the logarithm of its rows about the model.
    """

    gpu: Gpu
    network: Network
    stems: frozenset[str]
    most_nodes: int
    prior: Prior
    draws: Array
    error: float

    @property
    def deviation(self) -> tuple[Array, Array]:
        """Return by how much the logarithms differ from what words say, and their variances."""
        words = prior_of(self.gpu, self.network)
        return self.draws.mean(axis=0) - words.mean, self.draws.var(axis=0)


@dataclass(frozen=True)
class FittedCollectives:
    """Fitted clusters by key.

    With ``answers_unnamed`` a row that names no source is of the cluster with its GPU and network,
    if only one was fitted: rows and questions are somebody's own.
    """

    clusters: dict[Key, Cluster]
    count: int
    seed: int
    answers_unnamed: bool = False

    def draws_for(self, row: Mapping[str, Any]) -> tuple[Array, int, float]:
        """Return draws for the cluster of a row, the most nodes seen of it, and its error.

        A cluster that was seen on one node only has its network from words, and one that was
        not seen has all from words and from what others like it were found to be (0 nodes).
        """
        gpu, network = hardware_of(row)
        key = key_of(row, gpu, network)
        stem = _stem(str(row.get("block", "")))
        of_kind = [c for k, c in self.clusters.items() if k[1:] == key[1:] and stem in c.stems]
        found = self.clusters.get(key) or next(iter(of_kind), None)
        if found is None and self.answers_unnamed and not key.source:
            alike = [c for k, c in self.clusters.items() if k[1:] == key[1:]]
            found = alike[0] if len(alike) == 1 else None
        if found and (found.most_nodes > 1 or setting_of(row).nodes == 1):
            return found.draws, found.most_nodes, found.error
        random = np.random.default_rng([self.seed, sum(map(ord, "".join(map(str, key))))])
        draws = shared_prior(gpu, network, list(self.clusters.values())).draws(self.count, random)
        if network.rate_is_known:  # nothing is sent faster than the line
            place = NAMES.index("between")
            draws[:, place] = np.minimum(draws[:, place], math.log(network.node_rate))
        same = [c for k, c in self.clusters.items() if k[:2] == key[:2]]
        if not same:
            return draws, 0, MODEL_ERROR
        of_nodes = [NAMES.index(name) for name in NAMES if name not in BETWEEN]
        draws[:, of_nodes] = same[0].draws[:, of_nodes]
        return draws, 1, same[0].error


def fit_collectives(
    rows: pd.DataFrame, *, draws: int = 600, seed: int = 0, answers_unnamed: bool = False
) -> FittedCollectives:
    """Return the cost model fitted to rows of `read_collectives`. Raises InputError without rows.

    Twice: the second time, every cluster's prior knows what the first found of the others.
    """
    require_whole(0, seed=seed)
    require_whole(2, draws=draws)
    require(len(rows) > 0, "there are no rows to fit; give a table with at least one")
    parts = list(_clusters(rows))
    first: dict[Key, Cluster] = {}
    found: dict[Key, Cluster] = {}
    for known, target in (({}, first), (first, found)):
        for number, (key, part) in enumerate(parts):
            others = [cluster for other, cluster in known.items() if other != key]
            random = np.random.default_rng([seed, number])
            target[key] = _fitted(part, others, draws, random)
    return FittedCollectives(found, draws, seed, answers_unnamed)


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
        precisions = [1 / (variance + prior.spread[number] ** 2) for _, variance in told]
        sum_of = sum(p * deviation for p, (deviation, _) in zip(precisions, told, strict=True))
        shift[number] = sum_of / (sum(precisions) + 1 / prior.spread[number] ** 2)
    return replace(prior, mean=prior.mean + shift)


def _is_like(cluster: Cluster, name: str, gpu: Gpu, network: Network) -> bool:
    if name in OF_CALLS:
        return False
    if name in BETWEEN:
        alike = (cluster.network.kind, cluster.network.is_nccl) == (network.kind, network.is_nccl)
        told = network.kind in KINDS or name == "between"  # networks without a name are unlike
        return alike and told and cluster.most_nodes > 1
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
    problem = _problem(rows, prior)
    stems = frozenset(_stem(str(block)) for block in rows.get("block", ()))
    doubted = Doubted(NAMES, prior.mean, prior.spread)
    draws = tempered_draws(doubted, problem.log_likelihood, count, random)
    counts = rows.drop_duplicates(["nodes", "gpus_per_node"]).to_dict("records")
    most = max(setting_of(row).nodes for row in counts)
    fitted = problem.predict(np.exp(np.median(draws, axis=0))[None], None)[0]
    off = np.abs(np.log(fitted / problem.observed))
    error = max(MODEL_ERROR, float(np.quantile(off, 0.9)) / NORMAL_TAIL)
    return Cluster(gpu, network, stems, most, prior, draws, error)


def _problem(rows: pd.DataFrame, prior: Prior) -> Problem:
    by = [name for name in TABLE if name in rows]
    parts = [part for _, part in rows.groupby(by, sort=False, dropna=False)]
    settings = [
        (setting_of(part.iloc[0].to_dict()), part["size_bytes"].to_numpy(float)) for part in parts
    ]

    def predict(values: Array, about: Array | None) -> Array:
        drawn = Parameters(*(column[:, None] for column in values.T))
        return np.hstack([seconds(setting, sizes, drawn) for setting, sizes in settings])

    weights = [np.full(len(part), min(1.0, INDEPENDENT / len(part))) for part in parts]
    return Problem(
        predict,
        np.concatenate([part[SECONDS].to_numpy(float) for part in parts]),
        NOISE,
        prior,
        student(FREEDOM),
        np.concatenate(weights),
    )


def _stem(block: str) -> str:
    """Return a block's name without its numbers, which count nodes and GPUs.

    >>> _stem("h100-16way") == _stem("h100-32way")
    True
    """
    return re.sub(r"\d+", "#", block)


MEANINGS: dict[str, tuple[str, float]] = {
    "inside": ("bus bandwidth of a ring in a node (GB/s)", GB),
    "switch": ("all-reduce in NVLink's switches (GB/s)", GB),
    "between": ("a node sends to others (GB/s)", GB),
    "hop": ("a hop between nodes, more than NCCL's (us)", US),
    "flush": ("and with the protocol Simple (us)", US),
    "few": ("factor of NCCL's latencies with LL", 1.0),
    "many": ("and with the other protocols", 1.0),
    "host": ("a call, outside of NCCL (us)", US),
    "pipe": ("bytes in flight at a stage of a tree (MB)", MB),
    "spread": ("spread of the logarithm of nodes' speeds", 1.0),
    "copying": ("what is gathered is copied (GB/s)", GB),
}


def described(fitted: FittedCollectives) -> list[dict[str, object]]:
    """Return a row for each parameter of each cluster: median and 90 % interval in its unit.

    Where nothing is copied there is no rate of copying.
    """
    rows: list[dict[str, object]] = []
    for key, cluster in fitted.clusters.items():
        low, middle, high = np.exp(np.quantile(cluster.draws, (0.05, 0.5, 0.95), axis=0))
        for name, (meaning, unit) in MEANINGS.items():
            n = NAMES.index(name)
            if name == "copying" and high[n] > NO_COPY / 2:
                continue
            median, least, most = (_shown(part[n] / unit) for part in (middle, low, high))
            interval = {"median": median, "90 % interval": f"{least} to {most}"}
            network = f"{key.network} {key.gigabits or '?'} Gb/s"
            what = {"GPU": key.gpu, "network": network, "nodes": cluster.most_nodes}
            rows.append({**what, "parameter": meaning, **interval, "source": key.source[-40:]})
    return rows


def _shown(value: float) -> str:
    """Return three digits of a number, and of a large one all before the point.

    >>> _shown(0.04261), _shown(999.6), _shown(1474.6)
    ('0.0426', '1,000', '1,475')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


TIMES = ["time_us", "low", "high"]
INTERVAL = (0.05, 0.95)
MODEL_ERROR = 0.10  # standard deviation of the logarithm of forecasts of seen nodes, at least
PER_DOUBLING = 0.08  # of what each doubling of the nodes beyond those adds, independently


def collectives(
    table: str | Path | pd.DataFrame,
    fit: str | Path | pd.DataFrame | None = None,
    *,
    draws: int = 600,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a table of collectives with forecasts of their times, in microseconds.

    ``fit`` are measured rows (default: those of `read_published`); ``table`` has
    their columns, without times: collective, size_bytes and nodes or ranks are needed, and the
    words for GPU, network, library, settings and source are used where they are there. Of rows of
    your own, a question without a source is of the cluster with its GPU and network, if only one
    was fitted. Added are
    ``time_us``, the median, and ``low`` and ``high``, a 90 % interval; columns of these names are
    replaced. Raises ResultsError for files that are no such tables, and InputError for rows.

    >>> import ddlnb, pandas as pd
    >>> row = {"collective": "all_reduce", "size_bytes": 2**30, "gpu": "H100", "gpus_per_node": 8}
    >>> asked = pd.DataFrame([row | {"nodes": n, "network": "NDR 8x400 Gb/s"} for n in (4, 64)])
    >>> four, many = ddlnb.collectives(asked)["time_us"]
    >>> 4000 < four < many < 10000
    True
    """
    rows = rows_to_fit(fit)
    asked = read_questions(table) if isinstance(table, str | Path) else table
    questions = completed(asked)
    own = fit is not None
    fitted = fit_collectives(rows, draws=draws, seed=seed, answers_unnamed=own)
    return asked.assign(**forecast(fitted, questions))


def rows_to_fit(fit: str | Path | pd.DataFrame | None) -> pd.DataFrame:
    """Return measured rows: those of a file, the given ones, or the published ones for None."""
    if fit is None:
        return read_published()
    return read_collectives(fit) if isinstance(fit, str | Path) else fit


def forecast(fitted: FittedCollectives, questions: pd.DataFrame) -> dict[str, Array]:
    """Return `TIMES` in microseconds for completed questions, each an array in their order."""
    found = np.full((len(questions), len(TIMES)), np.nan)
    if not len(questions):
        return dict(zip(TIMES, found.T, strict=True))
    by = [*TABLE, "source", "source_url", "gpu", "network", "library"]
    by = [name for name in by if name in questions]
    placed = questions.assign(position=np.arange(len(questions)))
    for _, part in placed.groupby(by, sort=False, dropna=False):
        sizes = part["size_bytes"].to_numpy(float)
        found[part["position"].to_numpy()] = _quantiles(fitted, part.iloc[0].to_dict(), sizes)
    return dict(zip(TIMES, found.T, strict=True))


OFF = 0.25  # a fitted row that is farther off is worth a word
OFF_ROWS = f"off by more than {OFF:.0%}"


def residuals(fitted: FittedCollectives, rows: pd.DataFrame) -> list[dict[str, object]]:
    """Return how far each fitted table of rows is from the model: the median, and the worst row."""
    found: list[dict[str, object]] = []
    by = ["block", "collective", "nodes", "gpus_per_node"]
    named = rows.assign(block=rows.get("block", ""))
    for (block, what, nodes, each), part in named.groupby(by, sort=False, dropna=False):
        times = forecast(fitted, part)["time_us"]
        measured = part[SECONDS].to_numpy() / US
        errors = times / measured - 1
        worst = int(np.abs(errors).argmax())
        size = size_in_words(int(part["size_bytes"].iloc[worst]))
        found.append(
            {
                "block": block,
                "what": f"{what} {nodes:.0f} x {each:.0f}",
                "rows": len(part),
                "median error": f"{np.median(np.abs(errors)):.1%}",
                "worst row": f"{size}: {_shown(measured[worst])} us, fitted {_shown(times[worst])}",
                OFF_ROWS: int((np.abs(errors) > OFF).sum()),
            }
        )
    return found


def _quantiles(fitted: FittedCollectives, row: dict[str, object], sizes: Array) -> Array:
    """Return median, low and high of the sizes, (sizes, 3), in microseconds."""
    draws, seen, its_error = fitted.draws_for(row)
    setting = setting_of(row)
    times = np.log(seconds(setting, sizes, parameters(draws)))
    beyond = max(0.0, math.log2(setting.nodes / max(1, seen)))
    error = math.hypot(its_error, PER_DOUBLING * math.sqrt(beyond))
    random = np.random.default_rng(fitted.seed)
    noisy = times + error * random.standard_normal((len(draws), 1))
    middle = np.median(times, axis=0)
    low, high = np.quantile(noisy, INTERVAL, axis=0)
    return np.exp(np.stack([middle, low, high], axis=1)) / US
