"""Forecast the times of a table of collectives from fitted clusters, with 90 % intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.calibration.collectives.cost import Array, seconds
from ddlnb.calibration.collectives.fit import TABLE, FittedCollectives, fit_collectives
from ddlnb.calibration.collectives.priors import parameters
from ddlnb.calibration.collectives.settings import setting_of
from ddlnb.results.collectives.questions import completed, read_questions
from ddlnb.results.collectives.rows import OPEN_ROWS, read_collectives
from ddlnb.units import US

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
