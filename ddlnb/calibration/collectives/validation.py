"""How far off forecasts of collectives are: rows are left out, forecast from the others, compared.

Left out are all rows of two nodes of a block, a source with all its blocks, or a range of sizes of
a block. Beside the fitted model stand trivial forecasts from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.calibration.collectives.fit import fit_collectives
from ddlnb.calibration.collectives.forecast import forecast
from ddlnb.calibration.collectives.trivial import TRIVIAL
from ddlnb.errors import require
from ddlnb.progress import Show, bar
from ddlnb.results.collectives.rows import SECONDS
from ddlnb.units import GIB, KIB, MIB, US

if TYPE_CHECKING:
    import pandas as pd

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
