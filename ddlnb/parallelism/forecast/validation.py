"""How far off forecasts are on runs that the fit has not seen: whole sources, each in turn.

Runs of one source are off together: its cluster, its libraries and what it calls a run differ from
those of the others. What runs within a source say about each other is no measure of that. The
interval of a source that nothing was fitted to is as wide as sources that were left out were off.
The other folds, trivial forecasts and the fit itself are in benchmarks/scale_validation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.parallelism.forecast.cases import Column
from ddlnb.parallelism.forecast.fit import Alone, fit_all, of_framework, off, with_frameworks
from ddlnb.parallelism.forecast.forecast import FREEDOM, INTERVAL
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Fitted, saved_fit
from ddlnb.parallelism.forecast.mixture import Mixed, mixed
from ddlnb.parallelism.forecast.published import PAPERS, Observations, observed, open_runs

NEAR = 0.2
LIKELY = 0.05  # a chance of fitting that does not refuse a run
MOST = 0.5  # share of a source's runs on GPUs that were seen with its framework
TIED = 1e-6  # forecasts nearer to each other than this are alike: any of them may be picked
FEWEST = 4  # runs of a model on so many GPUs, for a pick among them to mean anything
PICKS = "least split"  # the forecast that only picks, and has no error of throughput
Rows = list[dict[str, Any]]


def scores(rows: Rows, of: Callable[[Rows], dict[str, float]] | None = None) -> Rows:
    """Return one row of scores per kind of fold, fold and forecast, and one for all of a kind.

    ``of`` makes the scores of a group of rows, by default `score`.
    """
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in rows:
        for left_out in (row["left_out"], "all"):
            groups.setdefault((row["kind"], left_out, row["forecast"]), []).append(row)
    return [
        {"kind": kind, "left_out": left_out, "forecast": name, **(of or score)(group)}
        for (kind, left_out, name), group in groups.items()
    ]


def score(rows: Rows) -> dict[str, float]:
    """Return the scores of rows of one forecast; shares, and the geometric-mean factor.

    median: of the absolute relative error; near: share within 20 %; pick: throughput of the layout
    with the highest forecast as a share of the best measured, mean over models and numbers of GPUs;
    held: share in the 90 % interval; memory: mean relative error; fits: share that is said to fit.
    """
    measured = np.array([row["measured"] for row in rows])
    found = np.array([row["tokens_per_s_per_gpu"] for row in rows])
    off = np.abs(found / measured - 1)
    if rows[0]["forecast"] == PICKS:
        return {"runs": len(rows), "pick": pick(rows, measured, found)}
    scores = {
        "runs": len(rows),
        "median": float(np.median(off)),
        "near": float((off < NEAR).mean()),
        "factor": float(np.exp(np.abs(np.log(found / measured)).mean())),
        "pick": pick(rows, measured, found),
    }
    if np.isfinite(rows[0].get("low", np.nan)):  # only ours has intervals and memory
        low, high, memory, memory_measured = (
            np.array([row[name] for row in rows])
            for name in ("low", "high", "memory_gib", "measured_gib")
        )
        scores |= {
            "held": float(((low <= measured) & (measured <= high)).mean()),
            "memory": float(np.nanmean(np.abs(memory / memory_measured - 1))),
            "fits": float(np.mean([row["fits"] for row in rows])),
        }
    return scores


def pick(rows: Rows, measured: Column, found: Column) -> float:
    """Return how near the picked layouts are to the best measured ones; NaN without a choice."""
    groups: dict[tuple[str, int], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row["model"], row["gpus"]), []).append(i)
    shares = [
        measured[group][found[group] >= found[group].max() * (1 - TIED)].mean()
        / measured[group].max()
        for group in groups.values()
        if len(group) >= FEWEST
    ]
    return float(np.mean(shares)) if shares else float("nan")


@dataclass(frozen=True)
class LeftOut:
    """Runs that were left out, those that were known, and the fit to them."""

    kind: str
    left_out: str
    runs: Observations
    known: tuple[Observations, ...]
    fitted: Fitted

    @property
    def off(self) -> Column:
        """Logarithm of measured by forecast seconds of every run, mixtures of experts as well."""
        return off(self.runs, self.fitted)

    @property
    def constant(self) -> Column:
        """Tokens/s per GPU if all runs had the median MFU of the known sources, a trivial forecast.

        Each of these counts once.
        """
        share = np.median([np.median(mfu(one)) for one in self.known])
        return np.asarray(share * self.runs.cases.peak / self.runs.cases.model_flops)

    def mixed(self, scale: float) -> Mixed:
        """Return the forecast of the runs; ``scale`` is that of what else was left out."""
        spread = np.full(len(self.runs.opened.cases), scale)
        return mixed(self.runs.opened, self.fitted, spread)


SEEN, UNSEEN = "source", "source and its GPU or framework"


def sources_left_out(
    fitted: Fitted, runs: Mapping[str, Observations], names: Iterable[str] = ()
) -> list[LeftOut]:
    """Return each source, or those of these names, with a fit that has not seen it.

    ``fitted`` has seen nanotron: what only its runs say is taken from there.
    """
    left_out = []
    alone: Alone = {}
    for source in names or runs:
        own = runs[source]
        known = {name: one for name, one in runs.items() if name != source}
        dense = {name: one.select(one.cases.experts == 1) for name, one in known.items()}
        if source == "nanotron":
            found = fit_all(known)
        else:
            found = with_frameworks(_bare(fitted), dense, alone)
        names = {FRAMEWORKS[name].like or name for name in np.unique(own.cases.framework)}
        alike = [one for name in names for one in of_framework(known, name).values()]
        seen = np.isin(own.cases.core_peak, [peak for one in alike for peak in one.cases.core_peak])
        kind = SEEN if seen.mean() > MOST else UNSEEN
        left_out.append(LeftOut(kind, source, own, tuple(known.values()), found))
    return left_out


def _bare(fitted: Fitted) -> Fitted:
    return replace(fitted, frameworks={})


def with_unseen(fitted: Fitted, left_out: Sequence[LeftOut]) -> Fitted:
    """Return the fit with the spread of sources that it has not seen."""
    return replace(fitted, spread={**fitted.spread, "elsewhere": _spread(left_out)})


def _spread(left_out: Sequence[LeftOut]) -> float:
    """Return the scale of sources, but for the one of which hardly anything is stated."""
    return between([one for one in left_out if one.left_out != "nanotron"])


def sources_forecast(left_out: Sequence[LeftOut]) -> Iterator[tuple[LeftOut, Mixed]]:
    """Return every source left out with its forecast; the interval is that of the others."""
    for one in left_out:
        others = [other for other in left_out if other is not one]
        yield one, one.mixed(_spread(others))


PAPER_SOURCES = ("SC21", "Korthikanti", "zero bubble")


def papers_forecast() -> Iterator[tuple[LeftOut, Mixed]]:
    """Return the runs of every paper of Megatron-LM with a forecast that has not seen them.

    Intervals are the kept ones of a source that is not known; ``left_out`` is the paper's number.
    """
    every = observed(PAPERS)
    for one in sources_left_out(saved_fit(), open_runs()[0], PAPER_SOURCES):
        paper = next(paper for paper in np.unique(one.runs.papers) if paper in every.papers)
        left_out = replace(one, left_out=str(paper), runs=every.select(every.papers == paper))
        yield left_out, left_out.mixed(saved_fit().spread["elsewhere"])


def between(left_out: Iterable[LeftOut]) -> float:
    """Return the scale of Student's t with `FREEDOM` degrees of papers that were left out.

    A random effect: the mean by which a paper is off has a variance between papers, known from as
    many of them as there are, and its runs have one about that mean, known from all runs. Every
    paper weighs the same. The sum has degrees of freedom by Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    errors = [one.off for one in left_out]
    among = float(np.mean([values.mean() ** 2 for values in errors]))
    within = float(np.mean([values.var() for values in errors]))
    runs, sources = sum(map(len, errors)), len(errors)
    freedom = (among + within) ** 2 / (among**2 / sources + within**2 / (runs - sources))
    ends = [stdtrit(degrees, (1 + INTERVAL) / 2) for degrees in (freedom, FREEDOM)]
    return float(np.sqrt(among + within) * ends[0] / ends[1])


def mfu(known: Observations) -> Column:
    """Return the MFU of every run, by the FLOPs of `Cases.model_flops`."""
    return np.asarray(known.rates * known.cases.model_flops / known.cases.peak)


def open_forecasts(fitted: Fitted | None = None) -> pd.DataFrame:
    """Return one row per measured run of a large model: forecast, interval, trivial forecast.

    Columns source, run (its number within the source), model, gpus, measured, forecast, low, high,
    trivial (all in tokens/s per GPU), chance_of_fit, memory, measured_memory (GiB), left_out:
    whether the fit has not seen the source, which is for all of them without ``fitted``. The
    trivial forecast is the median MFU of the other sources, each of which counts once.
    """
    runs, _ = open_runs()
    left_out = sources_left_out(saved_fit(), runs)
    if fitted is None:
        pairs = list(sources_forecast(left_out))
    else:
        pairs = [(one, mixed(one.runs.opened, fitted)) for one in left_out]
    frames = []
    for one, found in pairs:
        columns = {
            "source": one.left_out,
            "run": np.arange(len(one.runs)),
            "model": one.runs.models,
            "gpus": one.runs.cases.gpus.astype(int),
            "measured": one.runs.rates,
            "forecast": found.tokens_per_s_per_gpu,
            "low": found.low,
            "high": found.high,
            "trivial": one.constant,
            "chance_of_fit": found.chance_of_fit,
            "memory": found.outlook.memory_gib[found.likeliest],
            "measured_memory": one.runs.memory,
            "left_out": fitted is None,
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)
