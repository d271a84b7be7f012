"""Forecast the times of a table of collectives from fitted clusters, with 90 % intervals.

Trivial forecasts of collectives, beside which the fitted model has to prove itself.

How far off forecasts of collectives are: rows are left out, forecast from the others, compared.

Left out are all rows of two nodes of a block, a source with all its blocks, or a range of sizes of
a block. Beside the fitted model stand trivial forecasts from the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlnb.calibration.collectives.cost import Array, seconds
from ddlnb.calibration.collectives.fit import (
    TABLE,
    FittedCollectives,
    fit_collectives,
    key_of,
    parameters,
)
from ddlnb.calibration.collectives.hardware import hardware_of, setting_of
from ddlnb.errors import require
from ddlnb.progress import Show, bar
from ddlnb.results.collectives import (
    OPEN_ROWS,
    SECONDS,
    bus_factor,
    completed,
    read_collectives,
    read_questions,
)
from ddlnb.units import GIB, KIB, MIB, US

if TYPE_CHECKING:
    import pandas as pd


TIMES = ["time_us", "low", "high"]
INTERVAL = (0.05, 0.95)
MODEL_ERROR = 0.10  # standard deviation of the logarithm of a forecast for nodes that were seen
PER_DOUBLING = 0.08  # of what each doubling of the nodes beyond those adds, independently


def collectives(
    table: str | Path | pd.DataFrame,
    fit: str | Path | pd.DataFrame = OPEN_ROWS,
    *,
    draws: int = 600,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a table of collectives with forecasts of their times, in microseconds.

    ``fit`` are measured rows (default: the published ones of one and two nodes); ``table`` has
    their columns, without times: collective, size_bytes and nodes or ranks are needed, and the
    words for GPU, network, library, settings and source are used where they are there. Added are
    ``time_us``, the median, and ``low`` and ``high``, a 90 % interval; columns of these names are
    replaced. Raises ResultsError for files that are no such tables, and InputError for rows.

    >>> import ddlnb, pandas as pd
    >>> row = {"collective": "all_reduce", "size_bytes": 2**30, "gpu": "H100", "gpus_per_node": 8}
    >>> asked = pd.DataFrame([row | {"nodes": n, "network": "NDR 8x400 Gb/s"} for n in (4, 64)])
    >>> four, many = ddlnb.collectives(asked)["time_us"]
    >>> 4000 < four < many < 10000
    True
    """
    rows = read_collectives(fit) if isinstance(fit, str | Path) else fit
    asked = read_questions(table) if isinstance(table, str | Path) else table
    questions = completed(asked)
    return asked.assign(**forecast(fit_collectives(rows, draws=draws, seed=seed), questions))


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


def _quantiles(fitted: FittedCollectives, row: dict[str, object], sizes: Array) -> Array:
    """Return median, low and high of the sizes, (sizes, 3), in microseconds."""
    draws, seen = fitted.draws_for(row)
    setting = setting_of(row)
    times = np.log(seconds(setting, sizes, parameters(draws)))
    beyond = max(0.0, math.log2(setting.nodes / max(1, seen)))
    error = math.hypot(MODEL_ERROR, PER_DOUBLING * math.sqrt(beyond))
    random = np.random.default_rng(fitted.seed)
    noisy = times + error * random.standard_normal((len(draws), 1))
    middle = np.median(times, axis=0)
    low, high = np.quantile(noisy, INTERVAL, axis=0)
    return np.exp(np.stack([middle, low, high], axis=1)) / US


def same_bus_bandwidth(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds at the bus bandwidth of the nearest size on the most nodes measured."""
    like = _alike(rows, row)
    most = like[like["nodes"] == like["nodes"].max()]
    distance = np.abs(np.log(most["size_bytes"].to_numpy(float) / row["size_bytes"]))
    nearest = most.iloc[int(distance.argmin())]
    factor = bus_factor(nearest["collective"], nearest["ranks"])
    per_byte = nearest[SECONDS] / (factor * nearest["size_bytes"])
    return float(per_byte * bus_factor(row["collective"], row["ranks"]) * row["size_bytes"])


def alpha_beta(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds of a latency and a bus bandwidth fitted to relative errors."""
    like = _alike(rows, row)
    pairs = zip(like["collective"], like["ranks"], strict=True)
    sent = like["size_bytes"].to_numpy(float) * np.array([bus_factor(*pair) for pair in pairs])
    times = like[SECONDS].to_numpy(float)
    from scipy.optimize import nnls

    columns = np.stack([1 / times, sent / times], axis=1)
    scales = columns.max(axis=0)
    latency, per_byte = nnls(columns / scales, np.ones(len(like)))[0] / scales
    sends = row["size_bytes"] * bus_factor(row["collective"], row["ranks"])
    return float(latency + per_byte * sends)


def nominal(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds at the rates of the data sheets."""
    gpu, network = hardware_of(row)
    rate = gpu.inside if row["nodes"] == 1 else min(gpu.inside, network.node_rate)
    return float(row["size_bytes"] * bus_factor(row["collective"], row["ranks"]) / rate)


TRIVIAL: dict[str, Callable[[pd.DataFrame, Mapping[str, Any]], float]] = {
    "same bus bandwidth": same_bus_bandwidth,
    "latency and bandwidth": alpha_beta,
    "nominal bandwidth": nominal,
}


def _alike(rows: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows most like the row: of its cluster, else its GPU, else all."""
    gpu, network = hardware_of(row)
    key = key_of(row, gpu, network)
    keys = [key_of(one, *hardware_of(one)) for one in rows.to_dict("records")]
    same = np.array([(k == key, k.gpu == key.gpu, True) for k in keys])
    collective = (rows["collective"] == row["collective"]).to_numpy()
    for like in same.T:
        if (like & collective).any():
            return rows[like & collective]
    return rows


LARGE = MIB  # the sizes by which forecasts are judged begin here
MODEL = "fitted"
RANGES = {
    "up to 64 KiB": (0, 64 * KIB),
    "1 to 16 MiB": (MIB, 16 * MIB),
    "32 to 512 MiB": (32 * MIB, 512 * MIB),
    "from 1 GiB": (GIB, np.inf),
}
FEWEST = 14  # sizes of a block of which a range is left out
KEPT = ["left_out", "what", "block", "collective", "nodes", "ranks", "size_bytes"]


@dataclass(frozen=True)
class LeftOut:
    """Rows that are left out together: the kind of choice, its name, and which rows."""

    kind: str
    name: str
    chosen: pd.Series


def left_out(rows: pd.DataFrame) -> list[LeftOut]:
    """Return every set of rows that is left out, none of them all rows."""
    return [one for one in _left_out(rows) if one.chosen.any() and not one.chosen.all()]


def _left_out(rows: pd.DataFrame) -> Iterator[LeftOut]:
    blocks, sources = rows["block"], rows["source_url"]
    for block in blocks.unique():
        yield LeftOut("two nodes", block, (blocks == block) & (rows["nodes"] == 2))
    for source in sources.unique():
        yield LeftOut("source", source, sources == source)
    for block in blocks.unique():
        if rows.loc[blocks == block, "size_bytes"].nunique() >= FEWEST:
            for name, limits in RANGES.items():
                within = rows["size_bytes"].between(*limits)
                yield LeftOut("sizes", f"{block} {name}", (blocks == block) & within)


def validate_collectives(
    rows: pd.DataFrame, *, draws: int = 600, seed: int = 0, progress: Show = None
) -> pd.DataFrame:
    """Return every left-out row with its time and forecasts, in microseconds.

    The columns are `KEPT`, ``measured_us``, ``time_us`` with ``low`` and ``high``, and one for each
    of `TRIVIAL`. Raises InputError if nothing can be left out.
    """
    import pandas as pd

    folds = left_out(rows)
    require(bool(folds), "no rows can be left out; give rows of several blocks or sources")
    parts = []
    for fold in bar(folds, "leaving out", progress=progress):
        known, hidden = rows[~fold.chosen], rows[fold.chosen]
        found = forecast(fit_collectives(known, draws=draws, seed=seed), hidden)
        listed = hidden.to_dict("records")
        trivial = {
            name: [rule(known, row) / US for row in listed] for name, rule in TRIVIAL.items()
        }
        named = {"left_out": fold.kind, "what": fold.name, "measured_us": hidden[SECONDS] / US}
        parts.append(hidden.assign(**named, **found, **trivial))
    table = pd.concat(parts, ignore_index=True)
    return table[[*KEPT, "measured_us", *found, *TRIVIAL]]


def summary(validated: pd.DataFrame) -> list[dict[str, object]]:
    """Return by what was left out, and for large and small messages: rows, errors, coverage.

    Errors are medians of the relative error; coverage is the share of rows in the interval.
    """
    found = []
    for (kind, large), part in validated.groupby(
        ["left_out", validated["size_bytes"] >= LARGE], sort=False
    ):
        measured = part["measured_us"]
        errors = {
            name: f"{(part[column] / measured - 1).abs().median():.1%}"
            for name, column in {MODEL: "time_us", **{name: name for name in TRIVIAL}}.items()
        }
        covered = measured.between(part["low"], part["high"]).mean()
        size = "1 MiB and more" if large else "less"
        counts = {"left out": kind, "messages": size, "rows": len(part)}
        found.append({**counts, **errors, "in the interval": f"{covered:.0%}"})
    return found
