"""How far off forecasts are, by groups of rows, beside other forecasts."""

from collections.abc import Mapping, Sequence

import pandas as pd


def error_table(
    rows: pd.DataFrame,
    by: Sequence[str],
    measured: str,
    forecast: str,
    others: Mapping[str, str],
    inside: pd.Series | None = None,
    *,
    count: str = "cells",
    share: str = "inside",
) -> pd.DataFrame:
    """Return by group how many rows there are, and the median and the worst error of a forecast.

    Beside them stand the share of rows that are ``inside`` and the median errors of ``others``,
    columns by the name that they get. Errors are relative, without their sign.
    """
    forecasts = {"median_error": forecast, **others}
    errors = {name: (rows[of] / rows[measured] - 1).abs() for name, of in forecasts.items()}
    found = pd.DataFrame(errors | ({} if inside is None else {share: inside}))
    groups = found.groupby([rows[name] for name in by] or (lambda _: "all"), sort=False)
    ours = groups["median_error"].agg(**{count: "size", "median_error": "median", "worst": "max"})
    means = groups[[share]].mean() if inside is not None else None
    return pd.concat([ours, means, groups[list(others)].median()], axis=1).round(3)
