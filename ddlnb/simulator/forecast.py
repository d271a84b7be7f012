"""Forecasts: how fast every method trains on a cluster, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.paths import PROFILES
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.provenance import provenance
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 200
MOST_MESSAGES_PLAYED = (
    100_000_000  # a stated budget: a core plays some 30,000 a second of large plans
)
# A 90 % interval of a normal distribution reaches this many standard deviations to each side.
Z90 = 1.6448536269514722
# Words of effects and of their sources, and what stood for them in the names of random streams.
SPELLED_BEFORE = {"latency": "startup", "not identified by": "not told by"}


def forecast(
    model: str | Workload,
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    *,
    local_batch: int | None = None,
    gpus: int | Sequence[int] | None = None,
    servers: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a tidy row per method and number of GPUs: throughput, seconds of a steady iteration.

    ``throughput_samples_per_s`` is that of all GPUs; ``iteration_seconds`` and
    ``exposed_communication_seconds`` are those of one iteration. ``low`` and ``high`` hold 90 % of
    the draws of the throughput: every draw takes other effects from the intervals of the cluster,
    another speed from the spread of the workload, and its model error; with ``draws=0`` there are
    none. ``speedup`` is over one worker, ``chance_best`` the share of draws in which the method is
    the fastest of those asked for. ``model`` is a Workload, or the name of a model with a profile
    for the cluster's hardware (see `profile_for`); ``gpus`` defaults to all of the cluster. Raises
    InputError for what does not fit together.

    >>> import ddlnb
    >>> rows = ddlnb.forecast("resnet50", "survey-10GbE", "MG-WFBP", gpus=[8, 16], draws=0)
    >>> rows[["method", "gpus"]].values.tolist()
    [['MG-WFBP', 8], ['MG-WFBP', 16]]
    >>> bool(rows["speedup"].is_monotonic_increasing)
    True
    """
    require_whole(0, draws=draws)
    pairs = sound_pairs(cluster, methods, gpus, servers)
    workload = model
    if isinstance(workload, str):
        workload = profile_for(workload, get_cluster(cluster), local_batch)
    cells = [Cell(workload, one, method, servers) for one, method in pairs]
    return forecast_cells(cells, draws=draws, seed=seed)


def sound_pairs(
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    gpus: int | Sequence[int] | None = None,
    servers: int | None = None,
) -> list[tuple[Cluster, Method]]:
    """Return every method on the cluster with each number of GPUs in use.

    Raises InputError for all that can be wrong about them, before any work is done.
    """
    cluster = get_cluster(cluster)
    counts = [cluster.workers] if gpus is None else [gpus] if isinstance(gpus, int) else list(gpus)
    require(bool(counts), "gpus is empty; give at least one number of GPUs")
    asked = [methods] if isinstance(methods, str | Method) else list(methods)
    chosen = list(METHODS.values()) if "all" in asked else [get_method(m) for m in asked]
    require(bool(chosen), "methods is empty; give at least one, or 'all'")
    if servers is not None:
        require_whole(servers=servers)
    pairs = [(cluster.with_workers(count), method) for count in counts for method in chosen]
    for one, method in pairs:
        if method.architecture == "PS":
            one.require_servers(method.name)
    return pairs


def forecast_cells(
    cells: Sequence[Cell], *, draws: int = DRAWS, seed: int = 0, progress: bool = False
) -> pd.DataFrame:
    """The rows of `forecast` for any cells; cells that share fitted effects share their draws."""
    import pandas as pd

    messages = sum(len(cell.plan.messages) for cell in cells) * (draws + 1)
    require(
        messages <= MOST_MESSAGES_PLAYED,
        f"{draws:,} draws of {len(cells)} cells would play {messages:,} messages, and more than "
        f"{MOST_MESSAGES_PLAYED:,} take an hour; ask for fewer draws, methods or numbers of GPUs, "
        f"or for larger messages",
    )
    seconds = np.array([found.iteration_seconds for found in steady_seconds(cells, keep=True)])
    exposed = [found.exposed_seconds for found in steady_seconds(cells, keep=True)]
    drawn = np.array(list(_drawn_seconds(cells, draws, seed, progress)))
    single = [_single_seconds(cell) for cell in cells]
    rows = []
    for number, cell in enumerate(cells):
        samples = cell.samples
        rows.append(
            {
                **_labels(cell),
                "throughput_samples_per_s": samples / seconds[number],
                "low": samples / _quantile(drawn, number, 0.95),
                "high": samples / _quantile(drawn, number, 0.05),
                "iteration_seconds": seconds[number],
                "exposed_communication_seconds": exposed[number],
                "speedup": cell.cluster.workers * single[number] / seconds[number],
                "std": np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    frame["chance_best"] = _chance_best(frame, drawn)
    return frame.assign(**{key: value for key, value in provenance().items() if key != "machine"})


def profile_for(model: str, cluster: Cluster, local_batch: int | None = None) -> Workload:
    """Return the profile of a model for the cluster's hardware, as data/profiles names them.

    Names read model_bBATCH_HARDWARE. Without a batch there must be just one. Raises InputError
    that lists what there is and says how to make another.
    """
    batch = "*" if local_batch is None else local_batch
    found = sorted(path.stem for path in PROFILES.glob(f"{model}_b{batch}_{cluster.hardware}.json"))
    if len(found) != 1:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.json")))
        raise InputError(
            f"{len(found) or 'no'} profiles match model {model!r}, batch {batch}, hardware "
            f"{cluster.hardware!r} ({', '.join(found) or 'none'}); name one of {known}, "
            f"or make one: ddlnb profile --model {model} --name {model}_bBATCH_HARDWARE, or "
            f"--throughput with the samples per second of one GPU"
        )
    return read_profile(found[0])


def draw_clusters(cluster: Cluster, count: int, seed: int = 0) -> list[Cluster]:
    """Return the cluster with effects drawn from the intervals of its fits, within physical bounds.

    An effect is drawn by its name and seed alone, so two clusters with the same fit of an effect
    get the same draws of it.
    """
    values = {
        effect: _draw(effect, getattr(cluster.effects, effect), fit, count, seed)
        for effect, fit in cluster.fits.items()
    }
    return [
        cluster.with_effects(**{effect: float(drawn[i]) for effect, drawn in values.items()})
        for i in range(count)
    ]


def _draw(effect: str, value: float, fit: Fit, count: int, seed: int) -> np.ndarray:
    """Log-normal draws around the value; an interval that reaches zero is drawn uniformly."""
    generator = np.random.default_rng([seed, *_stream_name(effect, fit).encode()])
    unit = UNITS[effect]
    if fit.low <= 0 or math.isinf(fit.high):
        top = fit.high if math.isfinite(fit.high) else 2 * value
        drawn = generator.uniform(fit.low, top, count)
    else:
        spread = math.log(fit.high / fit.low) / (2 * Z90)
        drawn = value * np.exp(spread * generator.standard_normal(count))
    return np.clip(drawn, unit.least, unit.most)


def _stream_name(effect: str, fit: Fit) -> str:
    """Return the name of an effect's stream of random numbers.

    Effects are spelled as they were when data/forecasts was made, or its intervals would move.
    """
    name = f"{effect}|{fit.source}"
    for today, then in SPELLED_BEFORE.items():
        name = name.replace(today, then)
    return name


def _drawn_seconds(
    cells: Sequence[Cell], draws: int, seed: int, progress: bool
) -> Iterator[np.ndarray]:
    """Seconds of all cells, once for every draw; methods keep the plans of the cluster itself."""
    from tqdm.auto import tqdm

    clusters = {cell.cluster: draw_clusters(cell.cluster, draws, seed) for cell in cells}
    models = sorted({cell.workload.model for cell in cells})
    for i in tqdm(range(draws), unit="draw", disable=not progress):
        generator = np.random.default_rng([seed, i])
        speed = {model: generator.standard_normal() for model in models}
        drawn = [
            replace(
                cell,
                cluster=_at_speed(clusters[cell.cluster][i], cell.workload, speed),
                planned_on=cell.planned_on or cell.cluster,
            )
            for cell in cells
        ]
        seconds = np.array([found.iteration_seconds for found in steady_seconds(drawn)])
        error = np.array([cell.cluster.model_error for cell in cells])
        yield seconds * np.exp(error * generator.standard_normal(len(cells)))


def _at_speed(cluster: Cluster, workload: Workload, speed: dict[str, float]) -> Cluster:
    factor = math.exp(workload.spread * speed[workload.model])
    return cluster.with_effects(compute_factor=cluster.effects.compute_factor * factor)


def _single_seconds(cell: Cell) -> float:
    """Return the seconds of an iteration of one worker alone: computation and update."""
    alone = cell.cluster.with_workers(1).with_effects(message_compute=0.0)
    plan = METHODS["BSP-A2A"].plan(cell.workload)
    return lower(cell.workload, alone, plan).compute_seconds


def _labels(cell: Cell) -> dict[str, object]:
    plan, cluster, method = cell.plan, cell.cluster, cell.method
    sizes = {"partition": method.partition_bytes, "credit": method.credit_bytes}
    return {
        "model": cell.workload.model,
        "structure": cell.workload.structure,
        "local_batch": cell.workload.local_batch,
        "network": cluster.network,
        "method": method.name,
        "gpus": cluster.workers,
        "engine": "simulator",
        "source": "simulated",
        "servers": plan.servers,
        "settings": " ".join(f"{key}={size}B" for key, size in sizes.items() if size),
        "machine": cluster.name,
        "messages": len(plan.messages),
        "plan": plan.digest,
    }


def _quantile(drawn: np.ndarray, number: int, share: float) -> float:
    return float(np.quantile(drawn[:, number], share)) if len(drawn) else math.nan


def _chance_best(frame: pd.DataFrame, drawn: np.ndarray) -> np.ndarray:
    chance = np.full(len(frame), math.nan)
    if not len(drawn):
        return chance
    keys = ["model", "local_batch", "network", "machine", "gpus"]
    for _, rows in frame.groupby(keys, sort=False):
        at = rows.index.to_numpy()
        best = drawn[:, at].argmin(axis=1)
        chance[at] = np.bincount(best, minlength=len(at)) / len(drawn)
    return chance
