"""The findings of section 4.2, judged on published cells; forecasts stand beside.

What a simulation says never refutes a sentence about measurements: it agrees with the published
cells or does not.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb.calibration.statistics import Verdict
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.figures.agreement import is_suspicious, of_panel, spread_out
from ddlnb.figures.style import (
    BAR_GROUP,
    OTHER_COLOUR,
    PUBLISHED,
    beside,
    colour_of,
    in_order,
    legend,
    legend_line,
    legend_mark,
    legend_methods,
    legend_published,
    names_down,
    say_source,
    styled,
)
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.rows import SINGLE
from ddlnb.results.schema import KEY, RATE
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.claims import CLAIMS, OPEN, Strength, evaluate_claims
from ddlnb.survey.items import Findings, ItemVerdict, findings
from ddlnb.survey.published import about_fig4_cells, beside_quotes, judged_cells
from ddlnb.survey.testbed import (
    as_run,
    fig4_cells_to_forecast,
    fig4_workload,
    forecast_fig4,
)
from ddlnb.units import counted

LARGE = "bert-large"  # the model whose batch the memory of the survey's GPU limits
LARGE_BATCH = 128  # of the run with V100s that the text reports (A43)
NVLINK = "v100-nvlink"


# Claims on two methods whose forecasts may be the same, as what tells them apart (the order of the
# servers' queue) need not be modelled. Of equals a claim says nothing.
ABOUT_EQUALS = {
    "A51": ("ByteScheduler-PS", "WFBP-PS"),
    "A58": ("ByteScheduler-PS", "WFBP-PS"),
}
UNKNOWN = {"holds": None, "cells": 0, "share": np.nan, "failures": ""}
NOT_JUDGED, UNDECIDED = "not judged", "undecided"
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


@styled
def forecast_panels(forecast_rows: pd.DataFrame, published_rows: pd.DataFrame) -> plt.Figure:
    """Shares of linear speed-up, a small panel for every model and network: Fig. 4 at a glance.

    Rows are those of `forecast_bars`, of several panels, and must have the column ``speedup``. A
    line is the forecast of a method, a dot its published cell, hollow if that is suspicious.
    """
    rows = forecast_rows[forecast_rows["method"] != "single"]
    require(not rows.empty, "there are no rows to draw")
    methods, counts = in_order(rows["method"]), sorted(rows["gpus"].unique())
    models, networks = (list(rows[name].unique()) for name in ("model", "network"))
    size = 1.6 + 3.2 * len(networks), 0.9 + 2.4 * len(models)
    figure, axes = plt.subplots(
        len(models), len(networks), figsize=size, sharex=True, sharey="row", squeeze=False
    )
    for ax, (model, network) in zip(axes.flat, product(models, networks), strict=True):
        panel = rows[(rows["model"] == model) & (rows["network"] == network)]
        published = of_panel(published_rows, panel)
        for method, shift in zip(methods, spread_out(len(methods), BAR_GROUP / 2), strict=True):
            for part, mark in ((panel, "-"), (published, "o")):
                found = part[part["method"] == method].sort_values("gpus")
                x = [counts.index(gpus) + shift for gpus in found["gpus"]]
                share = 100 * found["speedup"] / found["gpus"]
                ax.plot(x, share, mark, color=colour_of(method), linewidth=1, markersize=4)
                doubted = [is_suspicious(row) for row in found.to_dict("records")]
                ax.plot(np.array(x)[doubted], share[doubted], "o", color="white", markersize=2)
        ax.axhline(100, color="black", linestyle="--", linewidth=0.8, zorder=1)
        ax.set(title=f"{model}, {network}", ylim=(0, None))
        ax.set_xticks(range(len(counts)), [str(gpus) for gpus in counts])
    for ax in axes[-1]:
        ax.set_xlabel("GPUs")
    for ax in axes[:, 0]:
        ax.set_ylabel("share of linear\nspeed-up (%)")
    marks = [
        legend_line(OTHER_COLOUR, "forecast (simulated)", "-"),
        legend_mark(OTHER_COLOUR, "o", "published (hollow: suspicious)"),
        legend_line("black", "linear speed-up", "--"),
    ]
    legend(figure, [*legend_methods(methods), *marks])
    return say_source(figure, pd.concat([rows, published_rows]), "methods stand side by side")


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


def trusted_cells() -> pd.DataFrame:
    """Return the published cells that are not suspicious, by the rules of `ddlnb survey check`."""
    cells = judged_cells()
    return cells[~cells["suspicious"]]


def verdicts(
    rows: pd.DataFrame,
    larger_batch: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
) -> dict[str, pd.DataFrame]:
    """Judge every claim by source: "published", where there are cells, and "simulated".

    ``published`` are the trusted cells by default; the suspicious ones are missing among them.
    ``larger_batch`` are further rows, which only the claim about batches (A57) is judged by.
    """
    found = evaluate_claims(with_single(rows))
    if larger_batch is not None:
        both = pd.concat([rows, larger_batch], ignore_index=True)
        wider = evaluate_claims(with_single(both))
        found = pd.concat([found[found["claim"] != "A57"], wider[wider["claim"] == "A57"]])
        found = found.sort_values("claim", ignore_index=True)
    rates = rows.pivot_table(index=[k for k in KEY if k != "method"], columns="method", values=RATE)
    for claim, (one, other) in ABOUT_EQUALS.items():
        if np.allclose(rates.get(one, np.nan), rates.get(other, np.nan), rtol=1e-9, atol=0):
            reason = f"forecasts do not tell {one} from {other}, as the survey ran them"
            unknown = {**UNKNOWN, "reason": reason}
            found.loc[found["claim"] == claim, list(unknown)] = list(unknown.values())
    cells = trusted_cells() if published is None else published
    whole = judged_cells() if published is None else None
    judged = {"published": evaluate_claims(cells, whole=whole)} if len(cells) else {}
    return judged | {"simulated": found}


def verdict_words(judged: pd.DataFrame) -> pd.Series:
    """Return a word for every row of `evaluate_claims`: holds, fails, undecided or not judged."""
    words = judged["holds"].map(WORDS.get)
    return words.mask(judged["reason"] == OPEN, UNDECIDED)


def agreement(found: Mapping[str, pd.DataFrame]) -> pd.Series:
    """Return by claim whether the simulator agrees with the published cells; None: one is open."""
    theirs, ours = (found[name].set_index("claim")["holds"] for name in ("published", "simulated"))
    return pd.Series(
        {
            claim: None
            if None in (theirs[claim], ours[claim])
            else bool(theirs[claim] == ours[claim])
            for claim in theirs.index
        },
        dtype=object,
    )


def verdicts_table(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per claim: the survey's sentence in our words, and the verdicts by source.

    A verdict is one of `verdict_words`; the cells that support it stand beside, and whether the
    simulator agrees with the published cells.
    """
    sentences = pd.Series({name: claim.text for name, claim in CLAIMS.items()})
    columns = {("survey", "says"): sentences}
    for source, frame in found.items():
        by_claim = frame.set_index("claim")
        columns[source, "verdict"] = verdict_words(by_claim)
        share = (by_claim["share"] * by_claim["cells"]).round()
        columns[source, "supporting"] = share.fillna(0).astype(int)
        columns[source, "cells"] = by_claim["cells"]
    if "published" in found:
        columns["simulated", "agrees"] = agreement(found).map({True: "yes", False: "no"}.get)
    return pd.DataFrame(columns).fillna("")


def claim_findings(found: Mapping[str, pd.DataFrame]) -> Findings:
    """Return which claims hold, fail and are open by the cells of the first source.

    Where these are published ones, a second sentence says where the simulator agrees. Verdicts of
    the survey's index are those of published cells; a simulation counts only where it supports a
    claim that they cannot judge.
    """
    source = next(iter(found))
    return findings(
        _summary(source, found[source]),
        _about_simulator(agreement(found)) if source == "published" else "",
        about_fig4_cells(),
        items=[
            ItemVerdict(row["claim"], verdict, source, _reason(row))
            for source, judged in found.items()
            for row, verdict in zip(
                judged.to_dict("records"), _item_verdicts(source, found), strict=True
            )
        ],
    )


_VERDICTS = {
    "holds": Verdict.HOLDS,
    "fails": Verdict.CONTRADICTED,
    UNDECIDED: Verdict.UNDECIDED,
    NOT_JUDGED: None,
}


def _item_verdicts(source: str, found: Mapping[str, pd.DataFrame]) -> list[Verdict | None]:
    words = verdict_words(found[source])
    if source == "simulated":
        others = verdict_words(found["published"]) if "published" in found else NOT_JUDGED
        words = words.where((words == "holds") & (others == NOT_JUDGED), NOT_JUDGED)
    return [_VERDICTS[word] for word in words]


def _reason(row: Mapping[str, Any]) -> str:
    if row["holds"] is None and not row["deciding_cells"]:
        return str(row["reason"])
    said = f"{row['deciding_support']} of {row['deciding_cells']} cells support it"
    if len(CLAIMS[row["claim"]].parts) > 1:
        said = f"{said} in the comparison that decides ({row['decided_by']})"
    if row["holds"] is None:
        said = f"{said}, {row['support_at_least']} to {row['support_at_most']} whatever noise and "
        said = f"{said}{counted(row['missing'], 'missing cell')} say"
    return f"{said}; needed: {row['needed']}"


def _about_simulator(agrees: pd.Series) -> str:
    both, no = agrees.notna().sum(), agrees.index[[one is False for one in agrees]]
    but = f"; it disagrees on {', '.join(no)}" if len(no) else ""
    return f"The simulator agrees on {both - len(no)} of the {both} claims that both judge{but}."


VERBS = {  # of one claim, and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    UNDECIDED: ("cannot be decided with these cells",) * 2,
    NOT_JUDGED: ("is not judged", "are not judged"),
}


def _summary(source: str, judged: pd.DataFrame) -> str:
    by_word = judged["claim"].groupby(verdict_words(judged)).agg(list)
    groups = [
        f"{counted(len(by_word[word]), *verbs)} ({', '.join(by_word[word])})"
        for word, verbs in VERBS.items()
        if word in by_word
    ]
    return f"Of {len(judged)} claims, judged on {source} cells, {'; '.join(groups)}."


VERDICT_COLOURS = {"holds": "#009E73", "fails": "#D55E00", UNDECIDED: "#7F7F7F"}
AGREES = {True: "agrees", False: "disagrees", None: "alone"}
PALE = 0.4  # how opaque bars of the simulator are beside those of published cells
CHARACTERS = 76  # of a claim, on one line


@styled
def claim_verdicts(verdicts: Mapping[str, pd.DataFrame]) -> plt.Figure:
    """The verdict on every claim: the share of the cells that support it, and what it needs.

    Of a claim of several comparisons the one is drawn that decides. ``verdicts`` gives the frame of
    `ddlnb.survey.claims.evaluate_claims` for every source, such as ``{"simulated": ...}``. Beside
    ``"published"`` it says whether the simulator agrees; its bars are pale then.
    """
    first = next(iter(verdicts.values()))
    require(len(first) > 0, "there are no rows to draw")
    height = 0.86 / len(verdicts)
    lines = len(first) * max(1, 0.6 * len(verdicts))
    figure, ax = plt.subplots(figsize=(12.5, 1.3 + 0.44 * lines))
    words = {source: verdict_words(frame) for source, frame in verdicts.items()}
    for number, (source, frame) in enumerate(verdicts.items()):
        require(list(frame["claim"]) == list(first["claim"]), "the frames differ in their claims")
        said = list(words[source])
        look = PUBLISHED if source == "published" else {}
        if source == "simulated" and "published" in verdicts:
            said = [f"simulator {AGREES[one]}" for one in agreement(verdicts)]
            look = {"alpha": PALE}
        for y, row in enumerate(frame.to_dict("records")):
            at = y + (number - (len(verdicts) - 1) / 2) * height
            _bar(ax, at, height, row, words[source].iloc[y], said[y], look)
    labels = [
        textwrap.fill(f"{row['claim']} (s. {row['section']}): {row['text']}", CHARACTERS)
        for row in first.to_dict("records")
    ]
    names_down(ax, labels, fontsize=8)
    ax.set_xlim(0, 1.42)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.set_xlabel("share of the cells that support the claim")
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
    return say_source(figure, "; ".join(verdicts), remark)


def _count(source: str, words: pd.Series) -> str:
    counts = words[words != NOT_JUDGED].value_counts()
    said = ", ".join(
        f"{count} {word if count == 1 else word.removesuffix('s')}"
        for word, count in counts.items()
    )
    return f"{source} cells: {said or 'no claim can be judged'}"


def _bar(
    ax: plt.Axes,
    y: float,
    height: float,
    row: Mapping[Any, Any],
    verdict: str,
    said: str,
    look: Mapping[str, Any],
) -> None:
    """Draw one bar in the colour of its verdict, and what is said of it."""
    if verdict == NOT_JUDGED:
        lacks = not row["reason"] or row["reason"].startswith("the table has no")
        why = "the table lacks the cells" if lacks else row["reason"]
        beside(ax, 0.0, y, f"not judged: {why}", xytext=(6, 0), color="#555555")
        return
    support, cells = row["deciding_support"], row["deciding_cells"]
    share, needed = support / cells, Strength(row["needed"]).share
    colour = VERDICT_COLOURS[verdict]
    ax.barh(y, share, height * 0.8, edgecolor="white", linewidth=0, **{**look, "color": colour})
    ax.plot([needed] * 2, [y - height / 2, y + height / 2], color="black", linewidth=2, zorder=3)
    weight = "bold" if said == "fails" else "normal"
    text = f"{said}: {support} of {cells}"
    beside(ax, 1.0, y, text, xytext=(6, 0), color=colour, fontweight=weight)
