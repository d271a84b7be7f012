"""The findings of section 4.2, judged on forecasts and on published cells."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb.clusters.file import get_cluster
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
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import KEY, RATE
from ddlnb.results.statistics import Verdict
from ddlnb.results.tables import GPUS_PER_NODE, SINGLE, cell_rates
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.claims import CLAIMS, Strength, Table, evaluate_claims
from ddlnb.survey.items import Findings, ItemVerdict, findings
from ddlnb.survey.published import about_fig4_cells, beside_quotes, fig4_cells
from ddlnb.survey.testbed import (
    BATCHES,
    CLUSTERS,
    GPUS,
    as_run,
    fig4_cells_to_forecast,
    fig4_workload,
    forecast_fig4,
)

LARGE = "bert-large"  # the model whose batch the memory of the survey's GPU limits
LARGE_BATCH = 128  # of the run with V100s that the text reports (A43)
NVLINK = "v100-nvlink"


# Claims on ByteScheduler-PS against WFBP-PS. As the survey ran them they differ in the order of the
# server's queue alone, which the simulator does not model, so their forecasts are the same.
NOT_TOLD_APART = ("A51", "A58")
UNKNOWN = {
    "holds": None,
    "cells": 0,
    "share": np.nan,
    "failures": "",
    "reason": "forecasts do not tell ByteScheduler-PS from WFBP-PS, as the survey ran them",
}
NOT_JUDGED = "not judged"
WORDS = {True: "holds", False: "fails", None: NOT_JUDGED}

# Forecasts beyond the cells of Fig. 4.


def forecast_figure() -> pd.DataFrame:
    """Forecast all cells of Fig. 4 as run, once, without intervals."""
    return forecast_fig4(draws=0)


def forecast_larger_batch(local_batch: int = LARGE_BATCH) -> pd.DataFrame:
    """Forecast BERT-Large as run at a batch for which the survey's GPU has no memory (A57)."""
    return forecast_cells(
        [
            replace(cell, workload=cell.workload.at_batch(local_batch))
            for cell in fig4_cells_to_forecast((LARGE,))
        ],
        draws=0,
    )


def forecast_nvlink(local_batch: int = LARGE_BATCH) -> pd.DataFrame:
    """Forecast BERT-Large on four GPUs joined by NVLink (A43), by the all-to-all methods.

    The GPUs are taken to be as fast as the survey's, and their seconds to grow with the batch.
    """
    workload, cluster = fig4_workload(LARGE).at_batch(local_batch), get_cluster(NVLINK)
    methods = [as_run(method) for method in SURVEYED.values() if method.architecture == "A2A"]
    return forecast_cells([Cell(workload, cluster, method) for method in methods], draws=0)


def quotes_beside(rows: pd.DataFrame, nvlink: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-ups that section 4.2.1 quotes, beside the best method's forecast."""
    return beside_quotes(pd.concat([rows, nvlink], ignore_index=True))


# Verdicts.


def with_single(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows and one for every model, batch and network that runs on one GPU alone."""
    panel = ["model", "local_batch", "network"]
    alone = rows.groupby(panel, sort=False, as_index=False).first()
    alone[RATE] = alone[RATE] / alone["speedup"]
    alone = alone.assign(method=SINGLE, gpus=1, speedup=1.0)
    empty = {column: np.nan for column in ("low", "high", "chance_best") if column in rows}
    columns = [*panel, "method", "gpus", RATE, "speedup", "source", "machine"]
    kept = alone[[column for column in columns if column in alone]].assign(**empty)
    return pd.concat([rows, kept], ignore_index=True)


def verdicts(
    rows: pd.DataFrame,
    larger_batch: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
) -> dict[str, pd.DataFrame]:
    """Judge every claim by source: "simulated", and "published" where there are cells.

    ``larger_batch`` are further rows, which only the claim about batches (A57) is judged by.
    """
    found = evaluate_claims(with_single(rows))
    if larger_batch is not None:
        both = pd.concat([rows, larger_batch], ignore_index=True)
        wider = evaluate_claims(with_single(both))
        found = pd.concat([found[found["claim"] != "A57"], wider[wider["claim"] == "A57"]])
        found = found.sort_values("claim", ignore_index=True)
    found.loc[found["claim"].isin(NOT_TOLD_APART), list(UNKNOWN)] = list(UNKNOWN.values())
    cells = fig4_cells() if published is None else published
    judged = {"published": evaluate_claims(cells)} if len(cells) else {}
    return {"simulated": found} | judged


def verdicts_table(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per claim: the survey's sentence in our words, and the verdicts by source.

    A verdict is holds, fails or not judged; the cells that support it stand beside.
    """
    sentences = pd.Series({name: claim.text for name, claim in CLAIMS.items()})
    columns = {("survey", "says"): sentences}
    for source, frame in found.items():
        by_claim = frame.set_index("claim")
        columns[source, "verdict"] = by_claim["holds"].map(WORDS.get)
        share = (by_claim["share"] * by_claim["cells"]).round()
        columns[source, "supporting"] = share.fillna(0).astype(int)
        columns[source, "cells"] = by_claim["cells"]
    return pd.DataFrame(columns)


def failing_cells(rows: pd.DataFrame, larger_batch: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return every cell against a claim that fails, worst first, with the value against it.

    The arguments are those of `verdicts`. A cell stands there once for each comparison it fails.
    """
    found = verdicts(rows, larger_batch)["simulated"]
    wider = rows if larger_batch is None else pd.concat([rows, larger_batch], ignore_index=True)
    lines = []
    for claim in found.loc[[holds is False for holds in found["holds"]], "claim"]:
        judged = wider if claim == "A57" else rows
        table = Table(cell_rates(with_single(judged)), GPUS_PER_NODE)
        for part in CLAIMS[claim].parts:
            for cell, value in part.failing(part.values(table)).items():
                lines.append({"claim": claim, **cell._asdict(), "value": value, "unit": part.unit})
    return pd.DataFrame(lines, columns=["claim", *KEY, "value", "unit"])


def failing_by_place(failing: pd.DataFrame) -> pd.DataFrame:
    """Count the failing cells of every claim by model, network and number of GPUs."""
    known: dict[str, Sequence] = {"model": list(BATCHES), "network": list(CLUSTERS), "gpus": GPUS}
    counts = {
        label: pd.crosstab(failing["claim"], failing[label]).reindex(columns=values, fill_value=0)
        for label, values in known.items()
    }
    return pd.concat(counts, axis=1) if len(failing) else pd.DataFrame()


def contradictions(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the worst simulated cells against every claim that fails, or why it is not judged."""
    lines = [
        (row["claim"], NOT_JUDGED, row["reason"])
        if row["holds"] is None
        else (row["claim"], *failure.partition(" is ")[::2])
        for row in found["simulated"].to_dict("records")
        if not row["holds"]
        for failure in row["failures"].split("; ")
    ]
    return pd.DataFrame(lines, columns=["claim", "cell", "is"]).set_index("claim")


def claim_findings(found: Mapping[str, pd.DataFrame]) -> Findings:
    """Return which claims hold, fail and are not judged, for every source in a sentence."""
    return findings(
        *map(_summary, found, found.values()),
        *_own_cells(found),
        about_fig4_cells(),
        items=[
            ItemVerdict(row["claim"], _VERDICTS[row["holds"]], source, _reason(row))
            for source, judged in found.items()
            for row in judged.to_dict("records")
        ],
    )


_VERDICTS = {True: Verdict.HOLDS, False: Verdict.CONTRADICTED, None: None}


def _reason(row: Mapping[str, Any]) -> str:
    if row["holds"] is None:
        return str(row["reason"])
    said = f"{row['deciding_support']} of {row['deciding_cells']} cells support it"
    if len(CLAIMS[row["claim"]].parts) > 1:
        said = f"{said} in the comparison that decides ({row['decided_by']})"
    return f"{said}; needed: {row['needed']}"


def _own_cells(found: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return which claims the survey's own cells contradict, and where forecasts agree."""
    if "published" not in found:
        return []
    theirs = found["published"].set_index("claim")["holds"]
    ours = found["simulated"].set_index("claim")["holds"]
    contradicted = [claim for claim, holds in theirs.items() if holds is False]
    both = [claim for claim in theirs.index if None not in (theirs[claim], ours[claim])]
    alike = [claim for claim in both if theirs[claim] is ours[claim]]
    return [
        f"The survey's own cells contradict {len(contradicted)} of its "
        f"claims ({', '.join(contradicted) or 'none'}).",
        f"Forecasts and published cells agree on {len(alike)} of the {len(both)} claims that both "
        f"can judge.",
    ]


def _summary(source: str, judged: pd.DataFrame) -> str:
    verbs = {True: "hold", False: "fail", None: "are not judged"}
    groups = [
        f"{len(claims)} {verb} ({', '.join(claims)})"
        for holds, verb in verbs.items()
        if (claims := [row.claim for row in judged.itertuples() if row.holds is holds])
    ]
    return f"Of {len(judged)} claims, judged on {source} cells, {'; '.join(groups)}."


VERDICT_COLOURS = {"holds": "#009E73", "fails": "#D55E00"}
CHARACTERS = 76  # of a claim, on one line


@styled
def claim_verdicts(verdicts: Mapping[str, pd.DataFrame]) -> Figure:
    """The verdict on every claim: the share of the cells that support it, and what it needs.

    Of a claim of several comparisons the one is drawn that decides. ``verdicts`` gives the frame of
    `ddlnb.survey.claims.evaluate_claims` for every source, such as ``{"simulated": ...}``; one of
    ``"published"`` is hatched.
    """
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
    words = {source: frame["holds"].map(WORDS.get) for source, frame in verdicts.items()}
    ax.set_title("; ".join(map(_count, words, words.values())), fontsize=11)
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=verdict)
        for verdict, colour in VERDICT_COLOURS.items()
        if any((found == verdict).any() for found in words.values())
    ]
    if (words.get("published", pd.Series(NOT_JUDGED)) != NOT_JUDGED).any():
        handles.append(legend_published())
    needed = Line2D(
        [], [], color="black", linewidth=2, label="needed: one, more\nthan half, or all"
    )
    legend(figure, [*handles, needed])
    remark = "a claim of several comparisons needs all of them: drawn is the one that decides"
    say_source(figure, "; ".join(verdicts), remark)
    return figure


def _count(source: str, words: pd.Series) -> str:
    judged = (words != NOT_JUDGED).sum()
    hold = f"{(words == 'holds').sum()} of {judged} judged claims hold"
    return f"{source}: {hold if judged else 'no claim can be judged'}"


def _bar(ax: Axes, y: float, height: float, row: Mapping[Any, Any], *, published: bool) -> None:
    verdict = WORDS[row["holds"]]
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
