"""Claims: which sentences of section 4 hold, and in how many cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import (
    PUBLISHED,
    beside,
    legend,
    legend_published,
    names_down,
    say_source,
    styled,
)
from ddlnb.results.claim import Strength
from ddlnb.results.claims import CLAIMS

if TYPE_CHECKING:
    import pandas as pd

VERDICT_COLOURS = {"holds": "#009E73", "fails": "#D55E00", "not judged": "#999999"}
NEEDED = {Strength.ANY: 0.0, Strength.MOST: 0.5, Strength.EVERY: 1.0}  # the share of the cells
CHARACTERS = 76  # of a claim, on one line


@styled
def claim_verdicts(verdicts: Mapping[str, pd.DataFrame]) -> Figure:
    """The verdict on every claim: the share of its cells that support it, and what it needs.

    ``verdicts`` gives the frame of `ddlnb.results.claims.evaluate_claims` for every source, such as
    ``{"simulated": ...}``; one of ``"published"`` is hatched.
    """
    require(bool(verdicts), "there are no rows to draw")
    first = next(iter(verdicts.values()))
    require(len(first) > 0, "there are no rows to draw")
    height = 0.86 / len(verdicts)
    lines = len(first) * max(1, 0.6 * len(verdicts))
    figure, ax = plt.subplots(figsize=(12.5, 1.3 + 0.44 * lines))
    for number, (source, frame) in enumerate(verdicts.items()):
        require(list(frame["claim"]) == list(first["claim"]), "the frames differ in their claims")
        for y, (_, row) in enumerate(frame.iterrows()):
            at = y + (number - (len(verdicts) - 1) / 2) * height
            _bar(ax, at, height, row, published=source == "published")
    for y, claim in enumerate(first["claim"]):
        needed = max(NEEDED[part.strength] for part in CLAIMS[claim].parts)
        ax.plot([needed, needed], [y - 0.43, y + 0.43], color="black", linewidth=2, zorder=3)
    labels = [
        textwrap.fill(f"{row['claim']} (s. {row['section']}): {row['text']}", CHARACTERS)
        for _, row in first.iterrows()
    ]
    names_down(ax, labels, fontsize=8)
    ax.set_xlim(0, 1.34)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.set_xlabel("share of the cells that support the claim")
    ax.grid(False, axis="y")
    ax.set_title(_count(verdicts), fontsize=11)
    legend(figure, _handles(verdicts))
    remark = "a claim of several comparisons needs all of them; its share counts all their cells"
    say_source(figure, "; ".join(verdicts), remark)
    return figure


def _verdict(row: pd.Series) -> str:
    if row["holds"] is None:
        return "not judged"
    return "holds" if row["holds"] else "fails"


def _bar(ax: Axes, y: float, height: float, row: pd.Series, *, published: bool) -> None:
    verdict, share = _verdict(row), row["share"]
    width = 0.0 if math.isnan(share) else share
    ax.barh(
        y,
        width,
        height * 0.8,
        color=VERDICT_COLOURS[verdict],
        edgecolor="white",
        linewidth=0,
        **(PUBLISHED if published else {}),
    )
    text = verdict
    if row["cells"]:
        text = f"{verdict}: {round(share * row['cells'])} of {row['cells']}"
    elif verdict == "not judged":
        reason = row.get("reason", "")
        lacks = not reason or reason.startswith("the table has no")
        text = f"not judged: {'the table lacks the cells' if lacks else reason}"
    beside(
        ax,
        max(width, 1.0) if row["cells"] else 0.0,
        y,
        text,
        xytext=(6, 0),
        color=VERDICT_COLOURS[verdict] if verdict != "not judged" else "#555555",
        fontweight="bold" if verdict == "fails" else "normal",
    )


def _count(verdicts: Mapping[str, pd.DataFrame]) -> str:
    said = []
    for source, frame in verdicts.items():
        found = [_verdict(row) for _, row in frame.iterrows()]
        judged = len(found) - found.count("not judged")
        hold = f"{found.count('holds')} of {judged} judged claims hold"
        said.append(f"{source}: {hold if judged else 'no claim can be judged'}")
    return "; ".join(said)


def _handles(verdicts: Mapping[str, pd.DataFrame]) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=VERDICT_COLOURS[verdict], label=verdict) for verdict in ("holds", "fails")
    ]
    if "published" in verdicts:
        handles.append(legend_published())
    return [
        *handles,
        Line2D([], [], color="black", linewidth=2, label="needed: any,\nmost, or all"),
    ]
