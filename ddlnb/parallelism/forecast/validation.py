"""Three trivial forecasts, which a forecast must beat to be worth its parameters.

Cross-validation: how far off forecasts are on runs that the fit has not seen.

Papers, frameworks and GPUs that a fit has not seen: how far off it is, so how sure it may be.

Runs of one paper are off together: its cluster, its libraries and what it calls a run differ from
those of the others. What runs within a paper say about each other is no measure of that. Here whole
papers are left out, and whole frameworks: the interval of a paper, framework or GPU that nothing
was fitted to is as wide as those were off.

Papers, frameworks and sizes that are left out: intervals, too, know nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.fit import (
    H100,
    PAPERS,
    RUNS,
    START,
    THEORY,
    Observations,
    fit,
    fit_framework,
    observed,
)
from ddlnb.parallelism.forecast.forecast import FREEDOM, INTERVAL, Outlook, by_gpus, forecast
from ddlnb.parallelism.forecast.frameworks import Fitted, saved_fit
from ddlnb.parallelism.forecast.step import step


def constant_share(known: Observations, asked: Cases) -> Column:
    """Return tokens/s per GPU if every run had the median of the known runs' MFU."""
    return np.asarray(np.median(mfu(known)) * asked.peak / asked.model_flops)


def nearest_neighbour(known: Observations, asked: Cases) -> Column:
    """Return tokens/s per GPU with the MFU of the nearest known run.

    Distance: the sum of the doublings between their parameters, GPUs, tp, pp, dp, micro batch and
    ZeRO. Of several runs that are as near, the median.
    """
    there, here = _place(known.cases), _place(asked)
    distance = np.abs(here[:, None, :] - there[None, :, :]).sum(axis=2)
    nearest = distance <= distance.min(axis=1, keepdims=True) + 1e-9
    shares = np.where(nearest, mfu(known)[None, :], np.nan)
    return np.asarray(np.nanmedian(shares, axis=1) * asked.peak / asked.model_flops)


def least_split(asked: Cases, fitted: Fitted) -> Column:
    """Return a rank of layouts: those that fit with the fewest ways to split the model first.

    A rule of thumb that picks; among alike ones the larger micro batch. Lower is better.
    """
    fits = forecast(asked, fitted).fits
    split = 100 * np.log2(asked.tp * asked.pp) - np.log2(asked.micro_batch)
    return np.asarray(np.where(fits, 0, 2000) + split)


def mfu(known: Observations) -> Column:
    """Return the MFU of every run, by the FLOPs of `Cases.model_flops`."""
    return np.asarray(known.rates * known.cases.model_flops / known.cases.peak)


def _place(cases: Cases) -> Column:
    columns = (cases.parameters, cases.gpus, cases.tp, cases.pp, cases.dp, cases.micro_batch,
               2**cases.zero)  # fmt: skip
    return np.log2(np.stack(columns, axis=1))


NEAR = 0.2
WORST = 5000.0  # rank that no layout has
TIED = 1e-6  # forecasts nearer to each other than this are alike: any of them may be picked
FEWEST = 4  # runs of a model on so many GPUs, for a pick among them to mean anything


@dataclass(frozen=True)
class Fold:
    """Runs that are left out, by what they have in common."""

    kind: str
    left_out: str
    test: NDArray[np.bool_]


def folds(runs: Observations) -> Iterator[Fold]:
    """Return the folds: a model, the most nodes, a degree of tensor or pipeline parallelism."""
    for model in np.unique(runs.models):
        yield Fold("model", str(model), runs.models == model)
    most = runs.cases.gpus.max()
    yield Fold("gpus", f"{most:.0f} GPUs", runs.cases.gpus == most)
    for axis in ("tp", "pp"):
        column = getattr(runs.cases, axis)
        for degree in np.unique(column):
            yield Fold(axis, f"{axis} {degree:.0f}", column == degree)


def cross_validate(runs: Observations | None = None) -> list[dict[str, Any]]:
    """Return one row per left-out run and forecast: ours, with and without slow runs, and others.

    Columns kind, left_out, forecast, run (its index), model, gpus, measured, tokens_per_s_per_gpu,
    and for ours low, high, memory_gib, measured_gib, fits.
    """
    runs = runs or observed()
    rows: list[dict[str, Any]] = []
    for fold in folds(runs):
        rows += _left_out(runs, fold)
    return rows


def _left_out(runs: Observations, fold: Fold) -> Iterator[dict[str, Any]]:
    known, test = runs.select(~fold.test), runs.select(fold.test)
    fitted = fit(known)
    ours = forecast(test.cases, fitted)
    never_slow = ours.tokens_per_s_per_gpu * ours.seconds / ours.step.seconds
    rates = {
        "ours": ours.tokens_per_s_per_gpu,
        "ours, never slow": never_slow,
        "constant MFU": constant_share(known, test.cases),
        "nearest neighbour": nearest_neighbour(known, test.cases),
        "least split": WORST - least_split(test.cases, fitted),
    }
    for name, found in rates.items():
        for i, run in enumerate(np.flatnonzero(fold.test)):
            row = {
                "kind": fold.kind, "left_out": fold.left_out, "forecast": name, "run": int(run),
                "model": str(test.models[i]), "gpus": int(test.cases.gpus[i]),
                "measured": float(test.rates[i]), "tokens_per_s_per_gpu": float(found[i]),
            }  # fmt: skip
            if name == "ours":
                row |= {
                    "low": float(ours.low[i]), "high": float(ours.high[i]),
                    "memory_gib": float(ours.memory_gib[i]),
                    "measured_gib": float(test.memory[i]), "fits": bool(ours.fits[i]),
                }  # fmt: skip
            yield row


def score(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the scores of rows of one forecast; shares, and the geometric-mean factor.

    median: of the absolute relative error; near: share within 20 %; pick: throughput of the layout
    with the highest forecast as a share of the best measured, mean over models and numbers of GPUs;
    held: share in the 90 % interval; memory: mean relative error; fits: share that is said to fit.
    """
    measured = np.array([row["measured"] for row in rows])
    found = np.array([row["tokens_per_s_per_gpu"] for row in rows])
    off = np.abs(found / measured - 1)
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


def pick(rows: list[dict[str, Any]], measured: Column, found: Column) -> float:
    """Return how near the picked layouts are to the best measured ones; NaN without a choice."""
    groups: dict[tuple[str, int], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row["model"], row["gpus"]), []).append(i)
    shares = []
    for group in groups.values():
        if len(group) >= FEWEST:
            best = found[group] >= found[group].max() * (1 - TIED)
            shares.append(measured[group][best].mean() / measured[group].max())
    return float(np.mean(shares)) if shares else float("nan")


def scores(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row of scores per kind of fold, fold and forecast, and one for all of a kind.

    A rule that only picks has no error of throughput.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for left_out in (row["left_out"], "all"):
            groups.setdefault((row["kind"], left_out, row["forecast"]), []).append(row)
    found = []
    for (kind, left_out, name), group in groups.items():
        values: dict[str, float] = score(group)
        if name == "least split":
            values = {"runs": values["runs"], "pick": values["pick"]}
        found.append({"kind": kind, "left_out": left_out, "forecast": name, **values})
    return found


SHARED = ("matrix_share", "attention_share", "elementwise")
WITH_PAPERS = "megatron"  # the framework of which there are several papers
LATER = "nemo"  # the framework of which there is no run


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
        """Logarithm of measured by forecast seconds of every run."""
        return np.log(self.runs.seconds / step(self.runs.cases, self.fitted).seconds)

    @property
    def constant(self) -> Column:
        """Tokens/s per GPU if all runs had the median MFU of the known ones: a trivial forecast."""
        share = np.median(np.concatenate([mfu(one) for one in self.known]))
        return np.asarray(share * self.runs.cases.peak / self.runs.cases.model_flops)


def papers_left_out(fitted: Fitted, runs: Observations) -> Iterator[LeftOut]:
    """Return each paper's runs with a fit of Megatron-LM to the other papers."""
    for paper in dict.fromkeys(runs.papers.tolist()):
        own = runs.papers == paper
        known = runs.select(~own)
        found = fit_framework(fitted, WITH_PAPERS, known)
        yield LeftOut("paper", paper, runs.select(own), (known,), found)


def frameworks_left_out(fitted: Fitted, names: Sequence[str]) -> Iterator[LeftOut]:
    """Return each framework's runs with the mean of the other frameworks in its place."""
    for name in names:
        others = [one for one in names if one != name]
        found = with_mean(fitted, name, others)
        yield LeftOut("framework", name, published(name), tuple(map(published, others)), found)


def with_mean(fitted: Fitted, name: str, others: Sequence[str]) -> Fitted:
    """Return the fit in which a framework has the geometric mean of what others were fitted to."""
    values = {
        one: float(np.exp(np.mean([np.log(getattr(fitted.of(other), one)) for other in others])))
        for one in SHARED
    }
    return replace(fitted, frameworks={**fitted.frameworks, name: THEORY | values})


def published(name: str) -> Observations:
    """Return a framework's runs as papers publish them: of nanotron's search only the best.

    The best of a model and a number of GPUs; the others were run to be compared with it.
    """
    runs = observed(RUNS[name])
    if name != "nanotron":
        return runs
    places = np.array([f"{m} {g:.0f}" for m, g in zip(runs.models, runs.cases.gpus, strict=True)])
    groups = [np.flatnonzero(places == one) for one in np.unique(places)]
    return runs.select(np.array([group[np.argmax(runs.rates[group])] for group in groups]))


def between(left_out: Iterable[LeftOut]) -> float:
    """Return the scale of Student's t with `FREEDOM` degrees of papers that were left out.

    A random effect: the mean by which a paper is off has a variance between papers, known from as
    many of them as there are, and its runs have one about that mean, known from all runs. Every
    paper weighs the same. The sum has degrees of freedom by Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    off = [one.off for one in left_out]
    among = float(np.mean([values.mean() ** 2 for values in off]))
    within = float(np.mean([values.var() for values in off]))
    runs = sum(map(len, off))
    freedom = (among + within) ** 2 / (among**2 / len(off) + within**2 / (runs - len(off)))
    ends = [stdtrit(degrees, (1 + INTERVAL) / 2) for degrees in (freedom, FREEDOM)]
    return float(np.sqrt(among + within) * ends[0] / ends[1])


def with_unseen(fitted: Fitted) -> Fitted:
    """Return the fit with what is taken for other papers, frameworks and GPUs, and their spread."""
    names = list(RUNS)
    spread = {
        "paper": between(papers_left_out(fitted, observed(PAPERS))),
        "elsewhere": between(frameworks_left_out(fitted, names)),
    }
    found = with_mean(fitted, LATER, names)
    return replace(found, spread={**found.spread, **spread})


FEWER = (16, 32)  # GPUs that a fit has seen at most, to forecast more
OURS, CONSTANT = "ours", "constant MFU"


def papers_forecast(fitted: Fitted) -> Iterator[tuple[LeftOut, Outlook]]:
    """Return every paper left out with its forecast; the interval is that of the other papers."""
    for one in papers_left_out(fitted, observed(PAPERS)):
        others = papers_left_out(fitted, one.known[0])
        yield one, _forecast(one, between(others))


def frameworks_forecast(fitted: Fitted) -> Iterator[tuple[LeftOut, Outlook]]:
    """Return every framework left out with its forecast; the interval is that of the others.

    nanotron is also the only one on H100 GPUs, and the others the only ones on A100.
    """
    for one in frameworks_left_out(fitted, list(RUNS)):
        others = frameworks_left_out(fitted, [name for name in RUNS if name != one.left_out])
        yield one, _forecast(one, between(others))


def more_gpus_forecast(fitted: Fitted) -> Iterator[tuple[LeftOut, Outlook]]:
    """Return runs on more GPUs than a fit has seen: nanotron's, from at most 16 and at most 32.

    Intervals are those of the fit to fewer GPUs. ``fitted`` is where that starts from.
    """
    runs = observed(H100)
    gpus = runs.cases.gpus
    for most in FEWER:
        known = runs.select(gpus <= most)
        found = fit(known, replace(fitted, parameters=START))
        for more in np.unique(gpus[gpus > most]):
            own = runs.select(gpus == more)
            left_out = f"{more:.0f} GPUs, from at most {most}"
            yield (
                LeftOut("more GPUs", left_out, own, (known,), found),
                forecast(own.cases, found),
            )


def _forecast(one: LeftOut, scale: float) -> Outlook:
    cases = one.runs.cases
    return forecast(cases, one.fitted, scale * by_gpus(cases))


def unseen_rows(fitted: Fitted | None = None) -> list[dict[str, Any]]:
    """Return one row per run that was left out with its paper, framework or size, and forecast.

    Columns kind, left_out, forecast, model, gpus, measured, tokens_per_s_per_gpu, low, high.
    """
    fitted = fitted or saved_fit()
    rows: list[dict[str, Any]] = []
    left_out = (papers_forecast, frameworks_forecast, more_gpus_forecast)
    for one, found in (pair for forecasts in left_out for pair in forecasts(fitted)):
        runs = one.runs
        for name, rates in ((OURS, found.tokens_per_s_per_gpu), (CONSTANT, one.constant)):
            for i in range(len(runs)):
                row = {
                    "kind": one.kind, "left_out": one.left_out, "forecast": name,
                    "model": str(runs.models[i]), "gpus": int(runs.cases.gpus[i]),
                    "measured": float(runs.rates[i]), "tokens_per_s_per_gpu": float(rates[i]),
                }  # fmt: skip
                if name == OURS:
                    row |= {"low": float(found.low[i]), "high": float(found.high[i])}
                rows.append(row)
    return rows


def unseen_scores(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row of scores per paper, framework or size left out, and over all of a kind.

    median, near as in `score`; ranks: Spearman's correlation; held: share in the 90 % interval;
    width: its upper by its lower end, a geometric mean.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for left_out in (row["left_out"], "all"):
            groups.setdefault((row["kind"], left_out, row["forecast"]), []).append(row)
    return [
        {"kind": kind, "left_out": left_out, "forecast": name, **_score(group)}
        for (kind, left_out, name), group in groups.items()
    ]


def _score(rows: list[dict[str, Any]]) -> dict[str, float]:
    from scipy.stats import spearmanr

    names = ("measured", "tokens_per_s_per_gpu", "low", "high")
    measured, found, low, high = (
        np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in names
    )
    points = score([{**row, "low": np.nan} for row in rows])
    scores = {name: points[name] for name in ("runs", "median", "near")}
    scores["ranks"] = float(spearmanr(measured, found).statistic)
    if np.isfinite(low).all():
        scores["held"] = float(((low <= measured) & (measured <= high)).mean())
        scores["width"] = float(np.exp(np.log(high / low).mean()))
    return scores
