"""Which method learns better than which: kept runs on several tasks, beside published ones.

Digits are learnt by all methods, so that most differences drown between seeds. Letters and code
(`ddlnb.training.tasks.made`) are harder: in few steps nobody is done, and what a method loses is
seen. Kept runs are those of folders of data/measured whose names have "orderings": five seeds,
and a learning rate for every method, found by the same rule (`ddlnb.training.runs.compare`). Losses
are of training that ended early: that an ordering holds here says who learns faster, not who would
end better.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ddlnb.calibration.statistics import Verdict, holm as holm, t_test as t_test
from ddlnb.errors import require
from ddlnb.figures.style import GREY, PALETTE, legend, names_down, say_source, short, styled
from ddlnb.files import DATA, PUBLISHED
from ddlnb.results.schema import read_frame
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.training.method import training_method
from ddlnb.training.runs.summaries import ORDERINGS, judged as judged
from ddlnb.training.tasks.made import LETTERS, LETTERS_OF
from ddlnb.units import counted

PAIR = ["better", "worse"]
SHOWN = (2, 16)  # rows and columns of letters
MARKERS = "osD^vP"  # of tasks, which colours alone would not tell apart on every screen
LINEAR = 0.02  # nats up to which the axis of differences is linear


@styled
def letters_drawn() -> plt.Figure:
    """The first letters that are trained on, each with its class."""
    images, labels = LETTERS.samples().tensors
    rows, columns = SHOWN
    figure, panels = plt.subplots(rows, columns, figsize=(4.8, 1.0))
    for ax, image, label in zip(panels.flat, images, labels, strict=False):
        ax.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        ax.set_title(LETTERS_OF[label], fontsize=6, pad=2)
        ax.set_axis_off()
    return figure


def kept_curves(folder: Path = DATA / "measured") -> pd.DataFrame:
    """Return the curves of all kept studies of orderings. Raises InputError if there is none."""
    files = sorted(folder.glob("*orderings*/curves.csv"))
    require(bool(files), f"{folder} has no folder *orderings* with curves.csv; run from a checkout")
    return pd.concat([read_frame(path, "task", "method") for path in files], ignore_index=True)


def kept_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Return what was kept, one row per task and number of workers."""
    cells = curves.groupby(["task", "workers"], sort=False)
    runs = cells.apply(lambda part: len(part[["method", "seed"]].drop_duplicates()))
    columns = {
        "methods": cells["method"].nunique(),
        "seeds": cells["seed"].nunique(),
        "runs": runs,
        "steps": cells["step"].max(),
        "samples per worker and step": cells["local_batch"].first(),
    }
    return pd.DataFrame(columns)


def kept_orderings(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts of `ddlnb.training.runs.summaries.judged`, for every task on its own.

    ``p_holm`` is corrected for all rows of all tasks.
    """
    found = [judged(part).assign(task=task) for task, part in curves.groupby("task", sort=False)]
    table = pd.concat(found, ignore_index=True)
    table["p_holm"] = holm(table["p_value"].to_numpy())
    return table.assign(of=table["task"] + ", " + table["workers"].astype(str) + " workers")


def published_orderings(path: Path = PUBLISHED / "training_quality.csv") -> pd.DataFrame:
    """Return by ordering in how many published cells it holds: better, worse, cells, supporting.

    A cell is a model, and a number of workers or a batch; methods are compared by the mean test
    accuracy of its runs. Orderings of which no cell has both methods are left out. ``published``
    holds if most of the cells support an ordering, and is undecided if half of them do.
    """
    rows = read_frame(path, "source", "cell", "method", "accuracy")
    means = rows.pivot_table("accuracy", ["source", "cell"], "method")
    found = []
    for one in ORDERINGS:
        if {one.better, one.worse} <= set(means):
            gains = (means[one.better] - means[one.worse]).dropna()
            text = (str(training_method(name)) for name in (one.better, one.worse))
            found.append((*text, len(gains), int((gains > 0).sum())))
    table = pd.DataFrame(found, columns=[*PAIR, "cells", "supporting"])
    table = table[table["cells"] > 0].reset_index(drop=True)
    words = {1: Verdict.HOLDS, -1: Verdict.CONTRADICTED, 0: Verdict.UNDECIDED}
    surplus = np.sign(2 * table["supporting"] - table["cells"]).astype(int)
    return table.assign(published=surplus.map(words))


def orderings_by_task(found: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return one row per ordering: the verdict of every task, and the share of published cells."""
    wide = found.pivot(index=PAIR, columns="of", values="verdict")
    wide = wide.reindex(index=found.set_index(PAIR).index.unique(), columns=found["of"].unique())
    cells = published.set_index(PAIR)
    said = cells["supporting"].astype(str) + " of " + cells["cells"].astype(str)
    table = wide.join(said.rename("published cells that support it")).fillna("-")
    return table.rename(index=short).astype(str)


def agreement(found: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return the decided verdicts of which published cells decide, too, with ``agrees``."""
    ours, theirs = (
        table[table[name] != Verdict.UNDECIDED]
        for table, name in ((found, "verdict"), (published, "published"))
    )
    both = ours.merge(theirs, on=PAIR)
    return both.assign(agrees=both["verdict"].astype(str) == both["published"].astype(str))


def evidence_findings(found: pd.DataFrame, published: pd.DataFrame) -> Findings:
    """Say by task how many orderings hold, and how many verdicts agree with published cells."""
    sentences = []
    for of, part in found.groupby("of", sort=False):
        held, against = (
            int((part["verdict"] == one).sum()) for one in (Verdict.HOLDS, Verdict.CONTRADICTED)
        )
        many = int(((part["verdict"] != Verdict.UNDECIDED) & (part["p_holm"] <= 0.05)).sum())
        sentences.append(
            f"{of}, {counted(len(part), 'ordering')}: {held} confirmed, {against} contradicted, "
            f"{len(part) - held - against} undecided. After Holm's correction for all {len(found)} "
            f"comparisons, {many} {'stays' if many == 1 else 'stay'} decided."
        )
    beside = agreement(found, published)
    return findings(
        *sentences,
        f"Most published cells agree on an ordering, too, in {len(beside)} of these verdicts; "
        f"the verdict is the same in {beside['agrees'].sum()}.",
    )


@styled
def ordering_differences(found: pd.DataFrame) -> plt.Figure:
    """How much lower the better method's test loss is, by ordering and task, with 95 % intervals.

    ``found`` is from `kept_orderings`. Full marks are decided. Where runs diverged there is no
    difference to draw; a triangle on the edge says which way it was decided, a cross that it is
    undecided.
    """
    pairs = list(found.set_index(PAIR).index.unique())
    tasks = list(found["of"].unique())
    figure, ax = plt.subplots(figsize=(9.0, 1.4 + 0.5 * len(pairs)))
    apart = 0.7 / len(tasks)
    for number, of in enumerate(tasks):
        part = found[found["of"] == of].set_index(PAIR)
        for line, pair in enumerate(pairs):
            if pair in part.index:
                place = line + (number - (len(tasks) - 1) / 2) * apart
                _draw_difference(ax, part.loc[pair], place, *_look(number))
    ax.axvline(0.0, color=GREY, linewidth=0.8)
    ax.set_xscale("symlog", linthresh=LINEAR)
    names_down(ax, [f"{short(one)}\nover {short(other)}" for one, other in pairs], ruled=True)
    ax.set_xlabel("test loss of the worse minus that of the better, as stated (nats)")
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=of)
        for of, (colour, marker) in zip(tasks, map(_look, range(len(tasks))), strict=True)
    ]
    legend(figure, marks, "upper center", columns=4)
    return say_source(figure, found.assign(source="measured in lockstep"), NOTE)


NOTE = (
    f"hollow: undecided; the axis is logarithmic beyond {LINEAR:g} on both sides\n"
    "at an edge, an x or an arrow: a run diverged, so that there is no difference"
)


def _look(number: int) -> tuple[str, str]:
    return PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]


def _draw_difference(ax: plt.Axes, row: pd.Series, line: float, colour: str, marker: str) -> None:
    is_decided = row["verdict"] != Verdict.UNDECIDED
    face = colour if is_decided else "white"
    if not math.isfinite(row["difference"]) or not math.isfinite(row["half_width"]):
        way = {Verdict.HOLDS: (0.99, ">"), Verdict.CONTRADICTED: (0.01, "<")}
        edge, mark = way.get(row["verdict"], (0.99, "x"))
        ax.plot(edge, line, mark, color=colour, transform=ax.get_yaxis_transform())
        return
    ax.errorbar(
        row["difference"],
        line,
        xerr=np.array([row["half_width"]]),
        color=colour,
        marker=marker,
        markerfacecolor=face,
        markersize=5,
        elinewidth=0.9,
        capsize=2,
    )
