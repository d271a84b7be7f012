"""Cross-validation: how far off forecasts are on runs that the fit has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Column
from ddlnb.parallelism.forecast.fit.fit import fit
from ddlnb.parallelism.forecast.fit.observations import Observations, observed
from ddlnb.parallelism.forecast.fit.trivial import constant_share, least_split, nearest_neighbour
from ddlnb.parallelism.forecast.forecast import forecast

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
