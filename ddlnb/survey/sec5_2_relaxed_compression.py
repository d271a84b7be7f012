"""Section 5.2: relaxed synchronisation together with compression, and the gradients behind it.

Bytes are those that pass a worker's link in both directions. A parameter server's answers are
dense, whatever workers push, so that compressing pushes alone saves at most half of the traffic.

Section 5.2 of the survey asks whether gradients under relaxed synchronisation are distributed as
under BSP, for which compressors were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ddlnb.calibration.statistics import Verdict, mean_interval, paired_comparison
from ddlnb.errors import require, require_whole
from ddlnb.figures.learning import BOTH
from ddlnb.figures.style import (
    PALETTE,
    facets,
    legend,
    legend_line,
    say_source,
    short,
    styled,
)
from ddlnb.plans.requests import Flow
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.training.executors.clock import Clock, LogNormal
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.summaries import Runs, final_loss, runs_by, spent
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import NextGradient, Worker
from ddlnb.units import MB, counted

COMPRESSIONS = ("", " + top-k(0.01) + feedback", " + ef-sign + feedback")
SYNCHRONISATIONS = ("bsp", "local(4)", "ssp(3)")
DENSE = "bsp on A2A"
STRAGGLERS = Clock(LogNormal(0.5))  # so that SSP has something to relax
BETTER, WORSE, OPEN = "better", "worse", "no clear difference"
ENDED = "ran out of steps"
IS_DENSE = {"gap": 0.0, "gap_half_width": 0.0, "verdict": ""}


def combined_methods(
    synchronisations: Sequence[str] = SYNCHRONISATIONS, compressions: Sequence[str] = COMPRESSIONS
) -> list[str]:
    """Return every synchronisation with every compression.

    >>> combined_methods(["ssp(3)"])[1]
    'ssp(3) + top-k(0.01) + feedback'
    """
    return [one + other for one in synchronisations for other in compressions]


def link_bytes(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the curves with ``link_bytes``: sent and received by a worker on average, as `spent`.

    Raises InputError if there are none.
    """
    require(not curves.empty, "there are no curves")
    return curves.assign(link_bytes=spent(curves, "bytes"))


@tabled(source="lockstep, bytes counted")
def at_equal_bytes(curves: pd.DataFrame, dense_iterations: Sequence[int]) -> Rows:
    """Return a row per budget and method: the loss when a link has carried that many bytes.

    A budget is what the given number of iterations of dense BSP takes. ``loss`` is the mean over
    seeds of the test loss in the last row within the budget, ``steps`` where that is; ``ended`` if
    the whole run is within it, so that more steps could still lower the loss. ``gap`` is the loss
    minus that of dense BSP, paired by seeds, with its 95 % ``gap_half_width``; ``verdict`` is
    BETTER or WORSE where that interval leaves out 0, and where runs diverged, if all pairs agree.
    ``over_parts`` says the same of a combination
    beside each part of it alone, its synchronisation dense and BSP with its compression: BETTER
    than both, WORSE than one, ENDED where whoever is behind ran out of steps, or OPEN. Runs that
    diverged have infinite loss. Raises InputError for curves without dense BSP.
    """
    known = link_bytes(curves)
    cells = runs_by(known, "method")
    require(DENSE in set(known["method"]), f"the curves lack {DENSE!r}, which others are beside")
    dense = known[(known["method"] == DENSE) & (known["step"] > 0)]
    per_iteration = float((dense["link_bytes"] / dense["step"]).iloc[0])
    for iterations in dense_iterations:
        budget = iterations * per_iteration
        ends = {method: _within(runs, budget) for (method,), runs in cells.items()}
        for method, runs in ends.items():
            loss = mean_interval(runs["loss"].to_numpy())
            yield {
                "dense_iterations": iterations,
                "bytes": budget,
                "method": method,
                "loss": loss.estimate,
                "half_width": loss.half_width,
                "steps": float(runs["step"].mean()),
                "ended": bool(runs["ended"].all()),
                **_gap(runs["loss"].to_numpy(), ends[DENSE]["loss"].to_numpy()),
                **(IS_DENSE if method == DENSE else {}),
                "over_parts": _over_parts(method, ends),
            }


def parts_alone(method: str, methods: Iterable[str]) -> list[str]:
    """Return which methods are one part of a combination: its synchronisation, its compression.

    >>> combined = "local(4) + ef-sign + feedback"
    >>> parts_alone(combined, ["bsp", "local(4)", "bsp + ef-sign + feedback", combined])
    ['local(4)', 'bsp + ef-sign + feedback']
    """
    whole = training_method(method)
    if whole.compressor is None or whole.synchronisation.name == "bsp":
        return []
    alone = {name: training_method(name) for name in methods}
    return [
        name
        for name, one in alone.items()
        if (one.compressor is None and one.synchronisation == whole.synchronisation)
        or (one.synchronisation.name == "bsp" and one.compressor == whole.compressor)
    ]


def _over_parts(method: str, ends: Mapping[str, pd.DataFrame]) -> str:
    beside = [_over_part(ends[method], ends[part]) for part in parts_alone(method, ends)]
    first = (one for one in (WORSE, ENDED, OPEN, BETTER) if one in beside)
    return next(first, "")


def _over_part(combined: pd.DataFrame, part: pd.DataFrame) -> str:
    """Return how a combination stands to a part: more steps could still bring up who is behind."""
    found = str(_gap(combined["loss"].to_numpy(), part["loss"].to_numpy())["verdict"])
    behind = {WORSE: [combined], BETTER: [part]}.get(found, [combined, part])
    return ENDED if any(bool(one["ended"].any()) for one in behind) else found


@tabled("step", "loss", "ended")
def _within(runs: Runs, budget: float) -> Rows:
    """Return the last row within the budget, by seed."""
    for run in runs.values():
        within = run[run["link_bytes"] <= budget * (1 + 1e-9)]
        step = within["step"].iloc[-1]
        last = run.iloc[-1]
        yield (step, final_loss(within), step == last["step"] and not last["diverged"])


def _gap(losses: np.ndarray, dense: np.ndarray) -> dict[str, object]:
    same = len(losses) == len(dense)
    require(same, "methods have other seeds than dense BSP; run the same seeds")
    found = paired_comparison(dense, losses)
    judged = found.verdict.worded(WORSE, BETTER, OPEN)
    gap = found.difference
    return {"gap": gap.estimate, "gap_half_width": gap.half_width, "verdict": judged}


def bytes_findings(equal: pd.DataFrame) -> Findings:
    """Return what every budget buys: who is better than dense BSP, and who ran out of steps.

    The item is whether a relaxed method with compression is better than each part alone.
    """
    told, items = [], []
    for iterations, part in equal.groupby("dense_iterations", sort=False):
        dense, others = part[part["method"] == DENSE].iloc[0], part[part["method"] != DENSE]
        best = others.loc[others["loss"].idxmin()]
        better = (others["verdict"] == BETTER).sum()
        told.append(
            f"With the bytes of {iterations} iterations of dense BSP, which leave it at a loss of "
            f"{dense['loss']:.2f}, {better} of {len(others)} other methods are better. The best, "
            f"{best['method']}, is at {best['loss']:.2f} after {best['steps']:.0f} steps; "
            f"{counted(int(others['ended'].sum()), 'method')} ran out of steps within the budget."
        )
        judged = others.loc[others["over_parts"] != "", "over_parts"].to_list()
        verdict = Verdict.UNDECIDED if {OPEN, ENDED} & set(judged) else Verdict.CONTRADICTED
        said = (
            f"{judged.count(BETTER)} of {len(judged)} combinations are better than each part alone "
            f"with the bytes of {iterations} iterations of dense BSP"
        )
        ended = f"; {judged.count(ENDED)} cannot be judged, as who could catch up ran out of steps"
        told.append(f"{said}, {judged.count(WORSE)} worse than one{ended * (ENDED in judged)}.")
        best_of_all = Verdict.HOLDS if BETTER in judged else verdict
        items.append(item_verdict("A61", [best_of_all], "measured", said))
    return findings(*told, items=items)


DECADES, PER_DECADE = 8, 4
BINS = DECADES * PER_DECADE
LARGEST = 2.0  # decades above the root mean square at which histograms end
RAW, SCALED = "raw", "scaled"


def gradient_sizes(
    task: str | LearningTask,
    methods: Sequence[str | TrainingMethod],
    *,
    workers: int = 8,
    steps: int = 100,
    last: int = 20,
    seeds: int = 3,
    clock: Clock | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Return rows of method, seed, measure, bin (log10, the middle) and share of the entries.

    The gradients are those that workers compute in their ``last`` steps, before they are used.
    Measure "raw" is log10 |entry|, "scaled" the same in units of the root mean square of its
    gradient, so that only the shape counts. Entries below the least bin, zeros too, count in it,
    larger ones than the largest in that one. ``settings`` are those of `train`. Raises InputError.
    """
    require_whole(steps=steps, last=last, seeds=seeds)
    require(last <= steps, f"last {last} steps must be at most all {steps}")
    parts = [
        _histograms(training_method(method), seed, task, workers, steps, last, clock, settings)
        for method in methods
        for seed in range(seeds)
    ]
    require(bool(parts), "there are no methods to run")
    return pd.concat(parts, ignore_index=True).assign(source="lockstep")


def watched(
    loop: Callable[[Worker], Flow], see: Callable[[Worker, Tensor], None], worker: Worker
) -> Flow:
    """Run the loop of a worker, calling ``see(worker, gradient)`` with every gradient it gets."""
    flow, answer = loop(worker), None
    while True:
        request = flow.send(answer)
        answer = yield request
        if isinstance(request, NextGradient):
            see(worker, answer)


def _histograms(
    method: TrainingMethod,
    seed: int,
    task: str | LearningTask,
    workers: int,
    steps: int,
    last: int,
    clock: Clock | None,
    settings: dict[str, Any],
) -> pd.DataFrame:
    job = training_settings(task, method, workers=workers, steps=steps, seed=seed, **settings).job()
    team = [job.worker(rank) for rank in range(workers)]
    counts = {RAW: torch.zeros(BINS), SCALED: torch.zeros(BINS)}
    least = LARGEST - DECADES

    def see(worker: Worker, gradient: Tensor) -> None:
        if worker.step > steps - last:
            scale = float(gradient.square().mean().sqrt())
            require(scale > 0, "a gradient is zero throughout, so that its entries have no sizes")
            for measure, unit in ((RAW, 1.0), (SCALED, scale)):
                sizes = (gradient / unit).abs().clamp(10**least, 10**LARGEST).log10()
                counts[measure] += torch.histc(sizes, BINS, least, LARGEST)

    loop = partial(watched, method.synchronisation.loop, see)
    Lockstep(team, loop, steps, rule=job.rule(), clock=clock).run()
    middles = least + (np.arange(BINS) + 0.5) / PER_DECADE
    return pd.concat(
        pd.DataFrame(
            {
                "method": str(method),
                "seed": seed,
                "measure": measure,
                "bin": middles,
                "share": (count / count.sum()).numpy(),
            }
        )
        for measure, count in counts.items()
    )


@tabled()
def similarity(sizes: pd.DataFrame, base: str = "bsp") -> Rows:
    """Return a row per measure and method: how much of its histogram is common with the base's.

    ``overlap`` is the mean over all pairs of runs of different seeds, ``base_overlap`` that of the
    base with itself, and ``base_least`` its least. ``alike`` if the mean overlap is no less than
    that least one: the method then differs from the base no more than two runs of the base do.
    Raises InputError for fewer than two seeds, and if the base is missing.
    """
    name = str(training_method(base))
    for measure, part in sizes.groupby("measure", sort=False):
        shares = part.pivot(index=["method", "seed"], columns="bin", values="share")
        seeds = part.loc[part["method"] == name, "seed"].nunique()
        require(seeds > 1, f"histograms hold fewer than two runs of {name!r}; add seeds")
        own = _overlaps(shares.loc[name], shares.loc[name])
        for method in part["method"].unique():
            common = _overlaps(shares.loc[method], shares.loc[name])
            yield {
                "measure": measure,
                "method": method,
                "overlap": common.mean(),
                "least": common.min(),
                "base_overlap": own.mean(),
                "base_least": own.min(),
                "alike": bool(common.mean() >= own.min()),
            }


def _overlaps(some: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """Return the common areas of all pairs of runs: 1 if equal, 0 if nothing is shared.

    Runs are rows by seed. Pairs of one seed are left out, which share batches and the first model.
    """
    common = np.minimum(some.to_numpy()[:, None], others.to_numpy()).sum(axis=2).astype(float)
    return common[np.not_equal.outer(some.index.to_numpy(), others.index.to_numpy())]


def similarity_findings(alike: pd.DataFrame) -> Findings:
    """Return which gradients are distributed as those of BSP, by the rule of `similarity`."""
    names = {RAW: "size", SCALED: "shape"}
    others = alike[alike["overlap"] != alike["base_overlap"]]
    return findings(
        *(
            f"By {names[row['measure']]}, gradients of {row['method']} are "
            f"{'like' if row['alike'] else 'unlike'} those of BSP: {row['overlap']:.1%} in "
            f"common, where two runs of BSP have {row['base_overlap']:.1%}, "
            f"{row['base_least']:.1%} at least."
            for row in others.to_dict("records")
        )
    )


@styled
def loss_by_bytes(curves: pd.DataFrame) -> Figure:
    """Test loss against the bytes of a worker's link, both ways: a panel per synchronisation.

    ``curves`` have the column of `link_bytes`. Lines are means over seeds at equal steps. Between
    two averages a model is had for one more: steps that cost more than a later one are left out.
    """
    compressions = list(curves["compression"].unique()) if len(curves) else []
    figure, panels = facets(curves, "synchronisation", width=(1.2, 3.7), height=3.9, **BOTH)
    for ax, _, part in panels:
        sent = part[part["link_bytes"] > 0]
        for compression, rows in sent.groupby("compression", sort=False):
            means = rows.groupby("step")[["link_bytes", "test_loss"]].mean()
            later = means["link_bytes"].iloc[::-1].cummin().iloc[::-1]  # the least from there on
            means = means[means["link_bytes"] <= later]
            ax.plot(
                means["link_bytes"] / MB,
                means["test_loss"],
                color=PALETTE[compressions.index(compression) % len(PALETTE)],
                label="dense" if compression == "none" else f"{short(compression)} + feedback",
            )
        ax.set(xlabel="MB through a worker's link", xscale="log")
    panels[0][0].set_ylabel("test loss")
    legend(figure, where="upper center", columns=len(compressions))
    return say_source(
        figure, "lockstep, bytes counted", f"mean of {counted(curves['seed'].nunique(), 'seed')}"
    )


@styled
def gradient_histograms(sizes: pd.DataFrame) -> Figure:
    """Shares of gradient entries by their size: a line per run, a panel per measure of size.

    ``sizes`` are from `gradient_sizes`. The first method, with which others are compared, is thick.
    """
    figure, panels = facets(sizes, "measure", width=(1, 5), height=3.6)
    methods = list(sizes["method"].unique())
    colours = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(methods)}
    for ax, measure, part in panels:
        for (method, _), run in part.groupby(["method", "seed"], sort=False):
            colour = colours[method]
            look: dict[str, Any] = (
                {"lw": 2.2, "zorder": 1} if method == methods[0] else {"lw": 0.9, "zorder": 2}
            )
            ax.step(run["bin"], 100 * run["share"], where="mid", color=colour, alpha=0.8, **look)
        unit = "|entry| / root mean square" if measure == SCALED else "|entry|"
        ax.set(title="", xlabel=f"log$_{{10}}$ {unit}")
    panels[0][0].set_ylabel("entries (%)")
    handles = [
        legend_line(colour, short(name).partition(" on ")[0], "-")
        for name, colour in colours.items()
    ]
    legend(figure, handles, "upper center", columns=4)
    return say_source(figure, sizes, "a line per seed; the first bin holds all that is smaller")
