"""Measured collectives, forecast by what is known without them.

A block is left out with all its rows, and the others of at most two nodes are fitted, those of the
same cluster too: from two nodes of it, four and eight are forecast. Or a source is left out with
all its blocks, as for a cluster that was never seen. Beside each forecast stands the trivial one,
bytes over the sheet's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddlnb.calibration.collective_tables import SECONDS, bus_factor, read_published
from ddlnb.calibration.collectives import fit_collectives, forecast
from ddlnb.calibration.nccl import Array, hardware_of
from ddlnb.errors import require, require_known
from ddlnb.progress import Show, bar
from ddlnb.units import MIB, US, size_in_words

FITTED_NODES = 2  # forecasts of more nodes are made from rows of at most this many
SCORES = ["source", "block", "run", "measured", "forecast", "low", "high", "trivial", "left_out"]
OF_RUN = ["collective", "nodes", "gpus_per_node", "size_bytes"]  # what ranges of rows are told by


def collective_scores(
    rows: pd.DataFrame | None = None,
    *,
    by: str = "block",
    draws: int = 300,
    seed: int = 0,
    progress: Show = None,
) -> pd.DataFrame:
    """Return every row with a forecast that was made without its block or source, in seconds.

    The columns are `SCORES` and `OF_RUN`: ``run`` says in words what was measured, ``low`` and
    ``high`` are a 90 % interval, ``trivial`` is the bus bandwidth of the data sheet, ``left_out``
    what the fit did not see, by the column ``by``. ``rows`` are those of `read_published`, the
    default. Raises InputError where no row of at most two nodes is left to be fitted.
    """
    rows = read_published() if rows is None else rows
    require_known("choice of what is left out", by, ("block", "source"))
    parts = []
    for name in bar(list(rows[by].unique()), "leaving out", progress=progress):
        hidden = rows[by] == name
        known = rows[~hidden & (rows["nodes"] <= FITTED_NODES)]
        require(len(known) > 0, f"nothing is left without {by} {name!r}; give rows of another")
        fitted = fit_collectives(known, draws=draws, seed=seed)
        parts.append(_scored(rows[hidden], forecast(fitted, rows[hidden]), f"{by} {name}"))
    return pd.concat(parts, ignore_index=True)


def nominal(row: Mapping[str, Any]) -> float:
    """Return the seconds at the rates of the data sheets."""
    gpu, network = hardware_of(row)
    rate = gpu.inside if row["nodes"] == 1 else min(gpu.inside, network.node_rate)
    return float(row["size_bytes"] * bus_factor(row["collective"], row["ranks"]) / rate)


def _settings(row: dict[str, Any]) -> str:
    return row["settings"] if isinstance(row["settings"], str) else ""


def _scored(rows: pd.DataFrame, found: Mapping[str, Array], left_out: str) -> pd.DataFrame:
    listed = rows.to_dict("records")
    times = pd.DataFrame(found, rows.index) * US
    table = rows.assign(
        run=[
            f"{row['collective']} {row['nodes']:.0f} x {row['gpus_per_node']:.0f}, "
            f"{size_in_words(int(row['size_bytes']))} {_settings(row)}".rstrip()
            for row in listed
        ],
        measured=rows[SECONDS],
        forecast=times["time_us"],
        low=times["low"],
        high=times["high"],
        trivial=[nominal(row) for row in listed],
        left_out=left_out,
    )
    return table[[*SCORES, *OF_RUN]]


def scores_by_group(scores: pd.DataFrame) -> list[dict[str, object]]:
    """Return the errors of `collective_scores` by what is judged: medians, and coverage."""
    large = scores["size_bytes"] >= MIB
    beyond = scores["nodes"] > FITTED_NODES
    groups = {
        "more nodes than fitted, 1 MiB and more": beyond & large,
        "1 to 16 MiB": large & (scores["size_bytes"] <= 16 * MIB),
        "1 MiB and more": large,
        "less": ~large,
        "all": large | ~large,
    }
    found = []
    for name, chosen in groups.items():
        part = scores[chosen]
        error, trivial = (part[how] / part["measured"] - 1 for how in ("forecast", "trivial"))
        covered = part["measured"].between(part["low"], part["high"]).mean()
        found.append(
            {
                "messages": name,
                "rows": len(part),
                "median error": f"{error.abs().median():.1%}",
                "median of error": f"{error.median():+.1%}",
                "nominal bandwidth": f"{trivial.abs().median():.1%}",
                "in the interval": f"{covered:.0%}",
            }
        )
    return found
