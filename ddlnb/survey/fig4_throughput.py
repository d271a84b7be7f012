"""Fig. 4 on this machine: measured throughput beside the published, and claims about speed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from ddlnb.results.schema import RATE
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.launchers import place as place
from ddlnb.survey.published import about_fig4_cells, fig4_cells, quotes
from ddlnb.units import counted

# (item of the survey, faster method, slower method, in words); section 4.2.2 and 4.2.3.
SPEED_CLAIMS = (
    ("A44", "BSP-A2A", "BSP-PS", "BSP-A2A beats BSP-PS in most cells (s. 4.2.2)"),
    ("A45", "WFBP-PS", "WFBP-A2A", "WFBP-PS is well above WFBP-A2A on slow networks (s. 4.2.2)"),
    ("A46", "MG-WFBP", "WFBP-PS", "MG-WFBP is equal to or better than WFBP-PS (s. 4.2.2)"),
    ("A48", "WFBP-PS", "BSP-PS", "WFBP is not slower than BSP, with PS (s. 4.2.3)"),
    ("A48", "WFBP-A2A", "BSP-A2A", "WFBP is not slower than BSP, all-to-all (s. 4.2.3)"),
    ("A49", "MG-WFBP", "WFBP-A2A", "MG-WFBP is clearly above WFBP-A2A (s. 4.2.3)"),
)


def quotes_table(ids: Iterable[str]) -> pd.DataFrame:
    """Return the values that the survey's text quotes under these ids."""
    known = quotes()
    return pd.DataFrame([quote for one in ids for quote in known[one]]).set_index("id")


def beside_published(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, followed by the published cells of Fig. 4 of the models in them, if any."""
    cells = fig4_cells()
    cells = cells[cells["model"].isin(rows["model"]) & (cells["gpus"] > 1)]
    return pd.concat([rows, cells], ignore_index=True) if len(cells) else rows


def speed_findings(rows: pd.DataFrame) -> Findings:
    """Return the fastest method by number of workers, and what became of the survey's claims."""
    said = claims_here(rows)["here"]
    fastest = rows.loc[rows[rows["gpus"] > 1].groupby("gpus")[RATE].idxmax()]
    counts = ", ".join(f"{count} {words}" for words, count in said.value_counts().items())
    return findings(
        *(
            f"{counted(first.gpus, 'worker')}: {first.method} is the fastest here, with "
            f"{first.throughput_samples_per_s:.0f} samples/s and {first.speedup:.2f} times the "
            f"speed of one worker."
            for first in fastest.itertuples()
        ),
        f"The survey's {len(SPEED_CLAIMS)} claims about speed, for every number of workers: "
        f"{counts}.",
        about_fig4_cells(),
    )


@tabled(
    "item",
    "claim",
    "workers",
    "ratio",
    "spread",
    "here",
    index=["item"],
    digits={"ratio": 2, "spread": 2},
)
def claims_here(rows: pd.DataFrame) -> Rows:
    """Judge the survey's claims about speed by these rows: a ratio, its spread and what it says.

    The ratio is that of the throughputs, its spread one standard deviation of the ratio as the
    repetitions give it. A ratio closer to 1 than its spread says nothing, and neither does one
    without a spread, of methods that ran only once.
    """
    for gpus, part in rows.groupby("gpus"):
        by_method = part.set_index("method")
        for item, faster, slower, claim in SPEED_CLAIMS:
            if faster in by_method.index and slower in by_method.index:
                left, right = by_method.loc[faster], by_method.loc[slower]
                ratio = left[RATE] / right[RATE]
                spread = ratio * math.hypot(left["std"] / left[RATE], right["std"] / right[RATE])
                yield (item, claim, gpus, ratio, spread, _verdict(ratio, spread))


def _verdict(ratio: float, spread: float) -> str:
    if math.isnan(spread):
        return "one run says nothing"
    if abs(ratio - 1) <= spread:
        return "within the spread"
    return "as claimed" if ratio > 1 else "the other way round"
