"""Forecasts: how fast every method trains on a cluster, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.choices import several
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require, require_whole
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.progress import Show, bar
from ddlnb.provenance import provenance
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.workloads.tasks import Task

DRAWS = 200
LEAST_DRAWS = 20  # of which one lies beyond either end of a 90 % interval
CELLS_AT_ONCE = 512  # simulated together
MOST_MESSAGES_PLAYED = (
    100_000_000  # a stated budget: a core plays some 30,000 a second of large plans
)
ROUNDING = 1e-9  # relative: seconds that differ by less do so by rounding
# A 90 % interval of a normal distribution reaches this many standard deviations to each side.
Z90 = 1.6448536269514722


def forecast(
    model: str | Task | Workload,
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    *,
    local_batch: int | None = None,
    gpus: int | Sequence[int] | None = None,
    servers: int | None = None,
    sequence: int | None = None,
    throughput: float | None = None,
    precision: str = "",
    gradients: str = "",
    accumulate: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a tidy row per method and number of GPUs: throughput, seconds of a steady iteration.

    ``throughput_samples_per_s`` is that of all GPUs; ``iteration_seconds`` and
    ``exposed_communication_seconds`` are those of one iteration. ``low`` and ``high`` hold 90 % of
    the draws of the throughput: every draw takes other effects from the intervals of the cluster,
    another speed from the spread of the workload, and its model error. Effects without an interval
    get a wide one (`Cluster.intervals`). There are none with ``draws=0``, and where nothing is
    uncertain. ``speedup`` is over one worker, ``chance_best`` the share of draws in which the
    method is the fastest of those asked for; "all" are those that the cluster can run, and "DDP",
    PyTorch's own, may stand beside it. ``gpus`` defaults to all of the cluster.

    ``model`` is a Task, a Workload, or what `ddlnb forecast --model` takes: a name, ``my.py:task``,
    a Hugging Face configuration. A task is traced. Its seconds come from ``throughput`` (samples
    per second of one GPU), from a kept profile, or from the data sheet of the cluster's GPU at
    this ``precision`` (`estimate`), and ``attrs["seconds"]`` of the rows says from which.
    ``sequence`` are the tokens of a sample, ``gradients`` the type that gradients are sent in
    ("fp16"), and ``accumulate`` the batches between two exchanges. Raises InputError for what does
    not fit together, ModelError for what cannot be traced, and for fewer than LEAST_DRAWS draws.

    >>> import ddlnb
    >>> rows = ddlnb.forecast("resnet50", "survey-10GbE", "MG-WFBP", gpus=[8, 16], draws=0)
    >>> rows[["method", "gpus"]].values.tolist()
    [['MG-WFBP', 8], ['MG-WFBP', 16]]
    >>> bool(rows["speedup"].is_monotonic_increasing)
    True
    """
    require_draws(draws)
    pairs = sound_pairs(cluster, methods, gpus, servers)
    workload = workload_on(
        model,
        get_cluster(cluster),
        local_batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
    ).accumulated(accumulate)
    workload = workload.sent_as(gradients) if gradients else workload
    cells = [Cell(workload, one, method, servers) for one, method in pairs]
    rows = forecast_cells(cells, draws=draws, seed=seed)
    rows.attrs["seconds"] = workload.source
    return rows


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
    counts = [cluster.workers] if gpus is None else several(gpus)
    require(bool(counts), "gpus is empty; give at least one number of GPUs")
    chosen = named_methods(methods, cluster)
    require(bool(chosen), "methods is empty; give at least one, or 'all'")
    if servers is not None:
        require_whole(servers=servers)
    pairs = [(cluster.with_workers(count), method) for count in counts for method in chosen]
    for one, method in pairs:
        if method.architecture == "PS":
            one.require_servers(method.name)
    return pairs


def named_methods(methods: str | Method | Sequence[str | Method], cluster: Cluster) -> list[Method]:
    """Return the methods of these names, each once; "all" are those that the cluster can run."""
    chosen: dict[Method, None] = {}
    for one in several(methods):
        chosen |= dict.fromkeys(methods_on(cluster) if one == "all" else [get_method(one)])
    return list(chosen)


def methods_on(cluster: Cluster) -> list[Method]:
    """Return the methods that the cluster can run: without servers, none that needs them.

    >>> import ddlnb
    >>> [method.name for method in methods_on(ddlnb.get_cluster("v100-nvlink"))]
    ['BSP-A2A', 'WFBP-A2A', 'MG-WFBP', 'ByteScheduler-A2A', 'DeAR']
    """
    return [one for one in METHODS.values() if cluster.takes_servers or one.architecture != "PS"]


def require_draws(draws: int) -> None:
    """Raise InputError unless this many draws make a 90 % interval, or none is asked for."""
    require_whole(0, draws=draws)
    require(
        draws == 0 or draws >= LEAST_DRAWS,
        f"draws {draws} are too few for a 90 % interval, which leaves out one draw in twenty on "
        f"each side; take at least {LEAST_DRAWS}, or 0 for no interval",
    )


@dataclass(frozen=True)
class Played:
    """Seconds of cells: those of a steady iteration, what of them is exposed, and every draw's.

    ``drawn`` has a row for every draw and a column for every cell. Cells that share fitted effects
    share their draws, so that a row compares them under the same circumstances.
    """

    seconds: NDArray[np.floating[Any]]
    exposed: NDArray[np.floating[Any]]
    drawn: NDArray[np.floating[Any]]

    def quantile(self, number: int, share: float) -> float:
        """Return a quantile of a cell's drawn seconds, NaN where nothing about it is uncertain."""
        return _quantile(self.drawn, number, share)


def play_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> Played:
    """Return the seconds of cells, and those of every draw of their effects.

    ``drawn`` are the cells with the effects of every draw, by default from the intervals of their
    clusters. Raises InputError for fewer than LEAST_DRAWS draws, and for more than an hour's work.
    """
    require_draws(draws)
    messages = sum(len(cell.plan.messages) for cell in cells) * (draws + 1)
    require(
        messages <= MOST_MESSAGES_PLAYED,
        f"{draws:,} draws of {len(cells)} cells would play {messages:,} messages, and more than "
        f"{MOST_MESSAGES_PLAYED:,} take an hour; ask for fewer draws, methods or numbers of GPUs, "
        f"or for larger messages",
    )
    seconds = np.array([found.iteration_seconds for found in steady_seconds(cells, keep=True)])
    exposed = [found.exposed_seconds for found in steady_seconds(cells, keep=True)]
    each_draw = _drawn_cells(cells, draws, seed) if drawn is None else drawn
    errors = [cell.cluster.model_error for cell in cells]
    taken = np.array(list(_drawn_seconds(each_draw, draws, errors, seed, progress)))
    return Played(seconds, np.array(exposed), taken.reshape(draws, len(cells)))


def forecast_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> pd.DataFrame:
    """The rows of `forecast` for any cells; arguments are those of `play_cells`."""
    import pandas as pd

    played = play_cells(cells, draws=draws, seed=seed, progress=progress, drawn=drawn)
    single = [single_seconds(cell) for cell in cells]
    rows = []
    for number, cell in enumerate(cells):
        samples = cell.samples
        rows.append(
            {
                **_labels(cell),
                "throughput_samples_per_s": samples / played.seconds[number],
                "low": samples / played.quantile(number, 0.95),
                "high": samples / played.quantile(number, 0.05),
                "iteration_seconds": played.seconds[number],
                "exposed_communication_seconds": played.exposed[number],
                "speedup": cell.cluster.workers * single[number] / played.seconds[number],
                "std": np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    frame["chance_best"] = _chance_best(frame, played.drawn)
    return frame.assign(**{key: value for key, value in provenance().items() if key != "machine"})


def draw_clusters(cluster: Cluster, count: int, seed: int = 0) -> list[Cluster]:
    """Return the cluster with effects drawn from their intervals, within physical bounds.

    Intervals are those of `Cluster.intervals`, which assumes one where none is given. An effect is
    drawn by its name and seed alone, so two clusters with the same fit of an effect get the same
    draws of it.
    """
    values = {
        effect: _draw(effect, getattr(cluster.effects, effect), fit, count, seed)
        for effect, fit in cluster.intervals.items()
    }
    return [
        cluster.with_effects(**{effect: float(drawn[i]) for effect, drawn in values.items()})
        for i in range(count)
    ]


def _draw(effect: str, value: float, fit: Fit, count: int, seed: int) -> np.ndarray:
    """Log-normal draws around the value; an interval that reaches zero is drawn uniformly."""
    generator = np.random.default_rng([seed, *f"{effect}|{fit.source}".encode()])
    unit = UNITS[effect]
    if fit.low == fit.high:
        return np.full(count, value)
    if fit.low <= 0 or math.isinf(fit.high):
        top = fit.high if math.isfinite(fit.high) else 2 * value
        drawn = generator.uniform(fit.low, top, count)
    else:
        spread = math.log(fit.high / fit.low) / (2 * Z90)
        drawn = value * np.exp(spread * generator.standard_normal(count))
    return np.clip(drawn, unit.least, unit.most)


def _drawn_cells(cells: Sequence[Cell], draws: int, seed: int) -> Iterator[list[Cell]]:
    """Yield the cells with the effects of every draw; methods keep the plans of the cluster."""
    clusters = {cell.cluster: draw_clusters(cell.cluster, draws, seed) for cell in cells}
    models = sorted({cell.workload.model for cell in cells})
    for i in range(draws):
        generator = np.random.default_rng([seed, i])
        speed = {model: generator.standard_normal() for model in models}
        yield [
            replace(
                cell,
                cluster=_at_speed(clusters[cell.cluster][i], cell.workload, speed),
                planned_on=cell.planned_on or cell.cluster,
            )
            for cell in cells
        ]


def _drawn_seconds(
    drawn: Iterable[Sequence[Cell]], draws: int, errors: list[float], seed: int, progress: Show
) -> Iterator[np.ndarray]:
    """Seconds of all cells, once for every draw, each with an error of the model of its own."""
    generator = np.random.default_rng([seed, draws])
    at_once = math.ceil(CELLS_AT_ONCE / len(errors))  # draws
    with bar(total=draws, unit="draw", progress=progress) as shown:
        for some in batched(drawn, at_once):
            found = steady_seconds([cell for cells in some for cell in cells])
            seconds = np.array([one.iteration_seconds for one in found]).reshape(len(some), -1)
            yield from seconds * np.exp(errors * generator.standard_normal(seconds.shape))
            shown.update(len(some))


def batched(values: Iterable[Sequence[Cell]], count: int) -> Iterator[list[Sequence[Cell]]]:
    """Yield lists of this many values; the last one may be shorter. (itertools has it from 3.12.)

    >>> [len(some) for some in batched([[], [], []], 2)]
    [2, 1]
    """
    iterator = iter(values)
    while some := list(islice(iterator, count)):
        yield some


def _at_speed(cluster: Cluster, workload: Workload, speed: dict[str, float]) -> Cluster:
    factor = math.exp(workload.spread * speed[workload.model])
    return cluster.with_effects(compute_factor=cluster.effects.compute_factor * factor)


def single_seconds(cell: Cell) -> float:
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
        "machine": cluster.label,
        "messages": len(plan.messages),
        "plan": plan.digest,
    }


def _quantile(drawn: np.ndarray, number: int, share: float) -> float:
    if not len(drawn) or _is_certain(drawn[:, number]):
        return math.nan
    return float(np.quantile(drawn[:, number], share))


def _is_certain(drawn: np.ndarray) -> bool:
    """Return whether all draws are the same but for rounding: nothing uncertain was drawn."""
    return bool(np.ptp(drawn) <= ROUNDING * drawn.max())


def _chance_best(frame: pd.DataFrame, drawn: np.ndarray) -> np.ndarray:
    chance = np.full(len(frame), math.nan)
    if not len(drawn) or all(_is_certain(column) for column in drawn.T):
        return chance
    keys = ["model", "local_batch", "network", "machine", "gpus"]
    for _, rows in frame.groupby(keys, sort=False):
        at = rows.index.to_numpy()
        best = drawn[:, at].argmin(axis=1)
        chance[at] = np.bincount(best, minlength=len(at)) / len(drawn)
    return chance
