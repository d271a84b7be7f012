"""Claims: which sentences of section 4 hold, and in how many cells."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from ddlnb.survey.comparisons import Strength

if TYPE_CHECKING:
    import pandas as pd

VERDICT_COLOURS = {"holds": "#009E73", "fails": "#D55E00"}
NOT_JUDGED = "not judged"
CHARACTERS = 76  # of a claim, on one line


@styled
def claim_verdicts(verdicts: Mapping[str, pd.DataFrame]) -> Figure:
    """The verdict on every claim: the share of the cells that support it, and what it needs.

    Of a claim of several comparisons the one is drawn that decides. ``verdicts`` gives the frame of
    `ddlnb.survey.claims.evaluate_claims` for every source, such as ``{"simulated": ...}``; one of
    ``"published"`` is hatched.
    """
    require(bool(verdicts), "there are no rows to draw")
    first = next(iter(verdicts.values()))
    require(len(first) > 0, "there are no rows to draw")
    height = 0.86 / len(verdicts)
    lines = len(first) * max(1, 0.6 * len(verdicts))
    figure, ax = plt.subplots(figsize=(12.5, 1.3 + 0.44 * lines))
    for number, (source, frame) in enumerate(verdicts.items()):
        require(list(frame["claim"]) == list(first["claim"]), "the frames differ in their claims")
        for y, row in enumerate(frame.to_dict("records")):
            at = y + (number - (len(verdicts) - 1) / 2) * height
            _bar(ax, at, height, row, published=source == "published")
    labels = [
        textwrap.fill(f"{row['claim']} (s. {row['section']}): {row['text']}", CHARACTERS)
        for row in first.to_dict("records")
    ]
    names_down(ax, labels, fontsize=8)
    ax.set_xlim(0, 1.34)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.set_xlabel("share of the cells that support the claim")
    ax.grid(False, axis="y")
    ax.set_title(_count(verdicts), fontsize=11)
    legend(figure, _handles(verdicts))
    remark = "a claim of several comparisons needs all of them: drawn is the one that decides"
    say_source(figure, "; ".join(verdicts), remark)
    return figure


def _verdict(row: Mapping[Any, Any]) -> str:
    if row["holds"] is None:
        return NOT_JUDGED
    return "holds" if row["holds"] else "fails"


def _bar(ax: Axes, y: float, height: float, row: Mapping[Any, Any], *, published: bool) -> None:
    verdict = _verdict(row)
    if verdict == NOT_JUDGED:
        lacks = not row["reason"] or row["reason"].startswith("the table has no")
        why = "the table lacks the cells" if lacks else row["reason"]
        beside(ax, 0.0, y, f"not judged: {why}", xytext=(6, 0), color="#555555")
        return
    support, cells = row["deciding_support"], row["deciding_cells"]
    share, needed = support / cells, Strength(row["needed"]).share
    look = {**(PUBLISHED if published else {}), "color": VERDICT_COLOURS[verdict]}
    ax.barh(y, share, height * 0.8, edgecolor="white", linewidth=0, **look)
    ax.plot([needed] * 2, [y - height / 2, y + height / 2], color="black", linewidth=2, zorder=3)
    said = f"{verdict}: {support} of {cells}"
    weight = "bold" if verdict == "fails" else "normal"
    beside(ax, 1.0, y, said, xytext=(6, 0), color=VERDICT_COLOURS[verdict], fontweight=weight)


def _count(verdicts: Mapping[str, pd.DataFrame]) -> str:
    said = []
    for source, frame in verdicts.items():
        found = [_verdict(row) for row in frame.to_dict("records")]
        judged = len(found) - found.count(NOT_JUDGED)
        hold = f"{found.count('holds')} of {judged} judged claims hold"
        said.append(f"{source}: {hold if judged else 'no claim can be judged'}")
    return "; ".join(said)


def _handles(verdicts: Mapping[str, pd.DataFrame]) -> list[Patch | Line2D]:
    found = {
        source: {_verdict(row) for row in frame.to_dict("records")}
        for source, frame in verdicts.items()
    }
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=verdict)
        for verdict, colour in VERDICT_COLOURS.items()
        if any(verdict in words for words in found.values())
    ]
    if found.get("published", {NOT_JUDGED}) != {NOT_JUDGED}:
        handles.append(legend_published())
    return [
        *handles,
        Line2D([], [], color="black", linewidth=2, label="needed: one, more\nthan half, or all"),
    ]
