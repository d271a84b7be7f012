"""The measured throughput table beside the published one (survey, section 4.2, Fig. 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from ddlnb.results.published import fig4_cells, quotes
from ddlnb.results.rows import MEASURES

# (item of the survey, faster method, slower method, in words); section 4.2.2 and 4.2.3.
SPEED_CLAIMS = (
    ("A44", "BSP-A2A", "BSP-PS", "BSP-A2A beats BSP-PS in most cells (s. 4.2.2)"),
    ("A45", "WFBP-PS", "WFBP-A2A", "WFBP-PS is well above WFBP-A2A on slow networks (s. 4.2.2)"),
    ("A46", "MG-WFBP", "WFBP-PS", "MG-WFBP is equal to or better than WFBP-PS (s. 4.2.2)"),
    ("A48", "WFBP-PS", "BSP-PS", "WFBP is not slower than BSP, with PS (s. 4.2.3)"),
    ("A48", "WFBP-A2A", "BSP-A2A", "WFBP is not slower than BSP, all-to-all (s. 4.2.3)"),
    ("A49", "MG-WFBP", "WFBP-A2A", "MG-WFBP is clearly above WFBP-A2A (s. 4.2.3)"),
)


ABSENT = (
    "The published cells of Fig. 4 are not in this edition: data/published/fig4_upto8.csv\n"
    "could not be obtained. The speed-ups that the survey's text quotes stand below instead."
)


def quotes_table(ids: Iterable[str]) -> pd.DataFrame:
    """The values that the survey's text quotes under these ids."""
    known = quotes()
    rows = [asdict(quote) for quote_id in ids for quote in known[quote_id]]
    return pd.DataFrame(rows).set_index("id")


def beside_published(rows: pd.DataFrame, model: str | None = None) -> pd.DataFrame:
    """The rows, followed by the published cells of Fig. 4 (of one model) where there are any."""
    cells = fig4_cells()
    if model is not None:
        cells = cells[cells["model"] == model]
    return pd.concat([rows, cells], ignore_index=True) if len(cells) else rows


def about_published() -> str:
    """Whether the published cells of Fig. 4 are there, in words."""
    cells = fig4_cells()
    return f"{len(cells)} published cells of Fig. 4 are there." if len(cells) else ABSENT


def throughput_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Throughput, its deviation, speed-up, waiting time and messages by workers and method."""
    kept = ["throughput_samples_per_s", "std", "speedup", "exposed_communication_seconds"]
    return rows.set_index(["gpus", "method"])[[*kept, "messages"]].round(4)


def claims_here(rows: pd.DataFrame) -> pd.DataFrame:
    """The survey's claims about speed against these rows: a ratio, its spread and what it says.

    The ratio is that of the throughputs, its spread one standard deviation of the ratio as the
    repetitions give it. A ratio closer to 1 than its spread says nothing, and neither does one
    without a spread, of methods that ran only once.
    """
    found = []
    for gpus, part in rows.groupby("gpus"):
        by_method = part.set_index("method")
        for item, faster, slower, claim in SPEED_CLAIMS:
            if faster in by_method.index and slower in by_method.index:
                ratio, spread = _ratio(by_method.loc[faster], by_method.loc[slower])
                said = _verdict(ratio, spread)
                line = {"item": item, "claim": claim, "workers": gpus, "ratio": ratio}
                found.append({**line, "spread": spread, "here": said})
    columns = ["item", "claim", "workers", "ratio", "spread", "here"]
    return pd.DataFrame(found, columns=columns).round({"ratio": 2, "spread": 2}).set_index("item")


def _ratio(left: pd.Series, right: pd.Series) -> tuple[float, float]:
    measure = MEASURES[0]
    ratio = float(left[measure] / right[measure])
    return ratio, ratio * math.hypot(left["std"] / left[measure], right["std"] / right[measure])


def _verdict(ratio: float, spread: float) -> str:
    if math.isnan(spread):
        return "one run says nothing"
    if abs(ratio - 1) <= spread:
        return "within the spread"
    return "as claimed" if ratio > 1 else "the other way round"
