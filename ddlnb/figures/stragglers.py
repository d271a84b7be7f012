"""A job as it ran, the same job if nobody straggled, and what each cause of waste costs."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from ddlnb.figures.gantt import KIND_COLOURS
from ddlnb.figures.style import beside, legend, names_down, say_source, styled
from ddlnb.traces.jobs.table import COLLECTIVE, POINT_TO_POINT, family_of
from ddlnb.traces.jobs.what_if import CAUSES, WhatIf
from ddlnb.units import counted

MOST_LANES = 24  # workers that are drawn; of more, the slowest ones and some others
OTHER_COLOUR, TRANSFER_COLOUR, WASTE_COLOUR = "#009E73", "#d9c3e6", "#D55E00"


@styled
def job_stragglers(found: WhatIf, step: int | None = None) -> plt.Figure:
    """One iteration of a job as it ran and if nobody straggled, and the seconds of every cause.

    A lane is a worker; white is waiting. The iteration is the one of median length unless a step is
    given. Bars are means over all iterations; below zero a cause saves time because others hide it.
    """
    step = found.typical_step if step is None else step
    rows = found.operations(step)
    workers = _chosen(found)
    lanes = 0.16 * len(workers) + 0.5
    figure, axes = plt.subplots(
        3, 1, figsize=(11, 2 * lanes + 3.1), height_ratios=[lanes, lanes, 2.0]
    )
    end = max(rows["end"].max(), rows["ideal_end"].max())
    for ax, (start, stop), title in (
        (axes[0], ("start", "end"), f"step {step} as it ran"),
        (axes[1], ("ideal_start", "ideal_end"), "the same step if nobody straggled"),
    ):
        _draw_lanes(ax, rows, workers, start, stop)
        ax.set_xlim(0, 1.01 * end)
        ax.set_title(f"{title}: {rows[stop].max() - rows[start].min():.2f} s", loc="left")
    axes[1].set_xlabel("time (s)")
    _draw_causes(axes[2], found)
    kinds = {
        "forward": KIND_COLOURS["forward"],
        "backward": KIND_COLOURS["backward"],
        "message or collective, with its wait": TRANSFER_COLOUR,
        "optimizer and others": OTHER_COLOUR,
    }
    legend(figure, [Patch(color=colour, label=kind) for kind, colour in kinds.items()])
    where = f"simulated, a replay of the trace {found.job.name}"
    return say_source(
        figure,
        where,
        f"S = {found.slowdown:.2f} over {counted(len(found.iterations), 'iteration')}",
    )


def _chosen(found: WhatIf) -> pd.DataFrame:
    """Return the workers to draw, by data-parallel rank and stage."""
    place = ["dp_rank", "stage", "worker"]
    workers = found.job.rows[place].drop_duplicates().sort_values(place)
    if len(workers) > MOST_LANES:
        factors = found.factors.of_worker.set_index(["dp_rank", "stage"])["factor"]
        slowness = workers.join(factors, on=["dp_rank", "stage"])["factor"]
        workers = workers.loc[slowness.nlargest(MOST_LANES).index].sort_values(place)
    return workers.reset_index(drop=True)


def _draw_lanes(
    ax: plt.Axes, rows: pd.DataFrame, workers: pd.DataFrame, start: str, stop: str
) -> None:
    lane = {worker: number for number, worker in enumerate(workers["worker"])}
    shown = rows[rows["worker"].isin(lane) & (rows[stop] > rows[start])]
    for colour, part in shown.groupby(shown["optype"].map(_colour)):
        ends = zip(part["worker"].map(lane), part[start], part[stop], strict=True)
        boxes = [
            [(left, y - 0.42), (left, y + 0.42), (right, y + 0.42), (right, y - 0.42)]
            for y, left, right in ends
        ]
        order = 1 if colour == TRANSFER_COLOUR else 2
        ax.add_collection(
            PolyCollection(boxes, facecolors=colour, edgecolors="white", lw=0.15, zorder=order)
        )
    names = [f"rank {row.dp_rank}, stage {row.stage}" for row in workers.itertuples()]
    names_down(ax, names, fontsize=6)
    ax.grid(False)


def _colour(kind: str) -> str:
    if family_of(kind) in (POINT_TO_POINT, COLLECTIVE):
        return TRANSFER_COLOUR
    return KIND_COLOURS.get(kind.removesuffix("-compute"), OTHER_COLOUR)


def _draw_causes(ax: plt.Axes, found: WhatIf) -> None:
    causes = found.causes.set_index("cause")
    names = [*CAUSES, "interaction", "all together"]
    for place, name in enumerate(names):
        seconds, share = causes.loc[name, ["seconds", "share"]]
        colour = WASTE_COLOUR if name in CAUSES else "#7f7f7f"
        ax.barh(place, seconds, 0.75, color=colour, zorder=2)
        beside(ax, max(0.0, seconds), place, f"{seconds:.3g} s ({share:.1%})")
    names_down(ax, names)
    ax.axvline(0, color="black", linewidth=0.8, zorder=3)
    low, high = ax.get_xlim()
    ax.set(xlim=(low, high + 0.15 * (high - low)), xlabel="costs, seconds per iteration")
    ax.set_title("what each cause costs: the iteration, less the same without it", loc="left")
