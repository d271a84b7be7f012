"""How far training scales: the best method at every size, and what limits it beyond."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd

from ddlnb.advice.explain import LIMITS, NEGLIGIBLE
from ddlnb.advice.layouts import Splits, answered
from ddlnb.advice.question import ScalingQuestion
from ddlnb.advice.sharded import Sharded, seconds_of
from ddlnb.advice.splits import PricedQuestion
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.fabric import AUTO, NCCL, NCCL_TREE
from ddlnb.networks.collectives.catalogue import get_algorithm, why_not
from ddlnb.parallelism.forecast.fit import drawn_seconds
from ddlnb.plans.methods import get_method
from ddlnb.questions import Answer, Table, Verdict, asks
from ddlnb.registry import several
from ddlnb.simulator.draws import ROUNDING
from ddlnb.simulator.forecast import efficiency_interval, forecast_cells, sound_pairs
from ddlnb.simulator.recommendation import over_baseline
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.units import gpus_in_words, listed, show_rate


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Answer):
    """Throughput by the number of GPUs, and what limits it; ``str`` says both in a sentence.

    ``rows`` are those of `ddlnb.forecast` with a column ``efficiency``, the share of linear
    scaling. ``reach`` is the largest size up to which the best method has ``share`` of it, 0 if not
    even the smallest one has; ``beyond`` is the next size, None where there is none, and
    ``bottleneck`` what limits it there. The interval is that of the share of linear scaling: how
    fast one GPU computes is not in it.
    """

    rows: pd.DataFrame
    share: float
    reach: int
    beyond: int | None
    bottleneck: str
    title: str
    found: Verdict
    linear: tuple[str, ...] = ()  # what is called so, where no GPU alone is the measure
    left_out: tuple[str, ...] = ()  # which sizes, and why

    @property
    def verdict(self) -> Verdict:
        """Memory of a GPU, and how fast training is at the largest size."""
        return self.found

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The best method at every size."""
        if not len(self.rows):
            return ()
        over = self.rows.assign(over=over_baseline(self.rows))
        shown = [
            {
                "GPUs": row["gpus"],
                "best method or layout": row["method"] if row["gpus"] > 1 else "one GPU alone",
                "samples/s": show_rate(row["throughput_samples_per_s"]),
                **({} if math.isnan(row["over"]) else {"over DDP": f"{row['over']:.2f}"}),
                "speed-up": f"{row['speedup']:.2f}",
                "of linear": f"{row['efficiency']:.0%}",
                "90 % interval": _interval(row) or "-",
            }
            for row in best_by_size(over).to_dict("records")
        ]
        return (Table(f"Simulated: {self.title}", shown),)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """How far training scales, and what limits it."""
        return (self._said, *self.linear, *self.left_out) if len(self.rows) else ()

    @property
    def _said(self) -> str:
        best = best_by_size(self.rows)
        if self.beyond is not None:
            row = best.set_index("gpus").loc[self.beyond].to_dict()
            within = f" ({_interval(row)})" if _interval(row) else ""
            below = _below(row["efficiency"], self.share)
            there = f"{below} by {row['method']}{within}"
            if self.beyond == 1:
                there = f"one has {below}"
        if self.reach == 0:
            return (
                f"Less than {self.share:.0%} of linear on {gpus_in_words(int(best['gpus'].min()))} "
                f"already: {there}. The bottleneck is {self.bottleneck}."
            )
        least = best.loc[best["gpus"] <= self.reach, "efficiency"].min()
        said = f"At least {self.share:.0%} of linear up to {gpus_in_words(self.reach)}"
        said += _between(best, self.share)
        if self.beyond is None:
            return f"{said}, the largest size here; the least on the way is {least:.0%}."
        return f"{said}; on {self.beyond}, {there}: beyond, the bottleneck is {self.bottleneck}."


def _linear(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return in a sentence what linear scaling is of a model that no GPU may hold."""
    first, more = rows.iloc[0], rows["efficiency"].max() > 1 + NEGLIGIBLE
    others = "; on more, other layouts fit" if more else ""
    return (
        f"Linear is the throughput per GPU of {gpus_in_words(first['gpus'])} as {first['method']}, "
        f"the fewest asked for that hold the model{others}.",
    )


def _below(efficiency: float, share: float) -> str:
    """Return a share of linear scaling with as many digits as tell it from the one asked for."""
    texts = ((f"{efficiency:.{places}%}", f"{share:.{places}%}") for places in range(6))
    return next((own for own, other in texts if own != other), f"less than {share:.0%}")


def _interval(row: Mapping[Hashable, Any]) -> str:
    """Return between which shares of linear scaling 90 % of the draws are; "" without draws."""
    low, high = row["efficiency_low"], row["efficiency_high"]
    return "" if math.isnan(low) else f"{low:.0%} to {high:.0%}"


def _between(best: pd.DataFrame, share: float) -> str:
    """Return the 90 % interval of the reach, in brackets; "" without draws and where it is sure."""
    if best["efficiency_low"].isna().any():
        return ""
    least, most = (reach_of(best, f"efficiency_{end}", share) for end in ("low", "high"))
    if least == most:
        return ""
    low = f"{least}" if least else f"fewer than {best['gpus'].min()}"
    more = " or more" if most == best["gpus"].max() else ""
    return f" (90 % interval: {low} to {most}{more})"


def reach_of(best: pd.DataFrame, column: str, share: float) -> int:
    """Return the largest size up to which a column is at least the share; 0 if there is none."""
    is_alone = (best["gpus"] == 1) & (best["efficiency"] >= (1 - ROUNDING) * share)
    is_good = is_alone | (best[column] >= share)
    return int(best["gpus"].where(is_good.cummin(), 0).max())


BEYOND = 1e15  # bytes per second, a rate that limits nothing; the player wants a number


@asks(ScalingQuestion)
def scaling(asked: ScalingQuestion) -> Scaling:
    """Return how far training scales on a cluster, at a constant batch per GPU.

    ``gpus`` are by default one, two, four and so on to all workers in use, without those among
    whom the cluster's all-reduce does not run. Methods that take
    further machines as servers are forecast only if they are named. ``share`` is the share
    of linear scaling that is good enough. The bottleneck is the effect without which the best
    method at the first size below it would be the fastest.

    >>> import ddlnb
    >>> found = ddlnb.scaling("bert-base", "survey-10GbE", draws=0)
    >>> found.reach, found.bottleneck
    (4, 'the bandwidth between nodes')
    """
    share, on = asked.share, asked.on
    named_methods = several(asked.methods)
    reduces = "all" in named_methods or any(
        get_method(one).architecture == "A2A" for one in named_methods
    )
    refused = _refused(on) if asked.gpus is None and reduces else {}
    every = set(sizes_of(on) if asked.gpus is None else several(asked.gpus))
    sizes = sorted(every - refused.keys())
    left_out = tuple(_in_words(refused))
    is_all = "all" in named_methods
    unused = {
        "methods (--method)": None if is_all else asked.methods,
        "throughput (--throughput)": asked.throughput,
        "software (--software)": asked.software or None,
    }
    decided = answered(asked, unused, sizes, top=1)
    limits: Callable[[int], str]
    if isinstance(decided, Splits):
        rows = decided.rows.join(split_efficiencies(decided.questions, asked.draws, asked.seed))
        title = f"{decided.questions[-1]}, a step of {decided.questions[-1].tokens:,} tokens"
        limits = partial(_slowest_part, decided.questions)
        verdict = decided.verdict
    elif isinstance(decided, Sharded):
        rows = _sharded_rows(decided, [on.with_workers(size) for size in sizes])
        title = f"{asked.workload.model} on {on.label} ({on.network}), sharded"
        limits, verdict = partial(_bottleneck_of_shards, decided, on, rows), decided.verdict
    else:
        pairs = sound_pairs(on, asked.methods, sizes)
        named = {getattr(one, "name", one) for one in named_methods}
        served = {method for one, method in pairs if one.server_machines(method.architecture)}
        cells = [
            Cell(asked.workload, one, method)
            for one, method in pairs
            if not (is_all and method in served and method.name not in named)
        ]
        rows = forecast_cells(cells, draws=asked.draws, seed=asked.seed)
        rows["efficiency"] = rows["speedup"] / rows["gpus"]
        title = f"{asked.workload.model} on {on.label} ({on.network})"
        limits = partial(_bottleneck, cells)
        verdict = decided
    if not len(rows):
        return Scaling(rows, share, 0, None, "", title, verdict)
    linear = () if isinstance(decided, Verdict) else _linear(rows)
    best = best_by_size(rows)
    reach = reach_of(best, "efficiency", share)
    poor = best[best["gpus"] > reach]
    if poor.empty:
        return Scaling(rows, share, reach, None, "", title, verdict, linear, left_out)
    limit, beyond = limits(int(poor.index[0])), int(poor["gpus"].iloc[0])
    return Scaling(rows, share, reach, beyond, limit, title, verdict, linear, left_out)


def _refused(cluster: Cluster) -> dict[int, str]:
    """Return the sizes among whom the cluster's all-reduce does not run, with the reason."""
    if cluster.all_reduce in (AUTO, NCCL, NCCL_TREE):
        return {}
    algorithm = get_algorithm(cluster.all_reduce)
    parts = [cluster.with_workers(size) for size in sizes_of(cluster) if size > 1]
    reasons = {one.workers: why_not(algorithm, one.workers, one.workers_per_node) for one in parts}
    return {size: reason for size, reason in reasons.items() if reason}


def _in_words(refused: Mapping[int, str]) -> Iterator[str]:
    if refused:
        sizes = listed([str(size) for size in refused])
        yield (
            f"Left out are {sizes} GPUs, among which the cluster's all-reduce does not run "
            f"({[*refused.values()][-1]}); --gpus takes other sizes."
        )


def _sharded_rows(decided: Sharded, clusters: Sequence[Cluster]) -> pd.DataFrame:
    """Return the fastest degree of ZeRO on every cluster that holds one.

    Linear scaling is that of a GPU of the first; the seconds are played, without draws.
    """
    asked = [replace(decided.question, cluster=one) for one in clusters]
    rows = pd.concat([Sharded(one).rows.head(1) for one in asked], ignore_index=True)
    rows = rows[rows["fits"]].rename(columns={"layout": "method"}).reset_index(drop=True)
    per_gpu = rows["throughput_samples_per_s"] / rows["gpus"]
    efficiency = per_gpu / per_gpu.head(1).sum()
    speedup = rows["gpus"] * efficiency
    unknown = {f"efficiency_{end}": math.nan for end in ("low", "high")}
    return rows.assign(speedup=speedup, efficiency=efficiency, **unknown)


def best_by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the fastest method at every number of GPUs, smallest first."""
    fastest = rows.groupby("gpus")["throughput_samples_per_s"].idxmax()
    return rows.loc[fastest].sort_values("gpus")


def sizes_of(cluster: Cluster) -> Iterator[int]:
    """Yield the sizes to look at: one, two, four and so on GPUs of a node, then of nodes.

    The last one is the number of workers in use.

    >>> import ddlnb
    >>> list(sizes_of(ddlnb.get_cluster("survey-10GbE")))
    [1, 2, 4, 8, 16, 32]
    """
    size = 1
    while size < cluster.workers_per_node:
        yield size
        size *= 2
    nodes = 1
    while nodes < cluster.nodes_in_use:
        yield nodes * cluster.workers_per_node
        nodes *= 2
    yield cluster.workers


def split_efficiencies(questions: Sequence[PricedQuestion], draws: int, seed: int) -> pd.DataFrame:
    """Return the interval of the efficiency of every question's best layout, as in `split_rows`."""
    rates = []
    for own, asked in enumerate(questions):
        found, best = asked.ranking.outlook, asked.ranking.order[:1]
        seconds = drawn_seconds(found, best, draws, seed, asked.fitted, own)[:, 0]
        rates.append(asked.tokens / asked.gpus / seconds)
    return pd.DataFrame([efficiency_interval(rate / rates[0]) for rate in rates])


def _slowest_part(questions: Sequence[PricedQuestion], number: int) -> str:
    """Return what the best layout's step takes longest for, beside the computation."""
    ranking = questions[number].ranking
    parts = ranking.parts(int(ranking.order[0]))
    most = max((one for one in parts if one != "compute"), key=lambda one: parts[one])
    return ranking.name_of(most, int(ranking.order[0]))


def _bottleneck_of_shards(decided: Sharded, on: Cluster, rows: pd.DataFrame, number: int) -> str:
    """Return the effect without which the fastest degree of ZeRO would gain most, played anew.

    Contention is not played, so that its gain is none.
    """
    row, cluster = rows.loc[number], on.with_workers(int(rows.loc[number, "gpus"]))
    seconds = {}
    for name, effects in LIMITS.items():
        lifted = {effect: min(value, BEYOND) for effect, value in effects.items()}
        asked = replace(decided.question, cluster=cluster.with_effects(**lifted))
        seconds[name] = seconds_of(asked, int(row["zero"]))
    return _largest({name: row["iteration_seconds"] / one for name, one in seconds.items()})


def _bottleneck(cells: Sequence[Cell], number: int) -> str:
    """Return the effect without which the cell would gain most."""
    cell = cells[number]
    planned = replace(cell, planned_on=cell.planned_on or cell.cluster)
    without = [
        replace(planned, cluster=cell.cluster.with_effects(**effects))
        for effects in LIMITS.values()
    ]
    names = list(LIMITS)
    on = cell.cluster
    if differ := on.heterogeneity.among(on.workers, on.nodes_in_use):
        without.append(replace(planned, cluster=on.with_heterogeneity()))
        names.append(f"workers that differ ({differ})")
    now, *then = (one.iteration_seconds for one in steady_seconds([planned, *without]))
    gains = {name: now / seconds for name, seconds in zip(names, then, strict=True)}
    return _largest(gains)


def _largest(gains: Mapping[str, float]) -> str:
    """Return the name of the largest gain, or that none is alone."""
    name = max(gains, key=lambda one: gains[one])
    return name if gains[name] > 1 + NEGLIGIBLE else "several effects, none of them alone"
