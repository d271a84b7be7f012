"""How far off forecasts of large-scale training are on runs that were left out.

python -m benchmarks.scale_validation            fit, leave out, print the scores (minutes)
python -m benchmarks.scale_validation --write    keep the fit, the rows and the scores
python -m benchmarks.scale_validation --kept     print the kept scores

Left out are models, numbers of GPUs and degrees, then whole sources and sizes: the interval of a
cluster that nothing was fitted to is as wide as sources were off that were left out. Beside ours
stand three trivial forecasts, which a forecast must beat to be worth its parameters.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.command import command
from ddlnb.files import DATA, write_atomically
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.fit import fit, fit_all
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.frameworks import SAVED, Fitted, fit_text
from ddlnb.parallelism.forecast.mixture import Mixed, mixed
from ddlnb.parallelism.forecast.published import Observations, observed, open_runs
from ddlnb.parallelism.forecast.validation import (
    LIKELY,
    PICKS,
    LeftOut,
    Rows,
    mfu,
    score,
    scores,
    sources_forecast,
    sources_left_out,
    with_unseen,
)

ROWS = DATA / "forecasts" / "scale_cross_validation.csv"
UNSEEN = DATA / "forecasts" / "scale_unseen.csv"
WORST = 5000.0  # rank that no layout has
FEWER = (32, 64)  # GPUs that a fit has seen at most, to forecast more
OURS, CONSTANT = "ours", "constant MFU"


class Fold(NamedTuple):
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


def cross_validate(runs: Observations, chosen: Iterable[Fold]) -> Rows:
    """Return one row per left-out run and forecast: ours, with and without slow runs, and others.

    Columns kind, left_out, forecast, run (its index), model, gpus, measured, tokens_per_s_per_gpu,
    and for ours low, high, memory_gib, measured_gib, fits.
    """
    return [row for fold in chosen for row in _left_out(runs, fold)]


def _left_out(runs: Observations, fold: Fold) -> Iterator[dict[str, object]]:
    known, test = runs.select(~fold.test), runs.select(fold.test)
    fitted = fit(known)
    ours = forecast(test.cases, fitted)
    never_slow = ours.tokens_per_s_per_gpu * ours.seconds / ours.step.seconds
    rates = {
        OURS: ours.tokens_per_s_per_gpu,
        "ours, never slow": never_slow,
        CONSTANT: constant_share(known, test.cases),
        "nearest neighbour": nearest_neighbour(known, test.cases),
        PICKS: WORST - least_split(test.cases, fitted),
    }
    memory = {"memory_gib": ours.memory_gib, "measured_gib": test.memory, "fits": ours.fits}
    for name, found in rates.items():
        own = {"low": ours.low, "high": ours.high, **memory} if name == OURS else {}
        columns = {"run": np.flatnonzero(fold.test)} | _columns(test, found) | own
        yield from _rows(fold.kind, fold.left_out, name, columns)


def _columns(runs: Observations, rates: Column) -> dict[str, Any]:
    gpus = runs.cases.gpus.astype(int)
    return {"model": runs.models, "gpus": gpus, "measured": runs.rates,
            "tokens_per_s_per_gpu": rates}  # fmt: skip


def _rows(kind: str, left_out: str, forecast: str, columns: dict[str, Any]) -> Rows:
    """Return one row per run that was left out so; values are those of Python."""
    same = {"kind": kind, "left_out": left_out, "forecast": forecast}
    lists = {name: np.asarray(values).tolist() for name, values in columns.items()}
    return [same | dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


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


def _place(cases: Cases) -> Column:
    columns = (cases.parameters, cases.gpus, cases.tp, cases.pp, cases.dp, cases.micro_batch,
               2**cases.zero)  # fmt: skip
    return np.log2(np.stack(columns, axis=1))


def more_gpus_forecast(runs: Observations) -> Iterator[tuple[LeftOut, Mixed]]:
    """Return nanotron's runs on more GPUs than a fit has seen, with that fit's intervals."""
    gpus = runs.cases.gpus
    for most in FEWER:
        known = runs.select(gpus <= most)
        found = fit(known)
        for more in np.unique(gpus[gpus > most]):
            own = runs.select(gpus == more)
            left_out = f"{more:.0f} GPUs, from at most {most}"
            one = LeftOut("more GPUs", left_out, own, (known,), found)
            yield one, mixed(own.opened, found)


def unseen_rows(left_out: Sequence[LeftOut]) -> Rows:
    """Return one row per run that was left out with its source or size, and forecast.

    Columns kind, left_out, forecast, model, gpus, measured, tokens_per_s_per_gpu, and for ours low,
    high, memory_gib, measured_gib, chance_of_fit.
    """
    rows: Rows = []
    nanotron = open_runs()[0]["nanotron"]
    for one, found in (*sources_forecast(left_out), *more_gpus_forecast(nanotron)):
        ours = _columns(one.runs, found.tokens_per_s_per_gpu)
        ours |= {
            "low": found.low,
            "high": found.high,
            "memory_gib": found.outlook.memory_gib[found.likeliest],
            "measured_gib": one.runs.memory,
            "chance_of_fit": found.chance_of_fit,
        }
        rows += _rows(one.kind, one.left_out, OURS, ours)
        rows += _rows(one.kind, one.left_out, CONSTANT, _columns(one.runs, one.constant))
    return rows


def unseen_score(rows: Rows) -> dict[str, float]:
    """Return the scores of rows of one forecast of what was left out.

    median, near as in `score`; ranks: Spearman's correlation; held: share in the 90 % interval;
    width: its upper by its lower end, a geometric mean; fits: share whose chance is above 5 %.
    """
    from scipy.stats import spearmanr

    names = ("measured", "tokens_per_s_per_gpu", "low", "high")
    measured, found, low, high = (
        np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in names
    )
    points = score([{**row, "low": np.nan} for row in rows])
    scores = {name: points[name] for name in ("runs", "median", "near", "pick")}
    differ = np.ptp(measured) > 0 and np.ptp(found) > 0
    scores["ranks"] = float(spearmanr(measured, found).statistic) if differ else float("nan")
    if np.isfinite(low).all():
        scores["held"] = float(((low <= measured) & (measured <= high)).mean())
        scores["width"] = float(np.exp(np.log(high / low).mean()))
        scores["fits"] = float(np.mean([row["chance_of_fit"] > LIKELY for row in rows]))
    return scores


def main(*, write: bool = False, kept: bool = False) -> None:
    """Print the scores of rows that are --kept, or of a new fit, which --write keeps."""
    if kept:
        rows, unseen = (pd.read_csv(path).to_dict("records") for path in (ROWS, UNSEEN))
    else:
        sources = open_runs()[0]
        fitted = fit_all(sources)
        left_out = sources_left_out(fitted, sources)
        fitted = with_unseen(fitted, left_out)
        runs = observed()
        rows, unseen = cross_validate(runs, folds(runs)), unseen_rows(left_out)
        if write:
            write_atomically(SAVED, fit_text(fitted))
            for path, found in ((ROWS, rows), (UNSEEN, unseen)):
                text = pd.DataFrame(found).to_csv(index=False, float_format="%.5g")
                write_atomically(path, text)
    with pd.option_context("display.width", 160, "display.float_format", "{:.3f}".format):
        print(pd.DataFrame(scores(rows)).to_string(index=False))
        print("\nSources and sizes that were left out\n")
        print(pd.DataFrame(scores(unseen, unseen_score)).to_string(index=False))


if __name__ == "__main__":
    command(main)
