"""Papers, frameworks and sizes that are left out: intervals, too, know nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ddlnb.parallelism.forecast.fit.fit import START, fit
from ddlnb.parallelism.forecast.fit.observations import H100, PAPERS, observed
from ddlnb.parallelism.forecast.fit.unseen import (
    RUNS,
    LeftOut,
    between,
    frameworks_left_out,
    papers_left_out,
)
from ddlnb.parallelism.forecast.fit.validation import score
from ddlnb.parallelism.forecast.forecast import Outlook, by_gpus, forecast
from ddlnb.parallelism.forecast.parameters import Fitted, kept

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
    fitted = fitted or kept()
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
