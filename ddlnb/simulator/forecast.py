"""Forecasts: how fast every method trains on a cluster, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster, together
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require, require_whole
from ddlnb.files import provenance
from ddlnb.plans.methods import BASELINES, METHODS, Method
from ddlnb.plans.plan_file import method_for
from ddlnb.progress import Show
from ddlnb.questions import Answer, Table, Verdict, asks
from ddlnb.registry import is_supplied, several, supplied, supplied_names
from ddlnb.simulator.draws import (
    Circumstances,
    is_certain,
    play_cells,
    require_draws,
    require_feasible,
)
from ddlnb.simulator.questions import DRAWS, ForecastQuestion
from ddlnb.simulator.recommendation import over_baseline, recommended, remarks
from ddlnb.simulator.simulate import Cell
from ddlnb.simulator.tasks import alone
from ddlnb.units import show_rate, show_rates
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Answer):
    """How fast every method trains: rows, which method to take, and what to know beside it."""

    rows: pd.DataFrame
    workload: Workload
    on: Cluster
    methods: tuple[Method, ...]
    found: Verdict | None

    @property
    def verdict(self) -> Verdict | None:
        """Memory of a GPU, and how fast replicas are that exchange as in PyTorch, by advice."""
        return self.found

    @cached_property
    def is_drawn(self) -> bool:
        """Whether there are draws, and so intervals where anything is uncertain."""
        return bool(self.rows.attrs["draws"])

    @property
    def tables(self) -> tuple[Table, ...]:
        """Throughput, intervals and speed-ups."""
        over = over_baseline(self.rows)
        shown = [
            {
                "GPUs": row["gpus"],
                "method": row["method"],
                "samples/s": show_rate(row["throughput_samples_per_s"]),
                **({"over DDP": f"{row['over']:.2f}"} if over.notna().any() else {}),
                "90 % interval": show_rates(row["low"], row["high"]) if self.is_drawn else "-",
                "speed-up": f"{row['speedup']:.2f}",
                "efficiency": f"{row['speedup'] / row['gpus']:.0%}",
                "fastest in": _chance(row["chance_best"]) if self.is_drawn else "-",
            }
            for row in self.rows.assign(over=over).to_dict("records")
        ]
        what = f"{self.workload!r} on {self.on.label} ({self.on.network}); {self.workload.source}"
        return (Table(f"Simulated: {what}", shown),)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Which method to take at the largest size, how good a searched plan is."""
        if self.verdict and self.verdict.fits is False:
            return ()
        unlike = [self._unlike] if str(self.on.heterogeneity) else []
        planned = [
            remark(method.name, self.workload, self.on.with_workers(gpus), seconds)
            for method in self.methods
            if (remark := getattr(method.planner, "remark", None))
            for gpus, seconds in self.rows.loc[
                self.rows["method"] == method.name, ["gpus", "iteration_seconds"]
            ].itertuples(index=False)
        ]
        return (*unlike, recommended(self.rows, self.on), *planned)

    @property
    def _unlike(self) -> str:
        used = self.on.with_workers(int(self.rows["gpus"].max()))
        if among := used.heterogeneity.among(used.workers, used.nodes_in_use):
            return f"Unlike workers: {among}."
        alike = f"All {used.workers} GPUs in use are alike"
        which = alike if used.workers > 1 else "One GPU is in use"
        return f"{which}; of the others, {self.on.heterogeneity}."

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What was left out, assumed, or run in another way by those who measured it."""
        found = remarks(self.rows, self.on, self.methods, drawn=self.is_drawn)
        for name in supplied_names("remark"):
            if is_supplied(f"remark {name}"):
                found.append(supplied(f"remark {name}")(self.rows, self.on, self.methods))
        return tuple(one for one in found if one)


def _chance(share: float) -> str:
    return "no interval" if math.isnan(share) else f"{share:.0%} of draws"


@asks(ForecastQuestion)
def forecast(asked: ForecastQuestion) -> Forecast | Answer:
    """Return a tidy row per method and number of GPUs: throughput, seconds of a steady iteration.

    ``throughput_samples_per_s`` is that of all GPUs; ``iteration_seconds`` and
    ``exposed_communication_seconds`` are those of one iteration. ``low`` and ``high`` hold 90 % of
    the draws of the throughput: every draw takes other effects from the intervals of the cluster,
    another speed from the spread of the workload, and its model error. Effects without an interval
    get a wide one (`Cluster.intervals`). There are none with ``draws=0``, and where nothing is
    uncertain. ``speedup`` is over one worker; ``efficiency_low`` and ``efficiency_high`` hold 90 %
    of the draws of it over the number of GPUs, each over one worker in the same draw.
    ``chance_best`` is the share of draws in which the method is the fastest of those asked for;
    "all" are "DDP", PyTorch's own, and those that the cluster can run. The answer says in sentences
    which method to take.

    A task is traced. Its seconds come from ``throughput``, from a kept profile, or from the data
    sheet of the cluster's GPU at this ``precision`` (`estimate`), and ``attrs["seconds"]`` of the
    rows says from which. Raises InputError for what does not fit together, ModelError for what
    cannot be traced, and for fewer than LEAST_DRAWS draws.

    A model whose layers are known is forecast by its layouts, one of which is plain data
    parallelism (`ddlnb.advice.layouts.Splits`), unless something is asked of data parallelism
    alone, such as ``methods``; where a GPU cannot hold it unsplit, that is an InputError.

    >>> import ddlnb
    >>> found = ddlnb.forecast("resnet50", "survey-10GbE", "MG-WFBP", gpus=[8, 16], draws=0)
    >>> found.rows[["method", "gpus"]].values.tolist()
    [['MG-WFBP', 8], ['MG-WFBP', 16]]
    >>> found.sentences[0]
    'On 16 GPUs of survey-10GbE take MG-WFBP: speed-up 14.89 (93% of linear).'
    """
    require_draws(asked.draws)
    decided = None
    if is_supplied("answer by layouts"):
        decided = supplied("answer by layouts")(
            asked, data_parallel_only(asked), asked.gpus, draws=asked.draws, seed=asked.seed
        )
    if isinstance(decided, Answer):
        return decided
    pairs = sound_pairs(asked.on, asked.methods, asked.gpus, asked.servers)
    cells = [Cell(asked.workload, one, method, asked.servers) for one, method in pairs]
    rows = forecast_cells(cells, draws=asked.draws, seed=asked.seed)
    rows.attrs |= {"seconds": asked.workload.source, "draws": asked.draws}
    chosen = tuple(dict.fromkeys(method for _, method in pairs))
    return Forecast(rows, asked.workload, asked.on, chosen, decided)


def data_parallel_only(asked: ForecastQuestion) -> dict[str, object]:
    """Return what was asked that only data parallelism has, by the names that users know."""
    is_all = isinstance(asked.methods, str) and asked.methods == "all"
    named = None if is_all else asked.methods
    return {
        "methods (--method, --partition, --credit, --all-reduce)": named,
        "servers (--servers)": asked.servers,
        "gradients (--gradients)": asked.gradients or None,
        "accumulate (--accumulate)": None if asked.accumulate == 1 else asked.accumulate,
        "throughput (--throughput)": asked.throughput,
        "software (--software)": asked.software or None,
    }


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
    counts = [cluster.workers] if gpus is None else list(dict.fromkeys(several(gpus)))
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
    """Return the methods of these names, each once; "all" are PyTorch's and the cluster's."""
    every = [*BASELINES.values(), *methods_on(cluster)]
    chosen: dict[Method, None] = {}
    for one in several(methods):
        chosen |= dict.fromkeys(every if one == "all" else [method_for(one)])
    return list(chosen)


def methods_on(cluster: Cluster) -> list[Method]:
    """Return the methods that the cluster can run: without servers, none that needs them.

    >>> import ddlnb
    >>> [method.name for method in methods_on(ddlnb.get_cluster("v100-nvlink"))]
    ['BSP-A2A', 'WFBP-A2A', 'MG-WFBP', 'ByteScheduler-A2A', 'DeAR']
    """
    return [one for one in METHODS.values() if cluster.takes_servers or one.architecture != "PS"]


def forecast_cells(
    cells: Sequence[Cell],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Show = None,
    drawn: Iterable[Sequence[Cell]] | None = None,
) -> pd.DataFrame:
    """The rows of `forecast` for any cells; arguments are those of `play_cells`."""
    require_feasible(cells, draws)
    each_draw = list(Circumstances(cells, draws, seed).each_draw() if drawn is None else drawn)
    played = play_cells(cells, draws=draws, seed=seed, progress=progress, drawn=each_draw)
    single = [single_seconds(cell) for cell in cells]
    kept = efficiency_draws(cells, each_draw, played.drawn)
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
                **efficiency_interval(kept[:, number]),
                "std": np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    frame["chance_best"] = _chance_best(frame, played.drawn)
    return frame.assign(**{key: value for key, value in provenance().items() if key != "machine"})


def efficiency_draws(
    cells: Sequence[Cell], each_draw: Sequence[Sequence[Cell]], drawn: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Return the share of linear scaling of every cell (columns) in every draw.

    It is the seconds of one worker alone, under the circumstances of the draw, over those that were
    ``drawn``: how fast a GPU computes is the same in both, so what is uncertain of it goes, and one
    worker has all of linear scaling in every draw. The model's error counts beyond one worker, and
    nobody has more than all.
    """
    shares = np.ones((len(each_draw), len(cells)))
    for column, cell in enumerate(cells):
        if cell.cluster.workers > 1:
            for rows, cluster in together([in_draw[column].cluster for in_draw in each_draw]):
                single = alone(cell.workload).seconds(cluster.effects, 1).sum(axis=-1)
                shares[rows, column] = np.minimum(1.0, single / drawn[rows, column])
    return shares


def efficiency_interval(shares: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return the ends of the 90 % interval of drawn shares of linear scaling, NaN without draws."""
    low, high = np.quantile(shares, (0.05, 0.95)) if len(shares) else (math.nan, math.nan)
    return {"efficiency_low": float(low), "efficiency_high": float(high)}


def single_seconds(cell: Cell) -> float:
    """Return the seconds of an iteration of one worker alone: computation and update."""
    return float(alone(cell.workload).seconds(cell.cluster.effects, 1).sum())


def _labels(cell: Cell) -> dict[str, object]:
    plan, cluster, method = cell.plan, cell.cluster, cell.sized
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
        "settings": method.sizes,
        "machine": cluster.label,
        "messages": len(plan.messages),
        "plan": plan.digest,
    }


def _chance_best(frame: pd.DataFrame, drawn: np.ndarray) -> np.ndarray:
    chance = np.full(len(frame), math.nan)
    if not len(drawn) or all(is_certain(column) for column in drawn.T):
        return chance
    keys = ["model", "local_batch", "network", "machine", "gpus"]
    for _, rows in frame.groupby(keys, sort=False):
        at = rows.index.to_numpy()
        best = drawn[:, at].argmin(axis=1)
        chance[at] = np.bincount(best, minlength=len(at)) / len(drawn)
    return chance
